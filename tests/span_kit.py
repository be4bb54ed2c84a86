"""Served answers against cold models of the versions that sampled them."""

from __future__ import annotations

import numpy as np

from clawrl.weights.snapshot import read_whole
from tests.engine_tools import Answer, cold_model_logps
from tests.live import Live
from tests.sglang_kit import cold_model


def spans_that_agree(live: Live, most: int) -> int:
    """How many spans of recorded turns were compared, until ``most``; each agrees to 1e-4, or this fails.

    Only of turns whose versions' snapshots are still on disk, and that were sampled from the plain distribution.
    """
    snapshots = live.home / "tiny" / "snapshots"
    kept = {int(folder.name[1:7]): folder for folder in snapshots.iterdir() if folder.name.startswith("v")}
    checked = 0
    with live.ledger() as ledger:
        for row in ledger.turns(2000):
            turn = ledger.turn(row.turn_id)
            if turn is None or not turn.spans or any(span.version not in kept for span in turn.spans):
                continue
            if turn.sampling.filtered or turn.sampling.greedy:
                continue
            answer = Answer(turn.prompt_ids, turn.response_ids, turn.response_logps, np.zeros(1), None, [])
            for span in turn.spans:
                model = cold_model(live.model, read_whole(kept[span.version]))
                cold = cold_model_logps(model, answer, turn.sampling.temperature)
                np.testing.assert_allclose(
                    turn.response_logps[span.start : span.end], cold[span.start : span.end], atol=1e-4
                )
                checked += 1
            if checked >= most:
                break
    return checked
