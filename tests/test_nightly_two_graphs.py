"""Two graphs on one machine at once: two clusters that know nothing of each other."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.live import AUTH, MODEL, Live, free_port, tiny_deployment
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
        assert len(one.turns()) == 1 and len(other.turns()) == 2
        httpx.post(f"{one.url}/clawrl/pause", headers=AUTH, timeout=20.0).raise_for_status()
        assert one.status()["paused"] and not other.status()["paused"]
        assert one.stop() == [], "nothing of it is left behind"
        assert not one.ready() and other.ready()
        reply = other.client().chat.completions.create(model=MODEL, messages=hello, max_tokens=5)
        assert reply.choices[0].finish_reason in ("stop", "length")
        assert len(other.turns()) == 3
