"""Keys: where they come from, who is let in, and what is kept of them."""

from __future__ import annotations

import hmac

import pytest

from clawrl.serving.auth import authenticate, owner_of, resolve_key
from clawrl.serving.errors import ApiError


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


def test_without_a_configured_key_everybody_is_local() -> None:
    assert authenticate(None, None) == authenticate("Bearer whatever", None) == owner_of(None) == "local"


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "Bearer   secret "])
def test_the_right_key_is_let_in_as_its_owner(header: str) -> None:
    assert authenticate(header, "secret") == owner_of("secret")


def test_a_key_beyond_ascii_is_compared_by_its_bytes() -> None:
    as_received = "Bearer " + "schlüssel".encode().decode("latin-1")
    assert authenticate(as_received, "schlüssel") == owner_of("schlüssel")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "secret", "Basic secret", "Bearer secre", "Bearer 语"]
)
def test_anything_else_is_a_401(header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        authenticate(header, "secret")
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with pytest.raises(ApiError):
        authenticate("Bearer secret", "secret")
    assert seen == [(b"secret", b"secret")]


def test_an_owner_is_short_stable_and_does_not_show_the_key() -> None:
    assert owner_of("secret") == owner_of("secret") != owner_of("secrets")
    assert len(owner_of("secret")) == 16 and "secret" not in owner_of("secret")
