"""A trainer's rank that falls asleep while it starts, which Ray Train waits for without limit."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.live import Live, free_port, tiny_deployment
from tests.traffic import Traffic

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(400)
def test_a_rank_that_falls_asleep_while_it_starts_is_replaced_and_training_begins(tiny_folder: Path) -> None:
    file = tiny_deployment(tiny_folder, free_port(), trainer__training__start_timeout_s=25.0)
    asleep: list[int] = []
    live = Live(file)

    def put_to_sleep() -> None:
        while not asleep:
            if live.process is not None and (born := live.pids("RayTrainWorker")):
                os.kill(born[0], signal.SIGSTOP)
                asleep.append(born[0])
            time.sleep(0.02)

    threading.Thread(target=put_to_sleep, daemon=True).start()
    with live:
        with Traffic(live, users=2, pause_s=0.3):
            live.wait_for(lambda _: bool(asleep), timeout_s=60, what="a rank is put to sleep")
            status = live.wait_for(lambda s: s["version"] >= 1, timeout_s=180, what="training has begun")
        assert status["trainer"]["state"] == "running"
        assert asleep[0] not in live.pids("RayTrainWorker")
        assert not psutil.pid_exists(asleep[0]), "who is woken up must not find another on its seat"
        assert "had not begun 25 s after their start" in live.log.read_text(errors="replace") + _logs(live)


def _logs(live: Live) -> str:
    return "\n".join(file.read_text(errors="replace") for file in live.folder.glob("session_*/logs/worker-*"))
