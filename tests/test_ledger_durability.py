"""What was acknowledged is there, whatever happened to the process; what was not is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from clawrl.ledger import IllegalMove, Ledger, LedgerFileError, VersionRefused
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.moves import move
from clawrl.ledger.states import JUDGED
from clawrl.messages import PolicyVersion, TurnId, TurnState
from tests.ledger_kit import ask, open_ledger, queue, reply, say, user, verdict

ROOT = Path(__file__).parents[1]

WRITER = """
import sys
from pathlib import Path
from tests.ledger_kit import ask, open_ledger, reply, say, user, verdict
ledger = open_ledger(Path(sys.argv[1]))
ledger.restored("run", 0)
for i in range(1_000_000):
    names = [f"t{i}-{j}" for j in range(3)]
    with ledger.transaction():
        for name in names:
            say(ledger, name, user(name), "answer", session=name)
            ledger.arrive(ask(name + "n", user(name) + reply("answer") + user("ok"), session=name))
            ledger.judged(verdict(name))
    step = i + 1
    lease = ledger.lease("run", step, 2, now=0.0, timeout_s=1e9)
    assert ledger.confirm(lease.lease_id, "run", 1.0)
    ledger.applied(lease.lease_id, "run", {})
    if step % 3 == 0:
        ledger.checkpointed("run", step)
    sys.stdout.write(" ".join(names) + f" {step} {step - step % 3}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("after", [1, 17, 60])
def test_a_process_killed_while_writing_loses_nothing_that_it_acknowledged(tmp_path: Path, after: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(after)]
    os.kill(process.pid, signal.SIGKILL)
    lines += [line for line in process.stdout if line.endswith("\n")]
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    ledger = open_ledger(tmp_path)
    acknowledged = [name for line in lines for name in line.split()[:3]]
    assert len(acknowledged) >= 3 * after
    step, checkpoint = (int(word) for word in lines[-1].split()[3:])
    for name in acknowledged:
        turn = ledger.turn(TurnId(name))
        assert turn is not None and turn.response_text == "answer"
        assert ledger.judgement(TurnId(name)) == verdict(name)
    assert max(row.step for row in ledger.steps()) >= step
    assert ledger.counts().adds_up
    assert ledger.counts().by_state[TurnState.TRAINED] >= 2 * checkpoint if checkpoint else True
    assert ledger._db.scalar("PRAGMA integrity_check") == "ok"


def crash_image(source: Path, target: Path) -> None:
    """The files as a killed process leaves them: copied while the connection is open, perhaps mid-transaction."""
    target.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def test_a_crash_inside_a_batch_leaves_none_of_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "live")
    say(ledger, "before", user("hi"), "x")
    with ledger.transaction():
        say(ledger, "during", user("hi"), "x")
        crash_image(tmp_path / "live", tmp_path / "during")
    crash_image(tmp_path / "live", tmp_path / "after")
    during, after = open_ledger(tmp_path / "during"), open_ledger(tmp_path / "after")
    assert (during.state(TurnId("before")), during.state(TurnId("during"))) == (TurnState.AWAITING_NEXT, None)
    assert during.counts().recorded == 1
    assert after.state(TurnId("during")) is TurnState.AWAITING_NEXT


def test_an_error_inside_a_batch_undoes_the_batch(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(RuntimeError, match="caller"), ledger.transaction():
        say(ledger, "a", user("hi"), "x")
        raise RuntimeError("the caller's own mistake")
    assert ledger.counts().recorded == 0
    say(ledger, "b", user("hi"), "x")
    assert ledger.counts().recorded == 1


def test_a_refused_operation_inside_a_batch_undoes_only_itself(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.commit_version(PolicyVersion(version=3, step=1, snapshot="s", digest="d", published_at=0.0))
    with ledger.transaction():
        say(ledger, "a", user("hi"), "x")
        with pytest.raises(VersionRefused):
            ledger.commit_version(PolicyVersion(version=2, step=1, snapshot="s", digest="d", published_at=0.0))
        with pytest.raises(IllegalMove), ledger.transaction():
            say(ledger, "half", user("hi"), "x")
            move(ledger._db, TurnId("a"), JUDGED)
        say(ledger, "b", user("hi"), "x")
    assert [row.turn_id for row in ledger.turns()] == ["b", "a"]
    assert ledger.counts().adds_up


def test_a_batch_whose_transaction_was_lost_underneath_does_not_pretend(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(LedgerFileError), ledger.transaction():
        say(ledger, "a", user("hi"), "x")
        ledger._db.execute("ROLLBACK")
        with pytest.raises(LedgerFileError):
            say(ledger, "b", user("hi"), "x")
    assert ledger.counts().recorded == 0


def test_one_batch_is_one_commit(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    seen: list[str] = []
    ledger._db.trace(seen.append)
    with ledger.transaction():
        queue(ledger, "a", "b")
    assert seen.count("COMMIT") == 1
    assert seen[-1] == "COMMIT"


def test_evidence_and_its_consequence_are_one_commit(tmp_path: Path) -> None:
    """Crash at every statement of a follow-up: the parent has evidence exactly if it is being judged."""
    live = open_ledger(tmp_path / "live")
    say(live, "a", user("hi"), "x", session="s")
    images: list[Path] = []

    def photograph(statement: str) -> None:
        images.append(tmp_path / f"image{len(images)}")
        crash_image(tmp_path / "live", images[-1])

    live._db.trace(photograph)
    live.arrive(ask("b", user("hi") + reply("x") + user("y"), session="s"))
    live._db.trace(None)
    crash_image(tmp_path / "live", tmp_path / "last")
    assert len(images) > 5
    for image in [*images, tmp_path / "last"]:
        ledger = open_ledger(image)
        judging = ledger.state(TurnId("a")) is TurnState.JUDGING
        assert judging == (ledger.judge_request(TurnId("a")) is not None)
        again = ledger.arrive(ask("b", user("hi") + reply("x") + user("y"), session="s"))
        assert (again.to_judge is None) == judging
        assert [case.turn_id for case in ledger.awaiting_judgement()] == ["a"]


def test_a_ledger_of_another_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(LedgerFileError, match=r"ledger format 99.*move the file away"):
        Ledger(tmp_path / "ledger.db", LedgerConfig())


def test_another_thread_may_take_over_the_connection(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ledger = open_ledger(tmp_path)
    for i in range(3):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(say, ledger, f"t{i}", user("hi"), "x").result()
    assert ledger.counts().recorded == 3


READER = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM turns').fetchone()[0])"


def test_who_looks_into_the_file_and_leaves_takes_nothing_of_what_is_written_later(tmp_path: Path) -> None:
    """Also after the ledger was synced for a checkpoint: closing a handle of a file takes a process's locks on it."""

    file = tmp_path / "ledger.db"

    def seen_by_another() -> int:
        ran = subprocess.run([sys.executable, "-c", READER, str(file)], capture_output=True, text=True, check=True)
        return int(ran.stdout)

    with open_ledger(tmp_path) as ledger:
        ledger.restored("run", 0)
        for number in range(3):
            say(ledger, f"t{number}", user("hello"), "answer", session="s")
            ledger.checkpointing("run", 0)
            assert seen_by_another() == number + 1
