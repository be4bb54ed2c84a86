"""When the trainer may take its next step, and with how many turns.

``full``   as soon as ``batch_size`` turns are ready (what happens unless something else is said)
``timer``  in rounds, every ``every_s`` seconds: all turns that were ready when the round began, in batches of up to
           ``batch_size``. Rounds begin at multiples of ``every_s`` since 1970 (every 3600 s is on the hour), so that a
           restart neither skips nor repeats one
``idle``   within ``hours`` of the day, or when nobody has asked for anything for ``quiet_s`` seconds, or both

A schedule decides about leases and about nothing else: turns are judged and queued all the time and stay queued until
they may be lent. `may_train` is a pure function of a moment; nothing is remembered from one to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig
from clawrl.training.hours import Hours, parse_hours


class FullSchedule(StrictConfig):
    when: Literal["full"] = Field("full", description="as soon as batch_size turns are ready")


class TimerSchedule(StrictConfig):
    when: Literal["timer"] = Field("timer", description="in rounds, at multiples of every_s since 1970")
    every_s: float = Field(gt=0.0, description="seconds from one round to the next")
    minimum: int = Field(1, ge=1, description="fewer turns wait for the next round")


class IdleSchedule(StrictConfig):
    when: Literal["idle"] = Field("idle", description="within hours, or when it is quiet, or both")
    hours: str | None = Field(None, description="such as 22:00-06:00, by the wall clock of time_zone")
    time_zone: str | None = Field(None, description="such as Europe/Berlin")
    quiet_s: float | None = Field(None, gt=0.0, description="seconds without a request")
    minimum: int | None = Field(None, ge=1, description="the smallest batch; by default batch_size")

    @model_validator(mode="after")
    def _says_what_idle_is(self) -> IdleSchedule:
        if self.hours is None and self.quiet_s is None:
            raise ValueError("when: idle needs hours (with time_zone), quiet_s, or both")
        if self.hours is None and self.time_zone is not None:
            raise ValueError("time_zone belongs to hours; set hours as well, or remove it")
        if self.hours is not None and self.time_zone is None:
            raise ValueError("hours need a time_zone, such as Europe/Berlin: a server's own is often UTC")
        if self.hours is not None and self.time_zone is not None:
            parse_hours(self.hours, self.time_zone)
        return self

    @property
    def window(self) -> Hours | None:
        return None if self.hours is None or self.time_zone is None else parse_hours(self.hours, self.time_zone)


Schedule = Annotated[FullSchedule | TimerSchedule | IdleSchedule, Field(discriminator="when")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """``ready`` counts the turns that were queued by `counted_until`; ``last_request_at`` is the end of the newest."""

    now: float
    ready: int
    last_request_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``waits`` is what is waited for, as the end of "waits ..."; ``None`` means that a batch may be lent now.

    ``at_least`` is the smallest batch that may be lent. At ``look_at`` the clock alone may have changed the answer.
    """

    at_least: int
    waits: str | None = None
    look_at: float | None = None


def smallest_batch(schedule: Schedule, batch_size: int) -> int:
    match schedule:
        case TimerSchedule(minimum=minimum):
            return minimum
        case IdleSchedule(minimum=int() as minimum):
            return minimum
        case _:
            return batch_size


def counted_until(schedule: Schedule, now: float) -> float:
    """Turns that were queued later do not count: with a timer they belong to the next round."""
    if isinstance(schedule, TimerSchedule):
        return math.floor(now / schedule.every_s) * schedule.every_s
    return math.inf


def may_train(schedule: Schedule, batch_size: int, moment: Moment) -> Decision:
    at_least = smallest_batch(schedule, batch_size)
    look_at, waits = None, None
    if isinstance(schedule, IdleSchedule):
        look_at, waits = _until_idle(schedule, moment)
    if waits is None and moment.ready < at_least:
        look_at, waits = _until_ready(schedule, at_least - moment.ready, moment.now)
    return Decision(at_least=at_least, waits=waits, look_at=look_at)


def _until_idle(schedule: IdleSchedule, moment: Moment) -> tuple[float | None, str | None]:
    window = schedule.window
    if window is not None and not window.contain(moment.now):
        return window.next_begin(moment.now), f"until {window.begins:%H:%M} ({schedule.time_zone})"
    if schedule.quiet_s is not None and moment.now < moment.last_request_at + schedule.quiet_s:
        quiet_at = moment.last_request_at + schedule.quiet_s
        return quiet_at, f"for {quiet_at - moment.now:.0f} more seconds without a request"
    return None, None


def _until_ready(schedule: Schedule, missing: int, now: float) -> tuple[float | None, str]:
    if isinstance(schedule, TimerSchedule):
        begins = counted_until(schedule, now) + schedule.every_s
        return begins, f"until the round at {datetime.fromtimestamp(begins, UTC):%H:%M:%S} UTC"
    return None, f"for {missing} more turn{'s' if missing > 1 else ''}"
