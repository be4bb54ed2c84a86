"""A part of the day by the wall clock of a place: ``22:00-06:00`` in Europe/Berlin.

What the clock on the wall says decides, also on the days on which it is put forward or back: an hour that does not
exist is in no window, one that exists twice is in it twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """From ``begins`` until before ``ends``, across midnight where ``ends`` is the earlier."""

    begins: time
    ends: time
    zone: ZoneInfo

    def contain(self, now: float) -> bool:
        clock = datetime.fromtimestamp(now, self.zone).time()
        if self.begins < self.ends:
            return self.begins <= clock < self.ends
        return clock >= self.begins or clock < self.ends

    def next_begin(self, now: float) -> float:
        """When they begin next, after ``now``."""
        today = datetime.fromtimestamp(now, self.zone).date()
        days = (datetime.combine(today + timedelta(days=ahead), self.begins, self.zone) for ahead in range(8))
        # On a day on which the clock is put forward they may not occur, or begin where it arrives.
        return next(day.timestamp() for day in days if day.timestamp() > now and self.contain(day.timestamp()))


def parse_hours(text: str, zone: str) -> Hours:
    """Raises `ValueError` that says what is wrong and how to write it."""
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"hours {text!r} are not hours of a day; write them as 22:00-06:00")
    try:
        begins = time(int(found[1]), int(found[2]))
        # 24:00 is how people write the end of a day.
        ends = time(0, 0) if (found[3], found[4]) == ("24", "00") else time(int(found[3]), int(found[4]))
    except ValueError:
        raise ValueError(f"hours {text!r} name a time that no clock shows; write them as 22:00-06:00") from None
    if begins == ends:
        raise ValueError(f"hours {text!r} begin when they end; leave hours out for the whole day")
    return Hours(begins=begins, ends=ends, zone=_zone(zone))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # A name that leads out of the database, or to a folder of it, is refused in other ways than an unknown one.
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"time_zone {name!r} is not known here; name one as Europe/Berlin or UTC (on a machine without a time zone "
            "database: pip install tzdata)"
        ) from None
