"""What the built-in rules find and what they leave alone."""

from __future__ import annotations

import time

import pytest

from clawrl.privacy.config import PrivacyConfig, RedactionConfig, RuleConfig
from clawrl.privacy.redactor import Redactor, finders_of
from clawrl.privacy.rules import BUILTIN, iban, luhn

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"
# Put together here, so that nobody takes them for keys that leaked.
HIDDEN = {
    "token": [
        "sk-" + "a1B2" * 8,
        "sk-ant-" + "api03-" + "x9" * 20,
        "AKIA" + "IOSFODNN7EXAMPLE",
        "ghp_" + "Ab3" * 12,
        "github_pat_" + "11AB" * 12,
        "glpat-" + "x" * 20,
        "xoxb-" + "1234567890-abc",
        "AIza" + "Sy" * 17 + "x",
        "hf_" + "q" * 34,
        "pypi-" + "Ag" * 30,
        "sk_live_" + "4" * 24,
        "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "dozjgNryP4J3jVmN",
    ],
    "private_key": [KEY, "-----BEGIN PRIVATE KEY-----\nMIIE and it is cut off"],
    "email": ["ann@example.com", "a.b+c@mail.example.co.uk", "ünal@bücher.example"],
    "phone": ["+49 30 1234567", "+1 (415) 555-2671", "(415) 555-2671", "0049 170 1234567"],
    "credit_card": ["4111 1111 1111 1111", "378282246310005", "5500-0000-0000-0004"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "nl91abna0417164300"],
}
SHOWN = {
    "token": ["sk-learn is a library", "the task-force of twenty people who", "eyJhbGci", "AKIA is a prefix"],
    "private_key": ["-----BEGIN CERTIFICATE-----", "a PRIVATE KEY is a secret"],
    "email": ["@ann", "a @ b.example", "user@localhost", "git@github"],
    "phone": ["2024-10-11 12:30:45", "1234", "192.168.100.200", "3.14159265358979", "v1.22.333.4444", "call me"],
    "credit_card": ["4111 1111 1111 1112", "1234567890123", "0000 0000 0000 0000"],
    "iban": ["DE89 3704 0044 0532 0130 01", "AB12 is a code", "ABCD1234EFGH5678"],
}


def only(*names: str) -> Redactor:
    return Redactor(finders_of(RedactionConfig.model_validate({"builtin": names})))


@pytest.mark.parametrize(("rule", "number"), [(rule, n) for rule, texts in HIDDEN.items() for n in range(len(texts))])
def test_what_a_rule_is_for_is_found_whole_and_alone(rule: str, number: int) -> None:
    secret = HIDDEN[rule][number]
    mark = f"[{rule.upper()}]"
    assert only(rule).text(secret) == mark
    if "cut off" not in secret:
        assert only(rule).text(f"before {secret}, after") == f"before {mark}, after"
        assert only(rule).text(f'{{"x":"{secret}"}}') == f'{{"x":"{mark}"}}'


@pytest.mark.parametrize(("rule", "number"), [(rule, n) for rule, texts in SHOWN.items() for n in range(len(texts))])
def test_what_only_looks_like_it_is_left_alone(rule: str, number: int) -> None:
    text = SHOWN[rule][number]
    assert only(rule).text(text) == text


def test_the_checksums_hold_for_every_single_wrong_digit() -> None:
    card, account = "4111111111111111", "DE89370400440532013000"
    assert luhn(card) and iban(account)
    for place in range(len(card)):
        assert not luhn(card[:place] + str((int(card[place]) + 1) % 10) + card[place + 1 :])
    for place in range(2, len(account)):
        assert not iban(account[:place] + str((int(account[place]) + 1) % 10) + account[place + 1 :])


@pytest.mark.parametrize("rule", BUILTIN)
def test_no_text_takes_a_rule_long(rule: str) -> None:
    pieces = ["a", "1 ", "sk-", "@a.", "DE89 ", "+1 ", "-----BEGIN PRIVATE KEY", "eyJa.", "(1)", "a.b@", "12-34."]
    for piece in pieces:
        text = piece * (60_000 // len(piece))
        began = time.process_time()
        list(BUILTIN[rule].find(text))
        assert time.process_time() - began < 2.0, piece


def test_a_rule_of_the_operators_own_hides_its_group_or_all_of_a_match() -> None:
    rules = (
        RuleConfig(name="password", pattern=r"password is (?P<secret>\S+)", ignore_case=True),
        RuleConfig(name="case", pattern=r"CASE-\d+"),
    )
    redactor = Redactor(finders_of(RedactionConfig(builtin=(), rules=rules)))
    assert redactor.text("My PASSWORD is hunter22, see CASE-17") == "My PASSWORD is [PASSWORD] see [CASE]"


@pytest.mark.parametrize(
    ("redaction", "problem"),
    [
        ({"rules": [{"name": "x", "pattern": "("}]}, "rules.0.pattern"),
        ({"rules": [{"name": "x", "pattern": "a*"}]}, "matches an empty text"),
        ({"rules": [{"name": "token", "pattern": "a"}]}, "'token' is there twice"),
        ({"rules": [{"name": "X", "pattern": "a"}]}, "rules.0.name"),
        ({"builtin": ["tokens"]}, "builtin.0"),
    ],
    ids=["no pattern", "an empty match", "a name twice", "a bad name", "an unknown rule"],
)
def test_a_rule_that_cannot_be_meant_is_refused(redaction: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PrivacyConfig.model_validate({"redaction": redaction})


def wide(text: str) -> str:
    """In full-width letters, digits and signs."""
    return "".join("\u3000" if char == " " else chr(ord(char) + 0xFEE0) for char in text)


FOLDED = {
    "full-width address": (f"write to {wide('ann@example.com')} please", "write to [EMAIL] please"),
    "soft hyphen": ("I am ann@exam\u00adple.com.", "I am [EMAIL]."),
    "joiner": ("ann\u200b@example.com", "[EMAIL]"),
    "no-break spaces": ("card 4111\u00a01111\u00a01111\u00a01111!", "card [CREDIT_CARD]!"),
    "full-width card": (f"{wide('(4111 1111 1111 1111)')}", f"{wide('(')}[CREDIT_CARD]{wide(')')}"),
    "arabic digits": ("\u0664" + "\u0661" * 15, "[CREDIT_CARD]"),
    "dashes": ("4111\u20131111\u20131111\u20131111", "[CREDIT_CARD]"),
    "iban": ("DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00", "[IBAN]"),
    "longer when folded": ("½ ﬁ ann\uff20example.com \ufdfa", "½ ﬁ [EMAIL] \ufdfa"),
    "found as it is": ("grüße an ann@example.com", "grüße an [EMAIL]"),
    "nothing": (f"Straße № 5 \u2013 größer als ½ {wide('123')}", f"Straße № 5 \u2013 größer als ½ {wide('123')}"),
}


@pytest.mark.parametrize("name", FOLDED)
def test_another_way_of_writing_hides_nothing_and_the_rest_stays_as_it_is(name: str) -> None:
    builtin = ["token", "private_key", "email", "credit_card", "iban"]
    redactor = Redactor(finders_of(RedactionConfig(builtin=builtin)))  # type: ignore[arg-type]
    written, wanted = FOLDED[name]
    assert redactor.text(written) == wanted
    assert redactor.text(wanted) == wanted
