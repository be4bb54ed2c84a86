"""Version numbers only grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.ledger import VersionRefused
from clawrl.messages import PolicyVersion
from tests.ledger_kit import open_ledger


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
