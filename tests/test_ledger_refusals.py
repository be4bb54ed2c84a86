"""What a filter says of a turn is kept like what the turn says itself: sealed, bounded, and gone with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clawrl.ledger import Ledger
from clawrl.ledger.refusals import LONGEST
from clawrl.messages import DropReason, TurnId
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from tests.ledger_kit import rows, user
from tests.privacy_kit import PRIVATE_RULES, SECRET, found_in, opened, said

REFUSED = DropReason.REFUSED_BY_FILTER


def refused(ledger: Ledger, words: str, reason: DropReason = REFUSED, **changes: str) -> str:
    turn = said("t", user("hi"), changes.get("reply", "hello"))
    assert ledger.record(turn, reason, "mine:no", words).new
    life = ledger.life(TurnId("t"))
    assert life is not None
    return "" if life.text is None else life.text.refusal


def test_it_is_read_again_and_lies_sealed(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as ledger:
        assert refused(ledger, f"it says {SECRET}") == f"it says {SECRET}"
        assert found_in(tmp_path, SECRET) == []


def test_it_is_cut_off_where_it_is_long(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as ledger:
        kept = refused(ledger, "word " * 9_000)
        assert len(kept) == LONGEST and kept.endswith("...")


def test_of_another_reason_nothing_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as ledger:
        assert refused(ledger, "words", DropReason.TOO_SHORT) == "" and rows(ledger, "refusals") == 0


@pytest.mark.parametrize(
    ("reply", "words"),
    [("write to ann@example.org", "has an address"), ("write to ann at example.org", "ann@example.org")],
    ids=["in the turn", "in the words"],
)
def test_where_something_is_redacted_nothing_is_kept(tmp_path: Path, reply: str, words: str) -> None:
    with opened(tmp_path / "state", **PRIVATE_RULES) as ledger:
        assert refused(ledger, words, reply=reply) == "" and rows(ledger, "refusals") == 0


@pytest.mark.parametrize("how", ["forgotten", "expired", "pruned"])
def test_it_goes_with_the_turn(tmp_path: Path, how: str) -> None:
    with opened(tmp_path / "state") as ledger:
        refused(ledger, "words")
        assert rows(ledger, "refusals") == 1
        if how == "forgotten":
            run_steps(ledger, forget(Wanted(turn_id=TurnId("t"))))
        elif how == "expired":
            assert ledger.expire_text(9e12) == 1
        else:
            ledger._config = ledger._config.model_copy(update={"keep_finished_turns": 0})
            assert ledger.prune() == 1
        assert rows(ledger, "refusals") == 0
