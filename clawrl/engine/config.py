"""How an engine runs a model. One class for the policy and the judge."""

from typing import Literal

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig


class EngineConfig(StrictConfig):
    """``kv_blocks * page_size`` tokens fit the cache at once; requests beyond that wait their turn."""

    kind: Literal["transformers", "sglang"] = "transformers"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    context_length: int = Field(2048, gt=0, description="prompt + response tokens of one request")
    max_running_requests: int = Field(8, gt=0)
    kv_blocks: int = Field(64, gt=0)
    page_size: int = Field(256, ge=16)
    max_batch_tokens: int = Field(
        256, gt=0, description="tokens in one forward pass; bounds a prefill's hold on others"
    )
    score_batch_tokens: int = Field(4096, gt=0, description="padded tokens in one scoring pass")
    threads: int = Field(2, gt=0, description="CPU threads of torch in this process")
    tp_size: int = Field(1, gt=0, description="GPUs that share one engine")
    seed: int | None = None

    @model_validator(mode="after")
    def _cache_holds_one_request(self) -> "EngineConfig":
        if self.kv_blocks * self.page_size < self.context_length:
            raise ValueError(
                f"the cache holds kv_blocks * page_size = {self.kv_blocks * self.page_size} tokens, fewer than "
                f"context_length = {self.context_length}; raise kv_blocks or lower context_length"
            )
        return self
