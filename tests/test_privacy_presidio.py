"""Presidio finds what the built-in rules do not, without a model and without the network."""

from __future__ import annotations

import socket

import pytest

from clawrl.privacy.config import PresidioConfig, RedactionConfig
from clawrl.privacy.presidio import PresidioFinder
from clawrl.privacy.redactor import Redactor, finders_of

pytest.importorskip("presidio_analyzer")


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", _no_network)
        patch.setattr(socket, "getaddrinfo", _no_network)
        return Redactor(finders_of(RedactionConfig(builtin=(), presidio=PresidioConfig())))


def _no_network(*_: object, **__: object) -> None:
    raise AssertionError("the network was asked")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("write to ann.archer@example.com today", "write to [EMAIL_ADDRESS] today"),
        ("my card is 4111 1111 1111 1111", "my card is [CREDIT_CARD]"),
        ("my ssn is 078-05-1126", "my ssn is [US_SSN]"),
        ("pay to DE89370400440532013000", "pay to [IBAN_CODE]"),
        ("call my phone +1 415 555 2671", "call my phone [PHONE_NUMBER]"),
        ("the harbour is quiet", "the harbour is quiet"),
    ],
)
def test_it_finds_by_pattern_checksum_and_context(
    redactor: Redactor, monkeypatch: pytest.MonkeyPatch, text: str, redacted: str
) -> None:
    monkeypatch.setattr(socket, "create_connection", _no_network)
    monkeypatch.setattr(socket, "getaddrinfo", _no_network)
    assert redactor.text(text) == redacted


def test_only_the_entities_that_are_named_are_looked_for() -> None:
    finder = PresidioFinder(PresidioConfig(entities=("IBAN_CODE",)))
    assert [name for _, _, name in finder.find("ann@example.com has DE89370400440532013000")] == ["IBAN_CODE"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"entities": ["PERSON_NAME"]}, "redaction.presidio.entities: 'PERSON_NAME' is not known"),
        ({"model": "en_no_such_model"}, "redaction.presidio.model: the spaCy pipeline"),
    ],
)
def test_what_cannot_be_had_is_named(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PresidioFinder(PresidioConfig.model_validate(settings))


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "presidio_analyzer", None)
    with pytest.raises(ValueError, match=r"pip install clawrl\[privacy\]"):
        PresidioFinder(PresidioConfig())
