"""Request bodies as no client should send them, made from good ones. The same seed gives the same bytes.

Most are still JSON with a few things wrong in random places; some are broken as text. Nothing promises that a body is
wrong: one in a while comes out as good as before.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Json = Any
Place = tuple[Any, Any]  # an object or an array, and a key or an index in it


def malformed(seed: int, bodies: Sequence[Json]) -> bytes:
    """``bodies`` are left as they are."""
    rng = random.Random(seed)
    body = copy.deepcopy(rng.choice(bodies))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_CHANGES)(rng, body, bodies)
    raw = _written(body)
    return rng.choice(_BREAKS)(rng, raw) if rng.random() < 0.25 else raw


def nested(depth: int) -> str:
    """As text, since Python itself cannot write what is very deep."""
    return "[" * depth + "]" * depth


_TEXTS = (
    "",
    " ",
    "\x00",
    "\ud800",
    "caf\u00e9 \udfff",
    "\U0001f642",
    "{}",
    "{",
    "NaN",
    '{"a": "\\ud800"}',
    '{"a": NaN, "b": 1e999}',
    '{"a": ' + nested(70) + "}",
    '{"a": ' + nested(400) + "}",
    '{"a": ' + nested(930) + "}",
    nested(200_000),
    "9" * 5000,
    "{{ 7 }}{% for %}<|im_end|>",
    "system",
    "assistant",
    "tool",
    "function",
    "text",
    "x" * 5000,
)
_NUMBERS = (0, 1, -1, 2, 0.0, -0.0, 0.5, 1.5, 2**31, 2**63, -(2**64), 10**40, -(10**400), 1e308, 5e-324)
_CONSTANTS = (float("nan"), float("inf"), float("-inf"))
_ROLES = ("robot", "", "System", "developer", "function", "assistant", "tool", None, 3, [], {"role": "user"})


def _odd(rng: random.Random) -> Json:
    """A value that belongs nowhere."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(_NUMBERS if rng.random() < 0.9 else _CONSTANTS)
    if kind in (3, 4):
        return rng.choice(_TEXTS)
    if kind == 5:
        return [_odd(rng) for _ in range(rng.choice((0, 1, 3)))]
    if kind == 6:
        keys = ("", "type", "text", "name", "role", "\ud800", "content")
        return {rng.choice(keys): _odd(rng) for _ in range(rng.choice((0, 1, 3)))}
    return rng.choice(([{"type": "text"}], [[]] * 300, [{}], {"type": None}, _deep(rng.choice((20, 63, 65, 300)))))


def _deep(depth: int) -> Json:
    value: Json = []
    for _ in range(depth):
        value = [value]
    return value


