"""Nothing that was said is in the bytes of the state folder, and all of it can be read with the keys."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clawrl.ledger import Ledger, LedgerFileError
from clawrl.ledger.codec import Codec, SealedBlob
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.database import Database
from clawrl.ledger.journal import Journal, read
from clawrl.ledger.protecting import BLOBS, HASHES
from clawrl.messages import Message, TurnId, TurnState
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.keys import KeyStore, LentKeys, StoredKeys
from clawrl.privacy.opening import open_keys, open_ledger
from clawrl.privacy.vault import LedgerVault, SealingVault
from tests.ledger_kit import ask, opinion, reply, taught, user, verdict
from tests.privacy_kit import IDS, SECRET, found_in, opened, said

ROOT = Path(__file__).parents[1]
TALK = (*user("hi"), *reply(SECRET), *user(f"no, {SECRET}"))


def live(ledger: Ledger) -> None:
    """A conversation with everything that is ever stored of one."""
    ledger.record(said("a", user(f"where? {SECRET}"), SECRET, session="s"))
    talk = (*user(f"where? {SECRET}"), *reply(SECRET), *user(f"no, {SECRET}"))
    assert ledger.arrive(said("b", talk, "", session="s").arrival).to_judge is not None
    targets = replace(taught((SECRET,), tokens=len(IDS), top_k=1), topk_ids=np.asarray(IDS, np.int32).reshape(1, -1, 1))
    judgement = replace(verdict("a"), hints=(SECRET,), detail=SECRET)
    ledger.feedback(opinion("a", -1.0, SECRET))
    given = ledger.judge_request(TurnId("a"))
    assert given is not None and given.feedback is not None
    assert ledger.judged(replace(judgement, feedback=-1.0), None, targets, feedback_at=given.feedback.given_at)
    ledger.record(said("b", talk, SECRET, session="s", sampling=replace(said("x", TALK, "").sampling, stop=(SECRET,))))


def test_nothing_that_was_said_is_in_the_bytes_and_all_of_it_can_be_read(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    live(ledger)
    assert found_in(tmp_path, SECRET, IDS) == []
    turn = ledger.turn(TurnId("b"))
    assert turn is not None and turn.response_text == SECRET and turn.prompt_ids.tolist() == list(IDS)
    assert turn.parent == "a", "matched by its hashes"
    assert ledger.known_hints("ann", "s", 3) == (SECRET,)
    targets = ledger.targets(TurnId("a"))
    assert targets is not None and targets.topk_ids.ravel().tolist() == list(IDS)
    ledger.close()
    assert found_in(tmp_path, SECRET, IDS) == []


def test_the_search_finds_all_of_it_where_nothing_is_sealed(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", encrypt=False)
    live(ledger)
    assert {line.split(": ")[1] for line in found_in(tmp_path, SECRET, IDS)} >= {"text as utf-8", "ids as int32"}


def test_every_column_that_holds_text_is_sealed_and_no_other_one_holds_any(tmp_path: Path) -> None:
    opened(tmp_path / "plain", encrypt=False).close()
    ledger = opened(tmp_path / "plain", encrypt=False)
    live(ledger)
    ledger.close()
    connection = sqlite3.connect(tmp_path / "plain" / "ledger.sqlite")
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        private = {column for column in columns if column in BLOBS.get(table, ())}
        blobs = {row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[2] == "BLOB"}
        assert blobs == private, f"{table}: a BLOB is private, and what is private is a BLOB"
        for column in set(columns) - private:
            values = [str(row[0]) for row in connection.execute(f"SELECT {column} FROM {table}")]
            assert not any(SECRET in value for value in values), f"{table}.{column}"


def test_a_copy_of_the_state_folder_alone_cannot_be_read(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    live(ledger)
    ledger.close()
    shutil.copytree(tmp_path / "state", tmp_path / "elsewhere" / "state")
    with pytest.raises(LedgerFileError, match=r"was written with the keys.*privacy\.keys_dir"):
        opened(tmp_path / "elsewhere" / "state")
    with (
        Ledger(tmp_path / "elsewhere" / "state" / "ledger.sqlite", LedgerConfig()) as plain,
        pytest.raises(SealedBlob, match="with its keys"),
    ):
        plain.turn(TurnId("a"))


def of_an_earlier_release(path: Path) -> None:
    """A ledger of format 3, with an open conversation."""
    with Ledger(path, LedgerConfig()) as ledger:
        live(ledger)
        ledger.record(said("open", user("hi"), SECRET, session="open"))
    connection = sqlite3.connect(path)
    for column in ("withheld", "forgotten"):
        connection.execute(f"ALTER TABLE turns DROP COLUMN {column}")
    for table in ("protection", "opted_out", "forgettings", "keys_seen", "trained_on"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("PRAGMA user_version=3")
    connection.commit()
    connection.close()


def test_a_ledger_of_an_earlier_release_is_sealed_when_it_is_opened_and_its_conversations_go_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    of_an_earlier_release(state / "ledger.sqlite")
    assert found_in(state, SECRET, IDS) != []
    ledger = opened(state)
    assert found_in(state, SECRET, IDS) == [], "also not in the pages that became free, nor in the log"
    turn = ledger.turn(TurnId("a"))
    assert turn is not None and turn.response_text == SECRET
    follows = (*user("hi"), *reply(SECRET), *user("thanks"))
    assert ledger.arrive(said("next", follows, "", session="open").arrival).to_judge is not None
    ledger.close()
    again = opened(state)
    assert again.state(TurnId("open")) is TurnState.JUDGING and again.counts().adds_up
    again.close()
    assert found_in(state, SECRET, IDS) == []


def test_a_crash_while_it_is_sealed_leaves_the_old_ledger_whole(tmp_path: Path) -> None:
    state = tmp_path / "state"
    of_an_earlier_release(state / "ledger.sqlite")
    keys = open_keys(state, PrivacyConfig())

    class Breaks(LedgerVault):
        sealed = 0

        def seal(self, owner: str, plain: bytes) -> bytes:
            self.sealed += 1
            if self.sealed > 7:
                raise RuntimeError("killed")
            return super().seal(owner, plain)

    with pytest.raises(sqlite3.OperationalError):
        Ledger(state / "ledger.sqlite", LedgerConfig(), vault=Breaks(keys))
    with Ledger(state / "ledger.sqlite", LedgerConfig()) as plain:
        turn = plain.turn(TurnId("a"))
        assert turn is not None and turn.response_text == SECRET
    ledger = opened(state, keys)
    assert ledger.turn(TurnId("a")) is not None
    assert found_in(state, SECRET, IDS) == []


def test_sealing_can_be_turned_off_and_on_and_everything_stays_readable(tmp_path: Path) -> None:
    for number, encrypt in enumerate([True, False, True]):
        ledger = opened(tmp_path / "state", encrypt=encrypt)
        ledger.record(said(f"t{number}", user(f"{number}"), SECRET))
        for earlier in range(number + 1):
            turn = ledger.turn(TurnId(f"t{earlier}"))
            assert turn is not None and turn.response_text == SECRET
        ledger.close()
        assert (found_in(tmp_path, SECRET, IDS) == []) == encrypt


def test_the_hashes_that_are_keyed_are_all_that_there_are(tmp_path: Path) -> None:
    database = Database(tmp_path / "l", Codec(LedgerVault(KeyStore(tmp_path / "k"))), lambda: 0.0)
    for table in ("arrivals", "turns", "hints", "payloads", "evidence", "judgements", "feedback", "targets"):
        columns = {row["name"] for row in database.rows(f"PRAGMA table_info({table})")}
        hashes = {column for column in columns if "hash" in column or column in ("segment", "digest")}
        assert hashes == set(HASHES.get(table, ())), table
    database.close()


WRITER = """
import sys
from pathlib import Path
from tests.privacy_kit import opened, said
from tests.ledger_kit import user
ledger = opened(Path(sys.argv[1]))
for i in range(100_000):
    # Every turn is of somebody new: the key and the row are of one moment.
    ledger.record(said(f"t{i}", user("hi"), f"answer {i}", owner=f"owner{i}"))
    sys.stdout.write(f"{i}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("after", [1, 40])
def test_what_was_acknowledged_before_a_kill_can_be_read_after_it(tmp_path: Path, after: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "state")], cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(after)]
    os.kill(process.pid, signal.SIGKILL)
    lines += [line for line in process.stdout if line.endswith("\n")]
    process.stdout.close()
    process.wait()
    ledger = opened(tmp_path / "state")
    for line in lines:
        turn = ledger.turn(TurnId(f"t{int(line)}"))
        assert turn is not None and turn.response_text == f"answer {int(line)}"
    assert ledger.counts().adds_up


def test_a_journal_is_sealed_by_the_replica_and_opened_by_the_coordinator(tmp_path: Path) -> None:
    own = StoredKeys.of(KeyStore(tmp_path / "keys"), "journal")
    lent = LentKeys()
    lent.lend({"ann": own.obtain("ann")})
    journal = Journal(tmp_path / "j" / "x.journal", Codec(SealingVault(lent)), limit_bytes=100_000)
    turn = said("t", user(SECRET), SECRET)
    journal.append(turn)
    assert found_in(tmp_path, SECRET, IDS) == []
    (kept,) = read(journal.path, Codec(SealingVault(own))).turns
    assert kept.response_text == SECRET and kept.arrival == turn.arrival
    assert [one.turn_id for one in journal.waiting()] == ["t"]


def test_one_who_only_looks_needs_no_rules_and_changes_nothing(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    live(ledger)
    with open_ledger(tmp_path / "state", LedgerConfig(), PrivacyConfig()) as other:
        turn = other.turn(TurnId("a"))
        assert turn is not None and turn.answer == Message(role="assistant", content=SECRET)
    assert ledger.arrive(ask("later", user("x"))).session
