"""How the policy is trained."""

from typing import Any, Literal

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig
from clawrl.training.schedule import FullSchedule, Schedule, smallest_batch
from clawrl.training.staleness import StalenessConfig, most_behind


class LoraConfig(StrictConfig):
    """Adapters of ``rank`` on the linear layers that ``targets`` name, added with weight ``alpha / rank``."""

    rank: int = Field(16, gt=0, description="inner width of an adapter")
    alpha: float = Field(32.0, gt=0.0, description="an adapter is added with weight alpha / rank")
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="names of the linear layers that get one",
    )


class TrainingConfig(StrictConfig):
    """``tp_size * fsdp_size`` ranks train; the laptop has one. Lengths count prompt + response tokens."""

    tp_size: int = Field(1, gt=0, description="ranks that each layer is cut over; must divide the model's heads")
    fsdp_size: int = Field(1, gt=0, description="ranks that samples and the storage of weights are shared out over")
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="of the weights that compute; masters and moments are float32"
    )
    batch_size: int = Field(8, gt=0, description="turns in one optimizer step")
    micro_batch_tokens: int = Field(2048, gt=0, description="tokens in one forward and backward pass of a rank")
    share_prefixes: bool = Field(True, description="samples that begin alike go through the model once as far as that")
    logits_mb: int = Field(256, gt=0, description="float32 logits that are held at once; the rest is done in turns")
    head_kernel: Literal["torch", "liger"] = Field("torch", description="what computes log-probs off hidden states")
    activation_checkpointing: bool = Field(False, description="compute each layer twice rather than keep its insides")
    offload_optimizer: bool = Field(False, description="keep float32 weights and Adam's moments in host memory")
    max_sample_tokens: int = Field(2048, gt=0, description="longer turns are dropped as too_long, never cut")
    staleness: StalenessConfig = Field(StalenessConfig(), description="how old a sample may be")
    schedule: Schedule = Field(FullSchedule(), description="when a step may be taken")
    lora: LoraConfig | None = Field(None, description="train low-rank adapters; without it all weights are trained")
    learning_rate: float = Field(2e-5, gt=0.0, description="of AdamW, constant")
    betas: tuple[float, float] = Field((0.9, 0.98), description="of AdamW's two moments")
    adam_eps: float = Field(1e-8, gt=0.0, description="of AdamW's denominator")
    weight_decay: float = Field(0.0, ge=0.0, description="of AdamW, per step and times the learning rate")
    max_grad_norm: float = Field(1.0, gt=0.0, description="longer gradients are cut to this length")
    updates_per_batch: int = Field(1, gt=0, description="optimizer passes over one batch (PPO epochs)")
    checkpoint_every: int = Field(5, gt=0, description="steps")
    keep_checkpoints: int = Field(2, gt=0, description="complete ones that stay on disk")
    lease_timeout_s: float = Field(
        300.0, gt=0, description="seconds after which turns that were lent go back to the queue"
    )
    poll_s: float = Field(2.0, gt=0.0, le=5.0, description="idle ranks hear from rank 0 at least this often")
    collective_timeout_s: float = Field(
        1800.0, ge=1.0, description="a rank that keeps the others waiting for longer ends the run, which is restarted"
    )
    start_timeout_s: float = Field(
        3600.0, ge=1.0, description="ranks that do not hold the model so long after their start are started anew"
    )
    max_failures: int = Field(-1, ge=-1, description="worker failures Ray Train restarts; -1 is no limit")
    threads: int = Field(2, gt=0, description="CPU threads of torch in each rank")
    seed: int = Field(0, description="of the adapters' start and whatever else a rank draws")

    @property
    def world_size(self) -> int:
        return self.tp_size * self.fsdp_size

    @model_validator(mode="before")
    @classmethod
    def _names_what_took_the_place_of_an_older_key(cls, given: Any) -> Any:
        if isinstance(given, dict) and "max_staleness" in given:
            raise ValueError(
                "max_staleness is now staleness.max_steps and counts optimizer steps instead of versions (a version is "
                "updates_per_batch steps); write `staleness: {max_steps: 2}` for 2 of them"
            )
        return given

    @model_validator(mode="after")
    def _some_batch_can_be_trained(self) -> "TrainingConfig":
        if most_behind(self.staleness.max_steps, self.updates_per_batch) < 0:
            raise ValueError(
                f"staleness.max_steps {self.staleness.max_steps} lets no turn train: the last of updates_per_batch "
                f"{self.updates_per_batch} passes lags {self.updates_per_batch - 1} steps by itself; raise max_steps"
            )
        least = smallest_batch(self.schedule, self.batch_size)
        if least > self.batch_size:
            raise ValueError(f"schedule.minimum {least} is more than batch_size {self.batch_size}; lower it")
        return self
