"""What the HTTP side is told: names, keys, sampling defaults, limits."""

from typing import Literal, Self

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig


class SamplingDefaults(StrictConfig):
    """Used where a client names no value. They come from here, never from a model's generation_config.json.

    With ``override`` the operator imposes these on main turns whatever the client asked, so that they can train.
    """

    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0)
    max_tokens: int = Field(256, gt=0)
    override: bool = False


class UserConfig(StrictConfig):
    """One person with a key of their own. Only a hash of ``name`` is ever stored."""

    name: str = Field(min_length=1)
    key: str = Field(description="a literal key, or env:NAME to read it from the environment")
    requests_per_minute: int | None = Field(None, gt=0)


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
    users: tuple[UserConfig, ...] = Field((), description="people with keys of their own, who may talk but not operate")
    console: ConsoleConfig = ConsoleConfig()
    default_turn_type: Literal["main", "side"] = "main"
    sampling: SamplingDefaults = SamplingDefaults()
    max_body_bytes: int = Field(4_000_000, gt=0)
    ack_timeout_s: float = Field(10.0, gt=0, description="how long the last chunk waits for the ledger")
    journal_mb: float = Field(
        256.0, ge=0.0, description="turns that each replica keeps on its disk while the coordinator is away"
    )
    heartbeat_s: float = Field(10.0, gt=0, description="an empty delta is sent when nothing else was for so long")
    hold_timeout_s: float = Field(300.0, gt=0, description="how long a request may wait for a free slot")
    max_waiting_requests: int = Field(
        256, gt=0, description="for a slot, or for the newest weights; beyond this a request gets 429 with Retry-After"
    )

    @model_validator(mode="after")
    def _one_user_a_name(self) -> Self:
        names = [user.name for user in self.users]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"users: {twice[0]!r} is there twice; a name is what a person's turns are known by")
        return self