def _places(value: Json) -> Iterator[Place]:
    keys: Sequence[Any] = (
        list(value) if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _place(rng: random.Random, body: Json) -> Place | None:
    places = list(_places(body))
    return rng.choice(places) if places else None


def _replace(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    if (place := _place(rng, body)) is not None:
        place[0][place[1]] = _odd(rng)


def _reword(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    """Another text where a text belongs, so that what looks into texts gets something to look at."""
    texts = [(where, key) for where, key in _places(body) if isinstance(where[key], str) and key != "model"]
    if texts:
        where, key = rng.choice(
            texts if rng.random() < 0.5 else [place for place in texts if place[1] == "arguments"] or texts
        )
        where[key] = rng.choice(_TEXTS)


def _remove(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    if (place := _place(rng, body)) is not None:
        del place[0][place[1]]


def _repeat(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    places = list(_places(body))
    lists = [(where, key) for where, key in places if isinstance(where[key], list) and where[key]]
    # Lists within lists would grow without end.
    if lists and len(places) < 1000:
        where, key = rng.choice(lists)
        where[key] = where[key] * rng.choice((2, 3, 20))


def _shuffle(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    lists = [where[key] for where, key in _places(body) if isinstance(where[key], list)]
    if lists:
        rng.shuffle(rng.choice(lists))


def _rename(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    places = [(where, key) for where, key in _places(body) if isinstance(where, dict)]
    if places:
        where, key = rng.choice(places)
        where[rng.choice(("", key.upper(), key + "\ud800", "type", "text", "content"))] = where.pop(key)


def _add(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    """A field from another body or dialect, with a value that belongs elsewhere or nowhere."""
    fields = [key for where, key in _places(rng.choice(bodies)) if isinstance(where, dict)]
    objects = [body, *(where[key] for where, key in _places(body) if isinstance(where[key], dict))]
    rng.choice(objects)[rng.choice(fields)] = _odd(rng)


def _splice(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    source, target = _place(rng, rng.choice(bodies)), _place(rng, body)
    if source is not None and target is not None:
        target[0][target[1]] = copy.deepcopy(source[0][source[1]])


def _cast(rng: random.Random, body: Json, bodies: Sequence[Json]) -> None:
    places = [(where, key) for where, key in _places(body) if key in ("role", "type")]
    if places:
        where, key = rng.choice(places)
        where[key] = copy.deepcopy(rng.choice(_ROLES))


_CHANGES: tuple[Callable[[random.Random, Json, Sequence[Json]], None], ...] = (
    _replace,
    _replace,
    _reword,
    _reword,
    _add,
    _add,
    _remove,
    _remove,
    _splice,
    _cast,
    _rename,
    _repeat,
    _shuffle,
)


def _written(body: Json) -> bytes:
    return json.dumps(body).encode()


def _cut(rng: random.Random, raw: bytes) -> bytes:
    return raw[: rng.randrange(len(raw))]


def _flip(rng: random.Random, raw: bytes) -> bytes:
    broken = bytearray(raw)
    for _ in range(rng.choice((1, 3, 20))):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    return bytes(broken)


def _insert(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    odd = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x00", b"//", b",", b'"', b"NaN", b"{", b"]")
    return raw[:at] + rng.choice(odd) + raw[at:]


def _twice(rng: random.Random, raw: bytes) -> bytes:
    """A key that is there already; the last one counts."""
    key = rng.choice((b"model", b"messages", b"role", b"content", b"input", b"type", b"tools"))
    value = rng.choice((b"1", b"null", b'"user"', b"[]", b"{}"))
    return raw.replace(b"{", b'{"' + key + b'": ' + value + b", ", rng.choice((1, 5)))


def _last_twice(rng: random.Random, raw: bytes) -> bytes:
    key = rng.choice((b"model", b"messages", b"input", b"tools", b"stream"))
    return raw[:-1] + b', "' + key + b'": ' + rng.choice((b"1", b"null", b'"x"', b"[]", b"[{}]")) + b"}"


def _write_oddly(rng: random.Random, raw: bytes) -> bytes:
    """What a JSON text can say and Python would not write."""
    numbers = (
        b"9" * 5000,
        b"9" * 4000,
        b"1e999",
        b"-1E400",
        b"1" + b"0" * 400 + b".5",
        b"-0",
        b"01",
        b"+1",
        b".5",
        b"1.",
    )
    depths = (10, 62, 63, 64, 65, 1000, 100_000)
    odd = rng.choice((rng.choice(numbers), nested(rng.choice(depths)).encode(), b'"\\ud83d"', b'"\\x"', b"undefined"))
    places = [i + 1 for i in range(len(raw)) if raw[i : i + 1] == b":"]
    if not places:
        return odd
    at = rng.choice(places)
    return raw[:at] + b" " + odd + b', "rest":' + raw[at:]


def _whole(rng: random.Random, raw: bytes) -> bytes:
    return rng.choice(
        (b"", b" ", b"null", b"[]", b"{}", b'""', b"0", b"[" + raw + b"]", raw + raw, raw.decode().encode("utf-16"))
    )


_BREAKS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _cut,
    _flip,
    _insert,
    _twice,
    _last_twice,
    _write_oddly,
    _write_oddly,
    _write_oddly,
    _whole,
)
