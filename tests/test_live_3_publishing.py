"""Weights change under the users' hands and nobody notices."""

from __future__ import annotations

from tests.live import Live
from tests.span_kit import spans_that_agree
from tests.traffic import Traffic


def test_twenty_versions_are_published_under_load_and_no_request_fails(live: Live, record_property) -> None:  # type: ignore[no-untyped-def]
    start = live.status()["version"]
    with Traffic(live, users=4) as traffic:
        # Answers carry the versions as they come; a version of what had been queued before may serve none.
        live.wait_for(
            lambda s: s["version"] >= start + 20 and len({answer.version for answer in list(traffic.answers)}) >= 10,
            timeout_s=240,
            what="twenty more versions, and answers of ten",
        )
    assert traffic.failures == []
    assert all(answer.finish_reason in ("stop", "length") for answer in traffic.answers)
    # The newest version serves a moment before the figures of its publish are written.
    status = live.wait_for(
        lambda s: all("committed" in v["stats"] for v in s["versions"] if v["version"] > start),
        timeout_s=120,
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
    assert spans_that_agree(live, most=12) >= 3
