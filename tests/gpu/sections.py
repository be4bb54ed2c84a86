"""The measurements. A section takes a `Job`, tells its rows as soon as it has them, and raises when it cannot go on."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from clawrl.engine.protocol import ScoreRequest
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import Sample, TurnId, VersionSpan
from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig
from clawrl.training.config import TrainingConfig
from clawrl.training.model import load_model
from clawrl.training.policy_trainer import PolicyTrainer
from tests.engine_tools import Answer
from tests.gpu.bench import Bench, answer, prompt_of, started, tokens
from tests.gpu.neighbour import checksum
from tests.gpu.publishing import publish
from tests.gpu.report import Row
from tests.gpu.runner import Job
from tests.gpu.shapes import Shape, make_folder, peak_flops, step_flops
from tests.training_samples import trainer_logps


def run(job: Job, tell: Callable[[Row | dict[str, str]], None]) -> None:
    bench = Bench(job, tell)
    if job.fails:
        raise RuntimeError("made to fail, as asked")
    name, _, dtype = job.section.partition(" ")
    if name == "weights":
        weights(bench)
    elif name == "trainer":
        trainer(bench)
    elif name == "engine":
        asyncio.run(engine(bench))
    elif name == "parity":
        asyncio.run(parity(bench, dtype))
    else:
        asyncio.run(publish(bench))


def weights(bench: Bench) -> None:
    parameters, size, seconds = make_folder(bench.shape, bench.job.folder, bench.device)
    bench.figure("parameters", parameters / 1e6)
    bench.figure("folder", size / 1e9)
    bench.figure("made in", seconds)


# -- trainer ------------------------------------------------------------------------------------------


def trainer(bench: Bench, steps: int = 3) -> None:
    """The learning rate is that of a real run times fifty, so that bf16 weights are seen to move in one step."""
    shape = bench.shape
    model = load_model(bench.job.folder, dtype=getattr(torch, shape.dtype), device=bench.device)
    training = PolicyTrainer(
        model,
        None,
        BinaryRL(BinaryRLConfig(baseline="none")),
        TrainingConfig(
            dtype=shape.dtype,  # type: ignore[arg-type]
            learning_rate=1e-3,
            micro_batch_tokens=shape.micro_batch_tokens,
        ),
    )
    seconds, changed = [], 0
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for step in range(1 + steps):
        samples, before = _samples(shape, step), checksum(weights)
        bench.wait()
        began = time.perf_counter()
        training.compute(samples)
        result = training.apply()
        bench.wait()
        seconds.append(time.perf_counter() - began)
        changed += result.changed and checksum(weights) != before
    lengths = [len(sample.prompt_ids) + len(sample.response_ids) for sample in samples]
    # The first step allocates, and chooses kernels.
    took = statistics.median(seconds[1:])
    bench.figure("step", took, f"median of {steps}; the first took {seconds[0]:.2f}")
    bench.figure("speed", sum(lengths) / took, f"{len(samples)} samples of {lengths[0]} tokens, prompts counted")
    _utilisation(bench, step_flops(shape, lengths, len(samples) * shape.response), took)
    bench.figure("changed", changed, f"of {1 + steps}", ok=changed == 1 + steps)
    bench.peak_memory()


def _utilisation(bench: Bench, flops: float, seconds: float) -> None:
    peak = peak_flops(bench.device_name)
    done = f"{flops / 1e12:.3g} TFLOP a step (6 N T + attention)"
    if peak is None:
        bench.figure("MFU", None, f"no peak is known for {bench.device_name}; {done}")
    else:
        bench.figure("MFU", 100 * flops / seconds / peak, f"of {peak / 1e12:.0f} TFLOP/s; {done}")


def _samples(shape: Shape, seed: int) -> list[Sample]:
    """Random tokens, half of them praised; behaviour log-probs as of a uniform policy."""
    rng = np.random.default_rng(seed)
    return [
        Sample(
            turn_id=TurnId(f"{seed}-{index}"),
            prompt_ids=tokens(rng, shape, shape.prompt),
            response_ids=tokens(rng, shape, shape.response),
            behaviour_logps=np.full(shape.response, -np.log(shape.vocabulary), dtype=np.float32),
            mask=np.ones(shape.response, dtype=np.bool_),
            spans=(VersionSpan(start=0, end=shape.response, version=0),),
            temperature=1.0,
            reward=1.0 if index % 2 else -1.0,
        )
        for index in range(shape.samples)
    ]


# -- engine -------------------------------------------------------------------------------------------


async def engine(bench: Bench) -> None:
    shape = bench.shape
    prompt, new = shape.context // 4, shape.context // 4
    began = time.perf_counter()
    async with started(bench, shape.dtype) as running:
        bench.figure("start", time.perf_counter() - began, f"{shape.dtype}, from the folder to {bench.device}")
        await _many(running, shape, "warm", count=shape.running, prompt=prompt, new=4)
        firsts = [(await answer(running, prompt_of(shape, seed, prompt), 1, f"first-{seed}"))[1] for seed in range(5)]
        bench.figure("first token", 1e3 * statistics.median(firsts), f"median of 5, {prompt} prompt tokens, alone")
        for figure, count in (("alone", 1), ("full batch", shape.running)):
            seconds = await _many(running, shape, figure, count=count, prompt=prompt, new=new)
            note = f"{count} x {new} new tokens after {prompt}, prefill counted"
            bench.figure(figure, count * new / seconds, note)
        bench.peak_memory()


async def _many(running: TransformersEngine, shape: Shape, name: str, *, count: int, prompt: int, new: int) -> float:
    """Seconds until all of ``count`` requests at once are answered in full."""
    began = time.perf_counter()
    answers = await asyncio.gather(
        *(answer(running, prompt_of(shape, seed, prompt), new, f"{name}-{seed}") for seed in range(count))
    )
    if any(len(one.ids) != new for one, _ in answers):
        raise AssertionError(f"asked for {new} tokens each, got {sorted({len(one.ids) for one, _ in answers})}")
    return time.perf_counter() - began


# -- parity -------------------------------------------------------------------------------------------


async def parity(bench: Bench, dtype: str) -> None:
    """What the engine sampled, scored and what the trainer reads off the same tokens, with the same weights."""
    shape = bench.shape
    temperatures = [1.0, 0.7, 1.3, 1.0]
    async with started(bench, dtype) as running:
        length = shape.context // 8
        answers = await asyncio.gather(
            *(
                answer(running, prompt_of(shape, seed, length + 3 * seed), 2 * length, f"parity-{seed}", temperature)
                for seed, temperature in enumerate(temperatures)
            )
        )
        samples = [_sampled(one, t, seed) for seed, ((one, _), t) in enumerate(zip(answers, temperatures, strict=True))]
        scores = await running.score(
            [
                ScoreRequest(
                    ids=np.concatenate([sample.prompt_ids, sample.response_ids]),
                    start=len(sample.prompt_ids),
                    temperature=sample.temperature,
                )
                for sample in samples
            ]
        )
    trained = _trainers(bench, dtype, samples)
    sampled = np.abs(np.concatenate([s.behaviour_logps for s in samples]) - trained)
    bench.difference("sampled - trainer, mean", sampled, dtype)
    bench.difference("sampled - trainer, max", sampled, dtype, largest=True)
    scored = np.abs(np.concatenate([s.logps for s in scores]) - trained)
    bench.difference("scored - trainer, max", scored, dtype, largest=True)
    bench.peak_memory()


def _sampled(one: Answer, temperature: float, seed: int) -> Sample:
    return Sample(
        turn_id=TurnId(f"parity-{seed}"),
        prompt_ids=one.prompt,
        response_ids=one.ids,
        behaviour_logps=one.logps,
        mask=np.ones(len(one.ids), dtype=np.bool_),
        spans=(VersionSpan(start=0, end=len(one.ids), version=0),),
        temperature=temperature,
        reward=0.0,
    )


@torch.no_grad()
def _trainers(bench: Bench, dtype: str, samples: list[Sample]) -> np.ndarray:
    """The log-probs of all responses, one after the other, as the trainer reads them off its packed batches."""
    model = load_model(bench.job.folder, dtype=getattr(torch, dtype), device=bench.device)
    return np.concatenate(trainer_logps(model, samples, bench.shape.micro_batch_tokens))
