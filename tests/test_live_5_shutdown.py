"""Ctrl-C: open streams end as aborted, every recorded turn is kept, no process stays. Runs last: it ends `live`."""

from __future__ import annotations

import threading
import time

import openai
from openai.types.chat import ChatCompletionChunk

from clawrl.messages import DropReason, TurnState
from tests.live import MODEL, Live
from tests.traffic import until_said


def test_ctrl_c_leaves_no_process_and_loses_no_turn(live: Live) -> None:
    recorded = live.status()["turns"]["recorded"]
    opened = threading.Barrier(4)
    asked: list[float] = []
    ended: list[str] = []

    def open_stream() -> openai.Stream[ChatCompletionChunk]:
        asked.append(time.time())
        return live.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            max_tokens=480,
            temperature=1.9,
        )

    def long_stream() -> None:
        try:
            stream = until_said(open_stream)
            next(iter(stream))
            opened.wait(120)
            for _ in stream:
                pass
            ended.append("complete")
        except openai.APIError as error:
            ended.append(type(error).__name__)

    threads = [threading.Thread(target=long_stream, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    opened.wait(120)
    left = live.stop()
    assert left == [], [process.cmdline() for process in left]
    for thread in threads:
        thread.join(60)
    assert len(ended) == 3
    with live.ledger() as ledger:
        counts = ledger.counts()
        assert counts.adds_up
        assert counts.recorded == recorded + len(asked)
        reasons = [row.drop_reason for row in ledger.turns(len(asked))]
        # One that was over when its connection went is whole, though its client did not hear the end.
        assert reasons.count(DropReason.ABORTED) <= sum(how != "complete" for how in ended)
        assert DropReason.FAILED not in reasons


def test_started_again_it_goes_on_where_it_stopped(live: Live) -> None:
    with live.ledger() as ledger:
        before, version = ledger.counts(), ledger.current_version()
    assert version is not None
    live.start()
    try:
        status = live.wait_for(lambda s: s["replicas"] and all(r["version"] >= version.version for r in s["replicas"]))
        assert status["turns"]["recorded"] == before.recorded
        assert status["turns"]["by_state"].get("trained", 0) >= before.by_state.get(TurnState.TRAINED, 0)
        time.sleep(1)
        assert live.status()["version"] >= version.version
    finally:
        assert live.stop() == []
