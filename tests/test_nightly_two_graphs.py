"""Two graphs on one machine at once: two clusters that know nothing of each other."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.live import AUTH, Live, free_port, tiny_deployment
from tests.traffic import ask


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_graph_has_its_own_turns_and_one_ends_without_the_other(tiny_folder: Path) -> None:
    files = [tiny_deployment(tiny_folder, free_port()) for _ in range(2)]
    with Live(files[0]) as one, Live(files[1]) as other:
        hello = [{"role": "user", "content": "hello"}]
        for graph, count in ((one, 1), (other, 2)):
            for number in range(count):
                ask(graph.client(), hello, stream=True, session=f"s{number}", max_tokens=5)
        assert len(_answers(one)) == 1 and len(_answers(other)) == 2
        httpx.post(f"{one.url}/clawrl/pause", headers=AUTH, timeout=20.0).raise_for_status()
        assert one.status()["paused"] and not other.status()["paused"]
        assert one.stop() == [], "nothing of it is left behind"
        assert not one.ready() and other.ready()
        answer = ask(other.client(), hello, stream=False, session=None, max_tokens=5)
        assert answer.finish_reason in ("stop", "length")
        assert len(_answers(other)) == 3


def _answers(graph: Live) -> list[dict[str, object]]:
    """All turns but those in which random weights said nothing."""
    return [turn for turn in graph.turns() if turn["drop_reason"] != "empty"]
