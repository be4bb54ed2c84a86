"""How often somebody may ask: a bucket that holds a minute's worth of requests and fills steadily."""

from __future__ import annotations


class RateLimit:
    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._at = now

    def take(self, now: float) -> float:
        """0 if this request is within the limit, else the seconds until one will be; then nothing is taken."""
        self._left = min(float(self.per_minute), self._left + (now - self._at) * self.per_minute / 60.0)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) * 60.0 / self.per_minute
        self._left -= 1.0
        return 0.0
