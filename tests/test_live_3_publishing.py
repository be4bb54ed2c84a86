"""Weights change under the users' hands and nobody notices."""

from __future__ import annotations

from tests.live import Live
from tests.traffic import Traffic


def test_twenty_versions_are_published_under_load_and_no_request_fails(live: Live, record_property) -> None:  # type: ignore[no-untyped-def]
    start = live.status()["version"]
    with Traffic(live, users=4) as traffic:
        live.wait_for(lambda s: s["version"] >= start + 20, timeout_s=240, what="twenty more versions")
    assert traffic.failures == []
    served = {answer.version for answer in traffic.answers}
    assert len(served) >= 10, "answers must carry the versions as they come"
    assert all(answer.finish_reason in ("stop", "length") for answer in traffic.answers)
    # The newest version serves a moment before the figures of its publish are written.
    status = live.wait_for(
        lambda s: all("committed" in v["stats"] for v in s["versions"] if v["version"] > start),
        timeout_s=30,
        what="the figures of every publish",
    )
    published = [v for v in status["versions"] if v["version"] > start]
    assert all(v["stats"]["committed"] == 2 for v in published), "both replicas take part in every publish"
    assert status["turns"]["adds_up"] and status["unrecorded"] == 0
    for name in ("p50", "p95"):
        record_property(f"hold_ms_{name}", status["holds_ms"][name])
    assert status["holds_ms"]["count"] >= 20


def test_each_span_of_a_served_answer_agrees_with_the_snapshot_of_its_version(live: Live) -> None:
    """Turns that straddled a publish in the load above, checked against cold models of both versions."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from clawrl.weights.snapshot import read_snapshot
    from tests.engine_tools import Answer, cold_model_logps

    state = live.home / "tiny"
    kept = {int(folder.name[1:7]): folder for folder in (state / "snapshots").iterdir() if folder.name.startswith("v")}
    model_folder = live.model
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
                model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
                _, tensors = read_snapshot(kept[span.version])
                model.load_state_dict(tensors, strict=False)
                cold = cold_model_logps(model, answer, turn.sampling.temperature)
                np.testing.assert_allclose(
                    turn.response_logps[span.start : span.end], cold[span.start : span.end], atol=1e-4
                )
                checked += 1
            if checked >= 12:
                break
    assert checked >= 3
