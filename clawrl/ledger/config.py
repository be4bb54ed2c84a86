"""How long the ledger waits and how much it keeps."""

from pydantic import Field

from clawrl.strict import StrictConfig


class LedgerConfig(StrictConfig):
    idle_timeout_s: float = Field(1800.0, gt=0.0, description="a turn without a follow-up this long is dropped")
    sweep_s: float = Field(2.0, gt=0.0, description="seconds between two looks for turns and leases whose time is over")
    duplicate_window_s: float = Field(
        3600.0, gt=0.0, description="the same answer to the same request within this time is a duplicate"
    )
    keep_finished_turns: int = Field(
        50_000, gt=0, description="older trained or dropped turns are counted, then deleted"
    )
    keep_trained_steps: int = Field(
        100,
        ge=0,
        description="turns of this many steps before the last checkpoint are never deleted: it may be replaced",
    )
