"""How an engine says no. Apart from the protocol, so that processes without torch can tell."""

from __future__ import annotations


class EngineError(RuntimeError):
    """The engine cannot serve any more; its replica must be replaced."""


class UnsupportedRequest(ValueError):
    """This engine cannot honour a request. ``param`` names the field of the sampling parameters."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class NoPlace(TimeoutError):
    """No slot for generation became free within a request's ``place_within_s``."""


class WeightsRefused(RuntimeError):
    """A manifest or its bytes do not fit; the version that was serving goes on serving."""
