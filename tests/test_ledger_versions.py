"""Version numbers only grow."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.ledger import VersionRefused
from clawrl.messages import PolicyVersion
from tests.ledger_kit import Clock, open_ledger


def version(number: int, step: int = 1) -> PolicyVersion:
    return PolicyVersion(
        version=number, step=step, snapshot=f"/snap/{number}", digest=f"d{number}", published_at=5.0, stats={"kl": 0.5}
    )


def test_a_new_ledger_has_no_version_and_may_begin_with_zero(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert ledger.current_version() is None
    assert ledger.commit_version(version(0, step=0))
    assert ledger.current_version() == version(0, step=0)
    assert ledger.next_version() == 1


def test_only_a_newer_version_is_accepted_even_if_its_step_is_older(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.commit_version(version(5, step=9))
    for number in (4, 5, -1):
        with pytest.raises(VersionRefused, match="not newer"):
            ledger.commit_version(version(number, step=10))
    assert ledger.commit_version(version(6, step=2)), "weights may go back in time, numbers never"
    assert ledger.current_version() == version(6, step=2)


def test_committing_the_same_version_twice_is_no_error_and_no_second_version(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert ledger.commit_version(version(1))
    assert not ledger.commit_version(version(1))
    with pytest.raises(VersionRefused):
        ledger.commit_version(replace(version(1), digest="other weights"))
    assert ledger.versions() == [version(1)]


def test_a_number_is_never_handed_out_twice_even_if_nothing_came_of_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.commit_version(version(3))
    assert ledger.next_version() == 4
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.next_version() == 5
    assert ledger.commit_version(version(5))
    assert ledger.next_version() == 6


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in (1, 2, 7):
        ledger.commit_version(version(number))
    assert ledger.versions(2) == [version(7), version(2)]
    assert (ledger.version(2), ledger.version(3)) == (version(2), None)


def test_the_good_versions_are_the_newest_that_were_called_good(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in (1, 2, 3):
        ledger.commit_version(version(number))
    assert ledger.good_versions() == []
    ledger.mark_good(2)
    ledger.mark_good(1)
    assert ledger.good_versions() == [version(1)], "what was thought of newer ones does not stand"
    ledger.mark_good(2)
    ledger.close()
    assert open_ledger(tmp_path).good_versions() == [version(2), version(1)]


def test_a_version_that_nobody_knows_can_be_neither_good_nor_rolled_back_to(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(VersionRefused, match="version 9 is not known"):
        ledger.mark_good(9)
    with pytest.raises(VersionRefused, match=r"roll back to version 9.*none is marked good"):
        ledger.roll_back(9)
    ledger.commit_version(version(1))
    ledger.mark_good(1)
    with pytest.raises(VersionRefused, match="the newest good one is 1"):
        ledger.roll_back(9)
    assert ledger.versions() == [version(1)]
    assert ledger.next_version() == 2, "a refusal takes no number"


def test_rolling_back_publishes_the_old_weights_under_a_new_number(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock)
    for number in (1, 2, 3):
        ledger.commit_version(version(number, step=10 * number))
    assert ledger.next_version() == 4, "a publish is on its way"
    back = ledger.roll_back(2)
    assert back == PolicyVersion(
        version=5,
        step=20,
        snapshot="/snap/2",
        digest="d2",
        published_at=back.published_at,
        stats={"rolled_back_to": 2, "rolled_back_from": 3},
    )
    assert abs(back.published_at - clock.now) < 1.0
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.current_version() == back
    assert ledger.good_versions() == [back]
    with pytest.raises(VersionRefused, match="not newer"):
        ledger.commit_version(version(4))


def test_rolling_back_twice_to_the_same_version_is_one_roll_back(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in (1, 2):
        ledger.commit_version(version(number))
    back = ledger.roll_back(1)
    assert ledger.roll_back(1) == back
    assert len(ledger.versions()) == 3
    ledger.commit_version(version(4))
    assert ledger.roll_back(1).version == 5, "the weights moved on since"


def test_the_newest_roll_back_is_found_whatever_came_after_it_and_over_a_restart(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in (0, 1, 2):
        ledger.commit_version(version(number))
    assert ledger.newest_rollback() is None
    first = ledger.roll_back(1)
    ledger.commit_version(version(7))
    assert ledger.newest_rollback() == first
    second = ledger.roll_back(0)
    ledger.close()
    assert open_ledger(tmp_path).newest_rollback() == second


def test_the_newest_two_good_versions_are_kept_however_old_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.ledger.upkeep.KEEP_HISTORY", 2)
    ledger = open_ledger(tmp_path)
    for number in range(8):
        ledger.commit_version(version(number))
    for number in (1, 2, 4):
        ledger.mark_good(number)
    ledger.prune()
    assert [kept.version for kept in ledger.versions()] == [7, 6, 4, 2, 0], "the model as it came is kept too"
    assert ledger.good_versions() == [version(4), version(2)]


@pytest.mark.parametrize("seed", range(3))
def test_version_numbers_grow_through_any_row_of_publishes_failures_rollbacks_and_restarts(
    tmp_path: Path, seed: int
) -> None:
    """A trainer that was restarted publishes an older step; a publish that failed may have shown its number."""
    chance, ledger = random.Random(seed), open_ledger(tmp_path)
    shown, given, step = [], [0], 0
    ledger.commit_version(version(0, step=0))
    for number in range(60):
        match chance.choice(["publish", "publish", "fail", "roll back", "new trainer", "new coordinator", "late"]):
            case "publish" | "fail" as outcome:
                given.append(ledger.next_version())
                assert given[-1] > max(given[:-1])
                step += 1
                if outcome == "publish":
                    assert ledger.commit_version(version(given[-1], step=step))
            case "roll back":
                given.append(ledger.roll_back(chance.choice(ledger.versions()).version).version)
            case "new trainer":
                step = chance.randint(0, step)
                ledger.restored(f"run {number}", step)
            case "new coordinator":
                ledger.close()
                ledger = open_ledger(tmp_path)
            case "late":
                if given[-1] < max(given):
                    with pytest.raises(VersionRefused):
                        ledger.commit_version(version(given[-1], step=step))
        current = ledger.current_version()
        assert current is not None
        if not shown or current.version != shown[-1]:
            shown.append(current.version)
    assert shown == sorted(set(shown)) and len(shown) > 10
