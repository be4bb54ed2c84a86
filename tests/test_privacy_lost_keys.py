"""Rows whose key is gone: after a backup was put back they count as forgotten, and older keys delete nothing."""

from __future__ import annotations

import logging
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from clawrl.cli import app
from clawrl.ledger import Ledger, LedgerFileError
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, TurnId, TurnState
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from clawrl.privacy.keys import KeyStore
from clawrl.privacy.opening import open_keys, open_ledger
from tests.ledger_kit import ids, judge, queue, rows, user
from tests.live import tiny_deployment
from tests.privacy_kit import SECRET, opened, peopled, said
from tests.test_privacy_hints import SOURCE, TAUGHT, hinting, taught_with_hints_of
from tests.test_privacy_sealing import of_an_earlier_release


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def forgotten_and_restored(state: Path, backup: Path, keys: KeyStore, *, back: bool, encrypt: bool) -> None:
    """Ann is forgotten, may come back, and then the ledger is put back as it was before."""
    shutil.copytree(state, backup)
    with opened(state, keys, encrypt=encrypt) as ledger:
        run_steps(ledger, forget(Wanted(owner="ann")))
        if back:
            ledger.record(said("again", user("hello"), "hi", session="s", at=9e9))
    shutil.rmtree(state)
    shutil.copytree(backup, state)


def works_for_bob(ledger: Ledger) -> None:
    assert [case.turn_id for case in ledger.awaiting_judgement()] == ["bob-judging"]
    assert judge(ledger, "bob-judging")
    lent = ledger.lease("run", 3, 10, now=0.0, timeout_s=60.0, minimum=1)
    assert sorted(ids(lent)) == ["bob-judging", "bob-lent", "bob-queued"]
    assert {row.owner for row in ledger.find_turns(TurnFilter()).rows} == {"bob", "forgotten"}
    for row in ledger.turns(100):
        turn = ledger.turn(row.turn_id)
        assert turn is not None and (row.owner == "bob" or turn.response_text == "")
    assert ledger.counts().adds_up and ledger.counts().recorded == 12


def all_there(ledger: Ledger) -> None:
    assert {row.owner for row in ledger.turns(100)} == {"ann", "bob"}
    assert len(ledger.awaiting_judgement()) == 2 and ledger.counts().adds_up
    assert all(ledger.turn(row.turn_id).response_text for row in ledger.turns(100))  # type: ignore[union-attr]


@pytest.mark.parametrize("encrypt", [True, False], ids=["sealed", "plain"])
def test_a_backup_put_back_after_somebody_was_forgotten_goes_on_without_them(
    state: Path, tmp_path: Path, encrypt: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys, encrypt=encrypt)
    shutil.copytree(state, tmp_path / "backup")
    with opened(state, keys, encrypt=encrypt) as ledger:
        run_steps(ledger, forget(Wanted(owner="ann")))
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    with caplog.at_level(logging.WARNING), opened(state, KeyStore(keys.folder), encrypt=encrypt) as ledger:
        works_for_bob(ledger)
        trained = ledger.turn(TurnId("ann-trained"))
        assert trained is not None and trained.arrival.owner == "forgotten"
        assert ledger.state(TurnId("ann-trained")) is TurnState.TRAINED, "the step's history stays whole"
        assert "be brief" not in ledger.known_hints("ann", None, 9) and rows(ledger, "trained_on") == 0
        moved = ledger.transitions(TurnId("ann-queued"))
        assert moved[-1].detail == "forgotten the key of its owner is gone"
    (line,) = [record.getMessage() for record in caplog.records if "count as forgotten" in record.getMessage()]
    assert "ann-queued" in line and SECRET not in line
    assert KeyStore(keys.folder).existing("ann") is None
    with opened(state, KeyStore(keys.folder), encrypt=encrypt) as ledger:
        assert ledger.counts().adds_up


