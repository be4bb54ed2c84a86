"""Rows that turn out to be unreadable in use, and keys that a disk spoiled: out of the way of everybody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from clawrl.ledger.codec import SEALED_MARK
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, TurnId
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from clawrl.privacy.keys import KeyDamaged, KeyStore
from clawrl.privacy.opening import open_keys
from tests.ledger_kit import ids, user
from tests.privacy_kit import IDS, SECRET, alter, found_in, opened, peopled, said


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_rows_that_a_disk_spoiled_are_out_of_the_way_with_a_reason(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    with opened(state, keys) as ledger:
        for turn_id in ("ann-judging", "ann-queued", "ann-lent"):
            alter(ledger, "payloads", "response_text", turn_id)
        ledger._db.execute("UPDATE judgements SET opinion = ? WHERE turn_id = 'ann-trained'", SEALED_MARK + bytes(40))
        assert [case.turn_id for case in ledger.awaiting_judgement()] == ["bob-judging"]
        assert ids(ledger.lease("run", 3, 2, now=0.0, timeout_s=60.0)) == ["bob-lent"], "asked again"
        ledger.restored("again", 2)
        assert ids(ledger.lease("again", 3, 9, now=0.0, timeout_s=60.0, minimum=1)) == ["bob-lent", "bob-queued"]
        assert len(ledger.find_turns(TurnFilter()).rows) == 12
        reasons = {row.turn_id: row.drop_reason for row in ledger.turns(100)}
        assert {reasons[name] for name in ("ann-judging", "ann-queued", "ann-lent")} == {DropReason.MALFORMED}
        assert ledger.counts().adds_up


def test_rows_whose_key_goes_under_an_open_ledger_count_as_forgotten(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    with opened(state, keys) as ledger:
        keys.shred("ann")
        assert [case.turn_id for case in ledger.awaiting_judgement()] == ["bob-judging"]
        assert ids(ledger.lease("run", 3, 2, now=0.0, timeout_s=60.0)) == ["bob-lent"]
        ledger.restored("again", 2)
        assert ids(ledger.lease("again", 3, 9, now=0.0, timeout_s=60.0, minimum=1)) == ["bob-lent", "bob-queued"]
        assert ledger.find_turns(TurnFilter()).rows
        assert ledger.counts().dropped[DropReason.FORGOTTEN] == 3 and ledger.counts().adds_up
    assert found_in(state, SECRET, IDS) == []


def test_whose_key_a_disk_spoiled_waits_for_it_and_nobody_else_does(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    path = keys._path("ann")
    whole = path.read_bytes()
    path.write_bytes(bytes(50))
    # As after a start with a change to the keys that the ledger has not seen, when every row is looked at.
    keys.key("cora")
    with opened(state, KeyStore(keys.folder)) as ledger:
        assert ledger.counts().dropped == {DropReason.GREEDY: 2}, "nothing is forgotten"
        with pytest.raises(KeyDamaged):
            ledger.record(said("now", user("hi"), "x", session="s"))
        assert ledger.record(said("b", user("hi"), "x", owner="bob", session="s")).new
        assert [case.turn_id for case in ledger.awaiting_judgement()] == ["bob-judging"]
        assert ids(ledger.lease("run", 3, 2, now=0.0, timeout_s=60.0)) == ["bob-lent"]
        assert len(ledger.find_turns(TurnFilter()).rows) == 13
        assert ledger.transitions(TurnId("ann-judging"))[-1].detail == "malformed the key of its owner is damaged"
        assert ledger.counts().adds_up
    path.write_bytes(whole)
    with opened(state, KeyStore(keys.folder)) as ledger:
        assert ledger.turn(TurnId("ann-judging")).response_text  # type: ignore[union-attr]
        assert ledger.record(said("now", user("hi"), "x", session="s")).new


def test_whose_key_a_disk_spoiled_can_be_forgotten(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    peopled(state, keys)
    keys._path("ann").write_bytes(bytes(50))
    store = KeyStore(keys.folder)
    with opened(state, store) as ledger:
        report = run_steps(ledger, forget(Wanted(owner="ann")))
        assert (report["turns"], report["keys_deleted"], report["steps"]) == (6, 1, [1])
        assert ledger.record(said("again", user("hi"), "x", at=9e9)).new
        assert ledger.counts().adds_up
    assert store.existing("ann") is not None
