"""Keys: where they come from, who is let in and how often, and what is kept of them."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from typing import Any

import pytest

from clawrl.serving.auth import LOCAL, Identity, KeyRing, owners_of, resolve_key
from clawrl.serving.config import ServingConfig
from clawrl.serving.errors import ApiError


def ring(clock: Any = lambda: 0.0, **fields: Any) -> KeyRing:
    config = ServingConfig.model_validate({"served_name": "m", **fields})
    return KeyRing(config, {"ANN": "ann-key"}, clock)


BOTH = {
    "api_key": "secret",
    "users": [{"name": "ann", "key": "env:ANN"}, {"name": "bob", "key": "bob-key", "requests_per_minute": 2}],
}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_key_is_literal_or_read_from_the_environment() -> None:
    assert resolve_key(None, {}) is None
    assert resolve_key("secret", {}) == "secret"
    assert resolve_key("env:KEY", {"KEY": " secret\n"}) == "secret"


@pytest.mark.parametrize("environ", [{}, {"KEY": ""}, {"KEY": "  "}])
def test_a_missing_variable_is_an_error_that_names_it(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="'KEY'"):
        resolve_key("env:KEY", environ)


def test_an_empty_literal_key_is_an_error_and_not_an_open_door() -> None:
    with pytest.raises(ValueError, match="empty"):
        resolve_key(" ", {})


def test_without_a_configured_key_everybody_is_local_and_may_do_everything() -> None:
    assert ring().identify({}) == ring().operator(bearer("whatever")) == ring().admitted({}) == LOCAL


@pytest.mark.parametrize(
    "headers",
    [
        bearer("secret"), {"authorization": "bearer secret"}, {"authorization": "Bearer   secret "},
        {"x-api-key": "secret"}, {"x-api-key": " secret ", "authorization": "Basic eHg="},
        {"authorization": "Bearer another service's", "x-api-key": "secret"},
        {"authorization": "Bearer secret", "x-api-key": "another service's"},
    ],
)  # fmt: skip
def test_the_right_key_is_let_in_whichever_way_it_comes(headers: dict[str, str]) -> None:
    assert ring(api_key="secret").operator(headers).operator


@pytest.mark.parametrize("key", ["schlüssel", "钥匙", "se\tcret", "se\ncret", "se\x00cret", "\udc80"])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (lambda key: {"api_key": key}, "api_key has characters"),
        (lambda key: {"api_key": "env:KEY"}, "api_key (the environment variable 'KEY') has characters"),
        (lambda key: {"api_key": "a", "console": {"key": key}}, "console.key has characters"),
        (lambda key: {"api_key": "a", "users": [{"name": "x", "key": "env:KEY"}]}, "users[0].key (the environment"),
    ],
    ids=["literal", "environment", "console", "user"],
)
def test_a_key_that_clients_would_send_in_different_bytes_is_refused_at_the_start(
    fields: Callable[[str], dict[str, Any]], said: str, key: str
) -> None:
    """A browser sends Latin-1 or nothing, most other clients UTF-8."""
    config = ServingConfig.model_validate({"served_name": "m", **fields(key)})
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        KeyRing(config, {"KEY": key})
    assert key not in str(caught.value) and "ASCII" in str(caught.value)


def test_every_printable_ascii_key_is_taken() -> None:
    key = "".join(map(chr, range(33, 127))) + " and more"
    assert ring(api_key=key).operator(bearer(key)).operator


@pytest.mark.parametrize(
    "headers",
    [{}, *({"authorization": header} for header in (
        "", "Bearer", "Bearer ", "secret", "Basic secret", "Bearer secre", "Bearer 语")),
     {"x-api-key": ""}, {"x-api-key": "secre"}, {"authorization": "Bearer wrong", "x-api-key": "wrong"}],
)  # fmt: skip
def test_anything_else_is_a_401(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        ring(api_key="secret").identify(headers)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"


def test_every_key_is_compared_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return a == b

    made = ring(**BOTH)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert made.identify(bearer("secret")).operator
    assert seen == [(b"secret", b"secret"), (b"secret", b"ann-key"), (b"secret", b"bob-key")]


def test_users_are_owners_of_their_own_who_may_not_operate() -> None:
    made = ring(**BOTH)
    ann, bob, operator = (made.identify(bearer(key)) for key in ("ann-key", "bob-key", "secret"))
    assert len({ann.owner, bob.owner, operator.owner, "local"}) == 4
    assert (ann.operator, bob.operator) == (False, False)
    with pytest.raises(ApiError) as caught:
        made.operator(bearer("ann-key"))
    assert (caught.value.status, caught.value.code) == (403, "forbidden")


def test_everybody_who_may_ask_is_known_by_owner_and_what_opts_out_the_operator_opts_out_the_console() -> None:
    console: dict[str, Any] = {**BOTH, "console": {"key": "look"}, "train": False}
    made = ring(**console)
    known = owners_of(ServingConfig.model_validate({"served_name": "m", **console}), {})
    assert sorted(known) == sorted(made.identify(bearer(key)).owner for key in ("secret", "look", "ann-key", "bob-key"))
    assert not made.identify(bearer("look")).may_train and not made.identify(bearer("secret")).may_train
    assert made.identify(bearer("ann-key")).may_train


def test_an_owner_is_short_stable_and_shows_neither_key_nor_name() -> None:
    renewed = {**BOTH, "users": [{"name": "ann", "key": "another-key"}]}
    ann = ring(**BOTH).identify(bearer("ann-key"))
    assert ring(**renewed).identify(bearer("another-key")) == ann, "a new key, the same person"
    assert len(ann.owner) == 16 and "ann" not in ann.owner
    assert isinstance(ann, Identity)


def test_who_asks_too_often_is_told_when_to_come_again() -> None:
    now = [0.0]
    made = ring(clock=lambda: now[0], **BOTH)
    for _ in range(2):
        made.admitted(bearer("bob-key"))
    with pytest.raises(ApiError) as caught:
        made.admitted(bearer("bob-key"))
    assert caught.value.status == 429 and caught.value.headers["Retry-After"] == "30"
    assert "2 requests a minute" in caught.value.message
    made.identify(bearer("bob-key"))
    for _ in range(100):
        made.admitted(bearer("ann-key"))
    now[0] = 29.9
    with pytest.raises(ApiError):
        made.admitted(bearer("bob-key"))
    now[0] = 30.1
    made.admitted(bearer("bob-key"))
    now[0] = 9_999.0
    for _ in range(2):
        made.admitted(bearer("bob-key"))
    with pytest.raises(ApiError):
        made.admitted(bearer("bob-key"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"users": [{"name": "a", "key": "k"}]}, "set api_key"),
        ({"api_key": "k", "users": [{"name": "a", "key": "k"}]}, r"users\[0\].key is already"),
        ({"api_key": "k", "users": [{"name": "a", "key": "env:NOBODY"}]}, r"users\[0\].key.*'NOBODY'"),
    ],
)
def test_keys_that_let_in_the_wrong_people_are_refused_at_start(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ring(**fields)


CONSOLE = {"api_key": "secret", "console": {"key": "env:ANN"}, "users": [{"name": "bob", "key": "bob-key"}]}


def test_the_consoles_key_operates_and_talks_as_an_owner_of_its_own() -> None:
    keys = ring(**CONSOLE)
    console, operator = keys.operator(bearer("ann-key")), keys.operator(bearer("secret"))
    assert console.operator and console.owner not in (operator.owner, keys.identify(bearer("bob-key")).owner)
    assert keys.admitted(bearer("ann-key")) == console


def test_with_a_new_key_the_console_still_owns_what_was_said_from_it() -> None:
    renewed = ring(**{**CONSOLE, "console": {"key": "another"}})
    assert renewed.identify(bearer("another")) == ring(**CONSOLE).identify(bearer("ann-key"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"console": {"key": "k"}}, "console.key is set but the operator has no key"),
        ({"api_key": "k", "console": {"key": "k"}}, "console.key is the operator's"),
        ({"api_key": "k", "console": {"key": "env:NONE"}}, "console.key is 'env:NONE'"),
        ({"api_key": "k", "console": {"key": "c"}, "users": [{"name": "a", "key": "c"}]}, "somebody else's"),
        ({"api_key": "k", "console": {"key": "c", "enabled": False}}, "enable the console"),
    ],
)
def test_a_console_key_that_opens_nothing_or_too_much_is_refused_at_the_start(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ring(**fields)