@pytest.mark.parametrize("encrypt", [True, False], ids=["sealed", "plain"])
def test_so_it_does_where_they_have_come_back_meanwhile(state: Path, tmp_path: Path, encrypt: bool) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys, encrypt=encrypt)
    forgotten_and_restored(state, tmp_path / "backup", keys, back=True, encrypt=encrypt)
    with opened(state, KeyStore(keys.folder), encrypt=encrypt) as ledger:
        works_for_bob(ledger)
        ledger.record(said("now", user("hello"), "hi", session="s", at=9e9))
        assert ledger.turn(TurnId("now")).response_text == "hi"  # type: ignore[union-attr]
        assert ledger.known_hints("ann", None, 9) == ()
    # What they say under the key that they have now is there after every later start, and so it is once more.
    with opened(state, KeyStore(keys.folder), encrypt=encrypt) as ledger:
        assert ledger.turn(TurnId("now")).response_text == "hi"  # type: ignore[union-attr]
        run_steps(ledger, forget(Wanted(owner="ann")))
        assert rows(ledger, "key_tags") == 1
        ledger.record(said("later", user("hello"), "hi", session="s", at=9e10))
    with opened(state, KeyStore(keys.folder), encrypt=encrypt) as ledger:
        assert ledger.turn(TurnId("later")).response_text == "hi"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("back", "encrypt"),
    [(False, True), (False, False), (True, True), (True, False)],
    ids=["gone, sealed", "gone, plain", "back again, sealed", "back again, plain"],
)
def test_so_it_does_where_they_were_taught_by_hints_of_their_own(
    state: Path, tmp_path: Path, back: bool, encrypt: bool
) -> None:
    keys = open_keys(state, PrivacyConfig())
    with opened(state, keys, encrypt=encrypt) as ledger:
        taught_with_hints_of(ledger, SOURCE)
        queue(ledger, "bob", owner="bob")
    forgotten_and_restored(state, tmp_path / "backup", keys, back=back, encrypt=encrypt)
    with opened(state, KeyStore(keys.folder), encrypt=encrypt) as ledger:
        assert ledger.state(TAUGHT) is TurnState.DROPPED and ledger.state(TurnId("bob")) is TurnState.QUEUED
        assert ledger.counts().dropped == {DropReason.FORGOTTEN: 2} and ledger.counts().adds_up


def test_a_hint_that_nobody_sealed_goes_with_the_key_that_it_was_known_by(state: Path, tmp_path: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    with opened(state, keys, encrypt=False) as ledger:
        hinting(ledger, SOURCE)
        queue(ledger, "bob", owner="bob")
    forgotten_and_restored(state, tmp_path / "backup", keys, back=True, encrypt=False)
    with opened(state, KeyStore(keys.folder), encrypt=False) as ledger:
        assert ledger.known_hints("ann", None, 9) == () and rows(ledger, "hints") == 1
        assert ledger.known_hints("bob", None, 9) == ("be brief",)


def older_keys(state: Path, tmp_path: Path) -> KeyStore:
    """An older copy of the keys was put back, in which ann has none yet; returns the newer ones."""
    first = open_keys(state, PrivacyConfig())
    first.key("bob")
    shutil.copytree(first.folder, tmp_path / "older")
    peopled(state, first)
    first.folder.rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "older", first.folder)
    return KeyStore(tmp_path / "newer")


def branched_keys(state: Path, tmp_path: Path) -> KeyStore:
    """As above, and then others were made with it."""
    newer = older_keys(state, tmp_path)
    there = open_keys(state, PrivacyConfig())
    for number in range(5):
        there.key(f"somebody {number}")
    return newer


def no_history(state: Path, tmp_path: Path) -> KeyStore:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    shutil.copytree(keys.folder, tmp_path / "newer")
    (keys.folder / "history").unlink()
    return KeyStore(tmp_path / "newer")


@pytest.mark.parametrize("lose", [older_keys, branched_keys, no_history])
def test_older_keys_are_refused_and_nothing_is_deleted(
    state: Path, tmp_path: Path, lose: Callable[[Path, Path], KeyStore]
) -> None:
    newer = lose(state, tmp_path)
    with pytest.raises(LedgerFileError, match=r"written with newer keys.*--lost-keys"):
        opened(state, open_keys(state, PrivacyConfig()))
    folder = open_keys(state, PrivacyConfig()).folder
    shutil.rmtree(folder)
    shutil.copytree(newer.folder, folder)
    with opened(state, open_keys(state, PrivacyConfig())) as ledger:
        all_there(ledger)


def test_the_keys_of_another_deployment_are_refused_and_nothing_is_deleted(state: Path, tmp_path: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    with pytest.raises(LedgerFileError, match=r"privacy\.keys_dir"):
        opened(state, KeyStore(tmp_path / "others"))
    with opened(state, KeyStore(keys.folder)) as ledger:
        all_there(ledger)


def test_where_newer_keys_are_lost_for_good_a_command_deletes_what_they_opened(state: Path, tmp_path: Path) -> None:
    older_keys(state, tmp_path)
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(tiny_deployment(tmp_path, 1, state_dir=str(state))))
    assert CliRunner().invoke(app, ["forget", "--lost-keys", "--yes"]).exit_code == 1
    named = ["forget", "--deployment", str(file), "--yes"]
    refused = CliRunner().invoke(app, [*named, "--user", "ann"])
    assert refused.exit_code == 1 and "put back the newest copy" in refused.output
    done = CliRunner().invoke(app, [*named, "--lost-keys"])
    assert done.exit_code == 0, done.output
    with opened(state, open_keys(state, PrivacyConfig())) as ledger:
        works_for_bob(ledger)


