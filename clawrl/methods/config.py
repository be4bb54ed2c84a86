"""Settings of the learning methods. ``name`` picks the file in ``methods/`` that runs."""

from typing import Literal

from pydantic import Field

from clawrl.strict import StrictConfig


class BinaryRLConfig(StrictConfig):
    """Reward broadcast over the response, PPO-clipped; KL to the frozen start, truncated importance sampling."""

    name: Literal["binary_rl"] = "binary_rl"
    eps_clip: float = Field(0.2, gt=0.0, lt=1.0)
    eps_clip_high: float = Field(0.28, gt=0.0)
    kl_coef: float = Field(0.0, ge=0.0)
    tis_clip: float = Field(2.0, gt=0.0, description="cap of the train/behaviour probability ratio")
    baseline: Literal["none", "running"] = "running"
    baseline_decay: float = Field(0.9, ge=0.0, lt=1.0)
    aggregation: Literal["token_mean", "sample_mean"] = "sample_mean"


MethodConfig = BinaryRLConfig
