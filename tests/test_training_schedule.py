"""When a batch may be lent, as a function of one moment."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from clawrl.training.config import TrainingConfig
from clawrl.training.hours import parse_hours
from clawrl.training.schedule import (
    Decision,
    FullSchedule,
    IdleSchedule,
    Moment,
    Schedule,
    TimerSchedule,
    counted_until,
    may_train,
)

BERLIN = "Europe/Berlin"
NIGHT = IdleSchedule(hours="22:00-06:00", time_zone=BERLIN)


def at(clock: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(clock).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def decide(schedule: Schedule, *, ready: int, now: float = 0.0, last_request_at: float = 0.0) -> Decision:
    return may_train(schedule, 8, Moment(now=now, ready=ready, last_request_at=last_request_at))


def test_a_full_batch_may_leave_at_once_and_a_smaller_one_waits_for_what_it_lacks() -> None:
    assert decide(FullSchedule(), ready=8) == Decision(at_least=8)
    assert decide(FullSchedule(), ready=100) == Decision(at_least=8)
    assert decide(FullSchedule(), ready=5) == Decision(at_least=8, waits="for 3 more turns")
    assert decide(FullSchedule(), ready=7).waits == "for 1 more turn"


def test_a_round_takes_what_was_ready_when_it_began_and_the_rest_waits_for_the_next() -> None:
    hourly = TimerSchedule(every_s=3600, minimum=2)
    now = at("2026-03-03T14:20", "UTC")
    assert counted_until(hourly, now) == at("2026-03-03T14:00", "UTC")
    assert decide(hourly, ready=20, now=now) == Decision(at_least=2)
    assert decide(hourly, ready=2, now=now) == Decision(at_least=2)
    waiting = decide(hourly, ready=1, now=now)
    assert waiting.waits == "until the round at 15:00:00 UTC" and waiting.look_at == at("2026-03-03T15:00", "UTC")


def test_without_a_timer_every_queued_turn_counts() -> None:
    assert counted_until(FullSchedule(), 1234.5) == counted_until(NIGHT, 1234.5) == math.inf


@pytest.mark.parametrize(
    ("clock", "open_"),
    [
        ("21:59:59", False),
        ("22:00:00", True),
        ("23:59:59", True),
        ("00:00:00", True),
        ("05:59:59", True),
        ("06:00", False),
    ],
)
def test_hours_go_across_midnight_and_begin_and_end_to_the_second(clock: str, open_: bool) -> None:
    decision = decide(NIGHT, ready=8, now=at(f"2026-03-03T{clock}"))
    assert (decision.waits is None) is open_


def test_outside_its_hours_it_waits_until_they_begin_however_much_is_ready() -> None:
    decision = decide(NIGHT, ready=1000, now=at("2026-03-03T12:00"))
    assert decision.waits == "until 22:00 (Europe/Berlin)" and decision.look_at == at("2026-03-03T22:00")
    late = decide(IdleSchedule(hours="01:00-05:00", time_zone=BERLIN), ready=8, now=at("2026-03-03T12:00"))
    assert late.look_at == at("2026-03-04T01:00")


def test_within_its_hours_it_waits_for_the_smallest_batch() -> None:
    now = at("2026-03-03T23:00")
    assert decide(NIGHT, ready=5, now=now).waits == "for 3 more turns"
    small = NIGHT.model_copy(update={"minimum": 4})
    assert decide(small, ready=5, now=now) == Decision(at_least=4)
    assert decide(small, ready=3, now=now).waits == "for 1 more turn"


def test_quiet_begins_when_the_last_request_is_long_enough_ago() -> None:
    quiet = IdleSchedule(quiet_s=600)
    assert decide(quiet, ready=8, now=1600.0, last_request_at=1000.0) == Decision(at_least=8)
    noisy = decide(quiet, ready=8, now=1599.0, last_request_at=1000.0)
    assert noisy.look_at == 1600.0 and noisy.waits == "for 1 more seconds without a request"


def test_hours_and_quiet_must_both_hold() -> None:
    both = IdleSchedule(hours="22:00-06:00", time_zone=BERLIN, quiet_s=60)
    night, day = at("2026-03-03T23:00"), at("2026-03-03T12:00")
    assert decide(both, ready=8, now=night).waits is None
    assert "without a request" in str(decide(both, ready=8, now=night, last_request_at=night).waits)
    assert "until 22:00" in str(decide(both, ready=8, now=day).waits)


@pytest.mark.parametrize("day", ["2026-03-28", "2026-03-29", "2026-10-24", "2026-10-25"])
def test_the_wall_clock_rules_on_the_nights_on_which_it_is_put_forward_and_back(day: str) -> None:
    hours = parse_hours("22:00-06:00", BERLIN)
    noon = at(f"{day}T12:00")
    begins = hours.next_begin(noon)
    assert datetime.fromtimestamp(begins, ZoneInfo(BERLIN)).strftime("%F %R") == f"{day} 22:00"
    # Seven, eight or nine hours later, at six by the clock on the wall.
    minutes = next(m for m in range(6 * 60, 11 * 60) if not hours.contain(begins + 60 * m))
    end = datetime.fromtimestamp(begins + 60 * minutes, ZoneInfo(BERLIN))
    assert f"{end:%R}" == "06:00"
    assert minutes == 60 * {"2026-03-28": 7, "2026-10-24": 9}.get(day, 8)
    assert all(hours.contain(begins + 60 * m) for m in range(minutes))


def test_hours_that_the_clock_skips_begin_when_it_has_moved_on_or_on_the_next_day() -> None:
    skipped = parse_hours("02:00-03:00", BERLIN)
    assert skipped.next_begin(at("2026-03-28T12:00")) == at("2026-03-30T02:00")
    begins_inside = parse_hours("02:30-06:00", BERLIN)
    first = begins_inside.next_begin(at("2026-03-28T12:00"))
    assert at("2026-03-29T03:00") <= first < at("2026-03-29T06:00") and begins_inside.contain(first)


def test_an_hour_that_the_clock_shows_twice_is_open_twice() -> None:
    hours = parse_hours("02:00-03:00", BERLIN)
    assert hours.contain(at("2026-10-25T02:30", fold=0)) and hours.contain(at("2026-10-25T02:30", fold=1))
    assert not hours.contain(at("2026-10-25T03:00"))


def test_midnight_may_be_written_as_the_end_of_the_day() -> None:
    evening = parse_hours("20:00-24:00", "UTC")
    assert evening.contain(at("2026-03-03T23:59:59", "UTC")) and not evening.contain(at("2026-03-04T00:00", "UTC"))


@pytest.mark.parametrize(
    ("schedule", "error"),
    [
        ({"when": "sometimes"}, "'full', 'timer', 'idle'"),
        ({"when": "timer"}, r"schedule\.timer\.every_s\n  Field required"),
        ({"when": "timer", "every_s": 0}, "greater than 0"),
        ({"when": "timer", "every_s": 60, "minimum": 0}, "greater than or equal to 1"),
        ({"when": "timer", "every_s": 60, "minimum": 9}, "schedule.minimum 9 is more than batch_size 8; lower it"),
        ({"when": "full", "minimum": 4}, "minimum"),
        ({"when": "idle"}, r"when: idle needs hours \(with time_zone\), quiet_s, or both"),
        ({"when": "idle", "hours": "22:00-06:00"}, "hours need a time_zone, such as Europe/Berlin"),
        ({"when": "idle", "quiet_s": 60, "time_zone": BERLIN}, "time_zone belongs to hours"),
        ({"when": "idle", "hours": "22-6", "time_zone": BERLIN}, "'22-6' are not hours of a day; write them as 22"),
        ({"when": "idle", "hours": "22:00-26:00", "time_zone": BERLIN}, "name a time that no clock shows"),
        ({"when": "idle", "hours": "08:00-08:00", "time_zone": BERLIN}, "begin when they end; leave hours out"),
        ({"when": "idle", "hours": "22:00-06:00", "time_zone": "Berlin"}, "time_zone 'Berlin' is not known here"),
        ({"when": "idle", "hours": "22:00-06:00", "time_zone": "../etc"}, "is not known here"),
        ({"when": "idle", "hours": "22:00-06:00", "time_zone": "Europe"}, "is not known here"),
        ({"when": "idle", "quiet_s": 60, "minimum": 9}, "schedule.minimum 9 is more than batch_size 8"),
    ],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused_with_a_remedy(schedule: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        TrainingConfig.model_validate({"schedule": schedule})


def test_a_schedule_survives_the_way_to_the_trainer() -> None:
    for schedule in (FullSchedule(), TimerSchedule(every_s=60.0), NIGHT):
        config = TrainingConfig(schedule=schedule)
        assert TrainingConfig.model_validate(config.model_dump()) == config
