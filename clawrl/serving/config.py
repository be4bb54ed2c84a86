"""What the HTTP side is told: names, keys, sampling defaults, limits."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from clawrl.serving.browsers import parse_authority
from clawrl.strict import StrictConfig

LOCAL_OWNER = "local"
_OWNER_ID = re.compile(r"[0-9a-f]{16}")


def looks_like_an_owner(name: str) -> bool:
    """Whether this stands for itself where an owner is named: an owner id, or everybody's where there are no keys."""
    return name == LOCAL_OWNER or _OWNER_ID.fullmatch(name) is not None


class SamplingDefaults(StrictConfig):
    """Used where a client names no value. They come from here, never from a model's generation_config.json.

    With ``override`` the operator imposes these on main turns whatever the client asked, so that they can train.
    """

    temperature: float = Field(
        1.0, ge=0.0, le=2.0, description="1 samples from the model's own distribution, 0 is greedy and does not train"
    )
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="share of the probability that is sampled from; below 1 does not train"
    )
    top_k: int = Field(0, ge=0, description="tokens that are sampled from; 0 is all, anything else does not train")
    max_tokens: int = Field(256, gt=0, description="longest answer in tokens, reasoning included")
    override: bool = Field(
        False,
        description="impose temperature, top_p and top_k on main turns whatever the client asked, so that they can "
        "train",
    )


class UserConfig(StrictConfig):
    """One person with a key of their own. Only a hash of ``name`` is ever stored."""

    name: str = Field(min_length=1, description="whom the turns belong to; only a hash of it is stored")
    key: str = Field(description="a literal key, or env:NAME to read it from the environment")
    requests_per_minute: int | None = Field(
        None, gt=0, description="beyond it 429, counted by each ingress replica for itself; null is no limit"
    )
    train: bool = Field(True, description="whether anything of theirs may be learned from")

    @model_validator(mode="after")
    def _can_be_named(self) -> Self:
        if looks_like_an_owner(self.name) or self.name != self.name.strip():
            raise ValueError(
                f"name {self.name!r} reads as an owner id, or has spaces around it, so that nobody could ask to forget "
                "this user by it; give them another name"
            )
        return self


class ConsoleConfig(StrictConfig):
    """The web page at ``/console``. Without a ``key`` the operator's opens it; one of its own can be changed apart."""

    enabled: bool = Field(True, description="serve the web page at /console")
    key: str | None = Field(
        None, description="a key for the console alone, literal or env:NAME; it may operate, and talks as its own owner"
    )

    @model_validator(mode="after")
    def _a_key_opens_something(self) -> Self:
        if self.key is not None and not self.enabled:
            raise ValueError("key is set but enabled is false; remove the key, or enable the console")
        return self


class ServingConfig(StrictConfig):
    served_name: str = Field(description="the model id that clients use")
    api_key: str | None = Field(
        None, description="the operator's key, literal or env:NAME to read it from the environment; null lets all in"
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="without a key: names that requests may be for, beside addresses and localhost, and whose pages "
        "may send them; such as box.lan or box.lan:8000",
    )
    users: tuple[UserConfig, ...] = Field((), description="people with keys of their own, who may talk but not operate")
    train: bool = Field(
        True,
        description="whether what comes with the operator's key, the console's, or with none, may be learned from",
    )
    console: ConsoleConfig = Field(ConsoleConfig(), description="the web page for whoever runs this")
    default_turn_type: Literal["main", "side"] = Field(
        "main", description="of requests that do not say: main turns train, side turns never do"
    )
    sampling: SamplingDefaults = Field(SamplingDefaults(), description="used where a client names no value")
    max_body_bytes: int = Field(4_000_000, gt=0, description="larger requests get 413")
    ack_timeout_s: float = Field(10.0, gt=0, description="how long the last chunk waits for the ledger")
    journal_mb: float = Field(
        256.0, ge=0.0, description="turns that each replica keeps on its disk while the coordinator is away"
    )
    heartbeat_s: float = Field(10.0, gt=0, description="an empty delta is sent when nothing else was for so long")
    hold_timeout_s: float = Field(300.0, gt=0, description="how long a request may wait for a free slot")
    max_waiting_requests: int = Field(
        256, gt=0, description="for a slot, or for the newest weights; beyond this a request gets 429 with Retry-After"
    )

    def without_keys(self) -> Self:
        """Not a key, nor whose they were."""
        console = self.console.model_copy(update={"key": None})
        return self.model_copy(update={"api_key": None, "users": (), "console": console})

    @model_validator(mode="after")
    def _one_user_a_name(self) -> Self:
        names = [user.name for user in self.users]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"users: {twice[0]!r} is there twice; a name is what a person's turns are known by")
        return self

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_are_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((host for host in hosts if parse_authority(host) is None), None)
        if wrong is not None:
            raise ValueError(
                f"{wrong!r} is no host; write a name as in box.lan or box.lan:8000, without http:// or a path"
            )
        return hosts
