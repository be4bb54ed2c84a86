"""What `clawrl export` writes loads in SGLang, and answers as the trained weights do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clawrl.export import export
from tests.engine_tools import cold_model_logps, generate
from tests.export_kit import trained_deployment
from tests.sglang_kit import cold_model, needs_sglang, running_sglang

pytestmark = [pytest.mark.nightly, needs_sglang]


def test_sglang_answers_with_the_weights_that_were_exported(tmp_path: Path) -> None:
    trained = trained_deployment(tmp_path, kind="qwen3")
    target = tmp_path / "mine"
    export(trained.deployment, target)
    model = cold_model(trained.model)
    model.load_state_dict(trained.weights[2], strict=False)
    with running_sglang(target) as (loop, engine):
        answer = loop.run(generate(engine, [5, 6, 7, 8], max_tokens=30))
    np.testing.assert_allclose(answer.logps, cold_model_logps(model, answer), atol=1e-4)
