"""How the policy is trained."""

from typing import Literal

from pydantic import Field

from clawrl.strict import StrictConfig


class LoraConfig(StrictConfig):
    """Adapters of ``rank`` on the linear layers that ``targets`` name, added with weight ``alpha / rank``."""

    rank: int = Field(16, gt=0)
    alpha: float = Field(32.0, gt=0.0)
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )


class TrainingConfig(StrictConfig):
    """``tp_size * fsdp_size`` ranks train; the laptop has one. Lengths count prompt + response tokens."""

    tp_size: int = Field(1, gt=0)
    fsdp_size: int = Field(1, gt=0)
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    batch_size: int = Field(8, gt=0, description="turns in one optimizer step")
    micro_batch_tokens: int = Field(2048, gt=0, description="tokens in one forward and backward pass of a rank")
    share_prefixes: bool = Field(True, description="samples that begin alike go through the model once as far as that")
    logits_mb: int = Field(256, gt=0, description="float32 logits that are held at once; the rest is done in turns")
    head_kernel: Literal["torch", "liger"] = Field("torch", description="what computes log-probs off hidden states")
    activation_checkpointing: bool = Field(False, description="compute each layer twice rather than keep its insides")
    offload_optimizer: bool = Field(False, description="keep float32 weights and Adam's moments in host memory")
    max_sample_tokens: int = Field(2048, gt=0, description="longer turns are dropped as too_long, never cut")
    max_staleness: int = Field(8, ge=0, description="versions a sample may lag; older ones are dropped as stale")
    lora: LoraConfig | None = Field(None, description="train low-rank adapters; without it all weights are trained")
    learning_rate: float = Field(2e-5, gt=0.0)
    betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = Field(1e-8, gt=0.0)
    weight_decay: float = Field(0.0, ge=0.0)
    max_grad_norm: float = Field(1.0, gt=0.0)
    updates_per_batch: int = Field(1, gt=0, description="optimizer passes over one batch (PPO epochs)")
    checkpoint_every: int = Field(5, gt=0, description="steps")
    keep_checkpoints: int = Field(2, gt=0)
    lease_timeout_s: float = Field(300.0, gt=0)
    poll_s: float = Field(2.0, gt=0.0, le=5.0, description="idle ranks hear from rank 0 at least this often")
    max_failures: int = Field(-1, ge=-1, description="worker failures Ray Train restarts; -1 is no limit")
    threads: int = Field(2, gt=0)
    seed: int = 0

    @property
    def world_size(self) -> int:
        return self.tp_size * self.fsdp_size
