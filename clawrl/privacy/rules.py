"""Patterns that find what should not be kept, and the checks that tell a card number from any other number.

A `Rule` yields half-open spans of a text. Every pattern is linear: none nests a repetition in another, so that no text
takes long. What a rule finds it may be wrong about; what it does not find is stored, so that the operator adds rules of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clawrl.privacy.config import RedactionConfig

Span = tuple[int, int, str]
"""Start, end, and the name of the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``check`` is asked about each match. ``needs`` are pieces of text without one of which nothing can match."""

    name: str
    pattern: re.Pattern[str]
    check: Callable[[str], bool] = lambda _: True
    needs: tuple[str, ...] = ()

    def find(self, text: str) -> Iterator[Span]:
        if self.needs and not any(piece in text for piece in self.needs):
            return
        for match in self.pattern.finditer(text):
            group = "secret" if "secret" in self.pattern.groupindex and match["secret"] is not None else 0
            start, end = match.span(group)
            if start < end and self.check(text[start:end]):
                yield start, end, self.name


def luhn(text: str) -> bool:
    """Whether the digits are those of a payment card: 13 to 19 of them, and the checksum holds."""
    digits = [int(char) for char in text if char.isascii() and char.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def iban(text: str) -> bool:
    """Whether the checksum of ISO 13616 holds."""
    plain = re.sub(r"[ -]", "", text).upper()
    if not 15 <= len(plain) <= 34:
        return False
    number = "".join(str(int(char, 36)) for char in plain[4:] + plain[:4])
    return int(number) % 97 == 1


def phone(text: str) -> bool:
    """International, or written as people write telephone numbers; not any row of digits, nor a date."""
    digits = sum(char.isdigit() for char in text)
    if text.startswith(("+", "00")):
        return 8 <= digits <= 15
    written = re.search(r"[ ()/-]|\d\.\d+\.", text) and not re.match(r"\d{4}-\d\d-\d\d(?!\d)", text)
    return bool(written) and not re.fullmatch(r"\d{1,3}(?:\.\d{1,3}){3}", text) and 10 <= digits <= 15


_TOKENS = (
    r"sk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic, OpenRouter
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
    r"gh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{40,}",
    r"glpat-[A-Za-z0-9_-]{20,}",  # GitLab
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"xapp-[A-Za-z0-9-]{10,}",
    r"AIza[0-9A-Za-z_-]{35}",  # Google
    r"ya29\.[0-9A-Za-z_-]{20,}",
    r"hf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{50,}",
    r"[rsp]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"dop_v1_[a-f0-9]{64}",  # DigitalOcean
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",  # JSON web tokens
)
_STARTS = (
    *("sk-", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "xapp-", "AIza"),
    *("ya29.", "hf_", "npm_", "pypi-", "k_live_", "k_test_", "SG.", "dop_v1_", "eyJ"),
)

BUILTIN = {
    rule.name: rule
    for rule in (
        Rule(
            name="token",
            pattern=re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_TOKENS)})"),
            needs=_STARTS,
        ),
        Rule(
            name="private_key",
            # One without its end goes to the end of the text: better too much than half a key.
            pattern=re.compile(
                r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
                r"[\s\S]*?(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----|\Z)"
            ),
            needs=("PRIVATE KEY",),
        ),
        Rule(
            name="email",
            pattern=re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])"),
            needs=("@",),
        ),
        Rule(
            name="credit_card",
            pattern=re.compile(r"(?<![\d.-])\d(?:[ -]?\d){12,18}(?![\d]|\.\d)"),
            check=luhn,
        ),
        Rule(
            name="iban",
            pattern=re.compile(
                r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?(?![A-Za-z0-9])"
            ),
            check=iban,
        ),
        Rule(
            name="phone",
            pattern=re.compile(r"(?<![\w.+-])(?:\+|00)?\(?\d{1,4}\)?(?:[ ./-]?\(?\d{2,5}\)?){2,5}(?![\w-]|\.\d)"),
            check=phone,
        ),
    )
}


def rules_of(config: RedactionConfig) -> list[Rule]:
    """The built-in ones that are asked for, then the operator's."""
    own = [
        Rule(name=rule.name, pattern=re.compile(rule.pattern, re.IGNORECASE if rule.ignore_case else 0))
        for rule in config.rules
    ]
    return [*(BUILTIN[name] for name in config.builtin), *own]
