"""What the engine adapter costs: its tokens per second as a ratio to transformers' own continuous batching.

    python bench/engine_overhead.py MODEL_FOLDER [--requests 8] [--tokens 64] [--rounds 3]

Both run the same prompts in this process, one after the other, round by round, on the same weights. The peer returns
whole answers; ours streams every token with its log-prob, version and admission. A ratio near 1 is the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from clawrl.engine.config import EngineConfig
from clawrl.engine.protocol import GenerateRequest
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import SamplingParams


async def ours(engine: TransformersEngine, prompts: list[list[int]], tokens: int, round_: int) -> float:
    async def one(number: int, prompt: list[int]) -> int:
        request = GenerateRequest(
            request_id=f"{round_}-{number}",
            prompt_ids=np.asarray(prompt, dtype=np.int32),
            sampling=SamplingParams(max_tokens=tokens),
        )
        return sum([len(chunk.ids) async for chunk in engine.generate(request)])

    began = time.perf_counter()
    counts = await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    return sum(counts) / (time.perf_counter() - began)


def peer(engine: TransformersEngine, prompts: list[list[int]], tokens: int, config: EngineConfig) -> float:
    settings = ContinuousBatchingConfig(
        return_logprobs=True,
        page_size=config.page_size,
        num_blocks=config.kv_blocks,
        max_batch_tokens=config.max_batch_tokens,
        max_requests_per_batch=config.max_running_requests,
        allow_block_sharing=False,
        use_async_batching=False,
    )
    sampling = GenerationConfig(do_sample=True, max_new_tokens=tokens, eos_token_id=engine.model.config.eos_token_id)
    manager = engine.model.init_continuous_batching(generation_config=sampling, continuous_batching_config=settings)
    manager.start()
    try:
        manager.get_result(manager.add_request(prompts[0][:8], max_new_tokens=1))  # the loop sets itself up
        began = time.perf_counter()
        names = [manager.add_request(list(prompt), max_new_tokens=tokens) for prompt in prompts]
        counts = [len(manager.get_result().generated_tokens) for _ in names]
        return sum(counts) / (time.perf_counter() - began)
    finally:
        manager.stop(block=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    config = EngineConfig(dtype="float32", context_length=1024, kv_blocks=32, threads=torch.get_num_threads())
    engine = TransformersEngine(asked.model, config)
    await engine.start()
    try:
        generator = torch.Generator().manual_seed(0)
        prompts = [torch.randint(300, (60,), generator=generator).tolist() for _ in range(asked.requests)]
        await ours(engine, prompts, 4, -1)
        ratios = []
        for round_ in range(asked.rounds):
            mine = await ours(engine, prompts, asked.tokens, round_)
            theirs = await asyncio.to_thread(peer, engine, prompts, asked.tokens, config)
            ratios.append(mine / theirs)
            print(f"round {round_}: ours {mine:.1f} tokens/s, peer {theirs:.1f} tokens/s, ratio {ratios[-1]:.3f}")
        print(f"median ratio {statistics.median(ratios):.3f}")
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