def test_what_lies_there_in_the_open_is_no_loss_with_older_keys(state: Path, tmp_path: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys, encrypt=False)
    shutil.copytree(keys.folder, tmp_path / "older")
    with opened(state, keys, encrypt=False) as ledger:
        run_steps(ledger, forget(Wanted(owner="ann")))
        ledger.record(said("again", user("hello"), "hi", session="s", at=9e9))
    shutil.rmtree(keys.folder)
    shutil.copytree(tmp_path / "older", keys.folder)
    with pytest.raises(LedgerFileError, match="newer keys"):
        opened(state, KeyStore(keys.folder), encrypt=False)
    for _ in range(2):
        store, plain = KeyStore(keys.folder), PrivacyConfig(encrypt=False)
        with open_ledger(state, LedgerConfig(), plain, keys=store, accept_loss=True) as ledger:
            assert ledger.turn(TurnId("again")).response_text == "hi"  # type: ignore[union-attr]
        # Every row is looked at again.
        store.key(f"cora {len(store.owners())}")


def test_a_key_that_was_made_for_a_row_that_a_crash_took_away_is_no_loss(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    keys.key("carol")
    with opened(state, KeyStore(keys.folder)) as ledger:
        all_there(ledger)


def test_who_reads_beside_the_writer_disturbs_nobody(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    with opened(state, keys) as writer:
        for number in range(3):
            with opened(state, KeyStore(keys.folder)) as reader:
                all_there(reader)
                writer.record(said(f"c{number}", user("x"), "y", owner=f"carol {number}"), DropReason.GREEDY)
                assert reader.turn(TurnId(f"c{number}")) is not None
            run_steps(writer, forget(Wanted(owner=f"carol {number}")))


# The note of the newest key.


def are_refused(state: Path, keys: KeyStore, older: Path) -> None:
    shutil.rmtree(keys.folder)
    shutil.copytree(older, keys.folder)
    with pytest.raises(LedgerFileError, match="written with newer keys"):
        opened(state, KeyStore(keys.folder))


class FullDisk:
    """A connection whose next commit fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._full = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self._full:
            self._full = False
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.execute(sql, *values)


def test_older_keys_are_refused_although_the_commit_with_the_first_note_failed(state: Path, tmp_path: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    with opened(state, keys) as ledger:
        queue(ledger, "bob", owner="bob")
        shutil.copytree(keys.folder, tmp_path / "older")
        ledger._db._connection = FullDisk(ledger._db._connection)  # type: ignore[assignment]
        with pytest.raises(sqlite3.OperationalError, match="full"):
            ledger.record(said("a", user("hi"), "x"))
        assert ledger.record(said("a", user("hi"), "x")).new
        assert ledger._db.scalar("SELECT mark FROM keys_seen") == keys.newest_mark()
    are_refused(state, keys, tmp_path / "older")


def test_so_are_those_from_before_a_ledger_of_an_earlier_release_was_sealed(state: Path, tmp_path: Path) -> None:
    of_an_earlier_release(state / "ledger.sqlite")
    keys = open_keys(state, PrivacyConfig())
    shutil.copytree(keys.folder, tmp_path / "older")
    with opened(state, keys) as ledger:
        assert ledger._db.scalar("SELECT mark FROM keys_seen") == keys.newest_mark() != ""
    are_refused(state, keys, tmp_path / "older")


@contextmanager
def room_for(path: Path, more: int) -> Iterator[None]:
    """No file of this process grows beyond the size of this one and a little more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_the_disk_is_full_in_the_middle_of_a_mark_the_request_fails_and_the_restart_works(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    history = keys.folder / "history"
    with opened(state, keys) as ledger:
        queue(ledger, "bob", owner="bob")
        with history.open("ab") as file:
            file.write(b"\n" * 2_000_000)  # longer than any other file
        with room_for(history, 7), pytest.raises(OSError, match="File too large"):
            ledger.record(said("a", user("hi"), "x"))
        assert ledger.record(said("b", user("hi"), "x", owner="bob")).new
    with opened(state, KeyStore(keys.folder)) as ledger:
        assert ledger.counts().recorded == 2
        assert ledger.record(said("a", user("hi"), "x")).new
    with opened(state, KeyStore(keys.folder)) as ledger:
        assert ledger.turn(TurnId("a")).response_text == "x"  # type: ignore[union-attr]
