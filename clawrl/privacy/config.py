"""What an operator says about privacy: what is redacted, what is sealed and with which keys, how long text stays."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from clawrl.strict import StrictConfig

BuiltinRule = Literal["token", "private_key", "email", "phone", "credit_card", "iban"]
_ENV, _FILE = "env:", "file:"
_MASTER_BYTES = 32


class RuleConfig(StrictConfig):
    """A rule of the operator's own. With a group ``secret`` only that part of a match is redacted."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$", description="stands in the text's place, in capitals")
    pattern: str = Field(min_length=1, description="a regular expression of Python's re")
    ignore_case: bool = Field(False, description="capitals and small letters are the same")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        if compiled.match("") is not None:
            raise ValueError("matches an empty text, so that it would redact everything; make it longer")
        return pattern


class PresidioConfig(StrictConfig):
    """Microsoft Presidio, of the extra ``privacy``. Without a ``model`` only its patterns and checksums are used."""

    entities: tuple[str, ...] = Field((), description="such as PHONE_NUMBER, US_SSN; empty: all that it knows")
    language: str = Field("en", pattern=r"^[a-z]{2}$", description="of what people write, two letters")
    model: str | None = Field(None, description="an installed spaCy pipeline, for names of people and places")
    min_score: float = Field(0.5, ge=0.0, le=1.0, description="what it is less sure of stays")


class RedactionConfig(StrictConfig):
    """``builtin`` and ``rules`` cost little; ``presidio`` is slower and finds more."""

    builtin: tuple[BuiltinRule, ...] = Field(
        ("token", "private_key"), description="keys and tokens of well-known services and private keys, unless named"
    )
    rules: tuple[RuleConfig, ...] = Field((), description="rules of the operator's own")
    presidio: PresidioConfig | None = Field(None, description="have Presidio look, too; null does not")

    @model_validator(mode="after")
    def _one_rule_a_name(self) -> Self:
        names = [*self.builtin, *(rule.name for rule in self.rules)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"rules: {twice[0]!r} is there twice; give each rule a name of its own")
        return self

    @property
    def on(self) -> bool:
        return bool(self.builtin or self.rules or self.presidio)


class PrivacyConfig(StrictConfig):
    """Everything but ``redaction`` is about the disk of the coordinator and the journals of the replicas."""

    encrypt: bool = Field(True, description="text and token ids are sealed on disk with a key per user")
    keys_dir: str | None = Field(
        None, description="where the keys lie; by default beside the state folder, in its name with .keys"
    )
    master_key: str | None = Field(
        None, description="64 hex digits as env:NAME or file:PATH; by default a file master.key in keys_dir"
    )
    record_untrainable: bool = Field(
        True, description="whether turns of people who opted out of training are stored with their text"
    )
    retention_days: float | None = Field(
        None, gt=0.0, description="text and ids of turns finished longer ago are deleted; null keeps them"
    )
    redaction: RedactionConfig = Field(RedactionConfig(), description="what never reaches the disk")

    def keys_path(self, state: Path) -> Path:
        """Never inside the state folder, so that a backup of that alone cannot be read."""
        if self.keys_dir is None:
            return state.with_name(f"{state.name}.keys")
        return Path(self.keys_dir).expanduser().absolute() / state.name

    def master(self, environ: Mapping[str, str] = os.environ) -> bytes | None:
        """The key that wraps the others, if it is not to be a file beside them. Raises `ValueError`."""
        if self.master_key is None:
            return None
        if self.master_key.startswith(_ENV):
            text, source = environ.get(self.master_key.removeprefix(_ENV), ""), self.master_key
        elif self.master_key.startswith(_FILE):
            path = Path(self.master_key.removeprefix(_FILE)).expanduser()
            try:
                text, source = path.read_text(), str(path)
            except OSError as error:
                raise ValueError(f"master_key: {path} cannot be read: {error.strerror}") from error
        else:
            raise ValueError("master_key: must be env:NAME or file:PATH; the key itself does not belong in here")
        try:
            key = bytes.fromhex(text.strip())
        except ValueError:
            key = b""
        if len(key) != _MASTER_BYTES:
            raise ValueError(f"master_key: {source} does not hold 64 hex digits; `openssl rand -hex 32` makes some")
        return key

    def problems(self, state: Path, environ: Mapping[str, str] = os.environ) -> list[str]:
        """What the schema alone cannot see."""
        found = []
        try:
            self.master(environ)
        except ValueError as error:
            found.append(f"privacy.{error}")
        keys = self.keys_path(state)
        if keys.is_relative_to(state):
            found.append(
                f"privacy.keys_dir: {keys} is inside the state folder {state}, whose copies would carry their own "
                "keys; name a folder elsewhere"
            )
        return found
