"""How a response will be drawn: the client's wishes, the operator's defaults, and what is refused.

A value that the client does not name comes from `SamplingDefaults`. With ``override`` the operator's temperature,
top-p and top-k hold for main turns whatever the client asked; length and stop strings stay the client's, since
they do not touch the distribution. ``max_tokens`` is not yet clamped here: that takes the length of the prompt
(`ChatRenderer.fit`).
"""

from __future__ import annotations

from typing import Any

from clawrl.messages import SamplingParams
from clawrl.serving.config import SamplingDefaults
from clawrl.serving.errors import invalid_request, unsupported
from clawrl.serving.fields import JsonObject, as_text, flag, integer, number, wrong_type

MAX_STOPS = 4
MAX_STOP_CHARS = 512
# name, bounds, and the one value that changes nothing
_PENALTIES = (
    ("presence_penalty", -2, 2, 0),
    ("frequency_penalty", -2, 2, 0),
    ("min_p", 0, 1, 0),
    ("repetition_penalty", 0, 100, 1),
)


def parse_sampling(body: JsonObject, defaults: SamplingDefaults, *, impose: bool) -> tuple[SamplingParams, list[str]]:
    """The resolved parameters and the names of the client's values that the operator overrode."""
    _refuse_what_cannot_be_honoured(body)
    integer(body, "seed")  # accepted; draws are not reproducible per request in a shared batch
    asked: dict[str, float | int | None] = {
        "temperature": number(body, "temperature", 0.0, 2.0),
        "top_p": _top_p(body),
        "top_k": _top_k(body),
    }
    imposed = {name: getattr(defaults, name) for name in asked}
    overridden = [name for name, value in asked.items() if impose and value is not None and value != imposed[name]]
    drawn = {name: imposed[name] if impose or value is None else value for name, value in asked.items()}
    lengths = [integer(body, "max_tokens", low=1), integer(body, "max_completion_tokens", low=1)]
    return (
        SamplingParams(
            temperature=float(drawn["temperature"]),
            top_p=float(drawn["top_p"]),
            top_k=int(drawn["top_k"]),
            max_tokens=min((n for n in lengths if n is not None), default=defaults.max_tokens),
            stop=_stop(body.get("stop")),
        ),
        overridden,
    )


def _top_p(body: JsonObject) -> float | None:
    value = number(body, "top_p", 0.0, 1.0)
    if value == 0.0:
        raise invalid_request(
            "Invalid value for 'top_p': 0. It must be above 0; for greedy use temperature 0.", "top_p"
        )
    return value


def _top_k(body: JsonObject) -> int | None:
    value = integer(body, "top_k", low=-1)
    return 0 if value == -1 else value  # other servers write "off" as -1


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, str | list):
        raise wrong_type(value, "stop", "a string or an array of strings")
    many = isinstance(value, list)
    stops = [as_text(s, f"stop[{i}]" if many else "stop") for i, s in enumerate(value if many else [value])]
    if len(stops) > MAX_STOPS:
        raise invalid_request(f"Invalid 'stop': at most {MAX_STOPS} stop strings, but got {len(stops)}.", "stop")
    if any(not 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise invalid_request(f"Invalid 'stop': a stop string has 1 to {MAX_STOP_CHARS} characters.", "stop")
    return tuple(stops)


def _refuse_what_cannot_be_honoured(body: JsonObject) -> None:
    for name, low, high, neutral in _PENALTIES:
        if number(body, name, low, high) not in (None, neutral):
            raise unsupported(name, f"'{name}' is not supported.", f"Leave it out or set it to {neutral}.")
    if body.get("logit_bias"):
        raise unsupported("logit_bias", "'logit_bias' is not supported.", "Leave it out.")
    flag(body, "logprobs")
    if integer(body, "top_logprobs", low=0):
        raise unsupported(
            "top_logprobs", "'top_logprobs' is not supported.", "Use 'logprobs': true for the sampled tokens."
        )
    if body.get("functions"):
        raise unsupported("functions", "'functions' is not served.", "Use 'tools'.")
