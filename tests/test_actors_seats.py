"""Which of the trainer's seats are held by nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clawrl.actors.seats import Reserved, orphaned

SEAT = {"CPU": 0.5, "rank": 1.0}
ORPHAN = Reserved(group_id=b"a", bundles=(SEAT, SEAT), is_detached=False, is_removed=False, maker_is_dead=True)


def test_a_group_of_the_trainers_form_whose_maker_is_dead_is_held_by_nobody() -> None:
    assert orphaned([ORPHAN], 2, SEAT) == [ORPHAN]
    typed = replace(ORPHAN, bundles=({**SEAT, "accelerator_type:H100": 0.001},) * 2)
    assert orphaned([typed], 2, SEAT | {"GPU": 0.0}) == [typed]


@pytest.mark.parametrize(
    "change",
    [
        {"maker_is_dead": False},
        {"is_detached": True},
        {"is_removed": True},
        {"bundles": (SEAT,)},
        {"bundles": (SEAT, {"CPU": 0.5})},
        {"bundles": (SEAT, {"CPU": 0.5, "rank": 2.0})},
    ],
    ids=str,
)
def test_any_other_group_is_left_alone(change: dict[str, object]) -> None:
    assert orphaned([replace(ORPHAN, **change)], 2, SEAT) == []  # type: ignore[arg-type]
