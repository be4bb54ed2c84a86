"""The transformers engine generates exactly, and one bad request never disturbs another."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from clawrl.engine.errors import EngineError, UnsupportedRequest
from clawrl.messages import FinishReason
from tests.engine_tools import TINY, Drain, cold_logps, collect, generate, never_ending, request, running_engine

PROMPT = list(range(10, 40))


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.3])
def test_logps_are_the_plain_log_softmax_at_the_sampling_temperature(tiny_folder: Path, temperature: float) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            answer = await generate(engine, PROMPT, temperature=temperature, max_tokens=24)
            reference = cold_logps(tiny_folder, answer, temperature)
            np.testing.assert_allclose(answer.logps, reference, atol=1e-4)
            assert np.abs(answer.logps[1:] - reference[:-1]).max() > 0.1, "a shift by one must show"

    asyncio.run(run())


def test_an_integer_temperature_is_served(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            answer = await generate(engine, PROMPT, temperature=1, top_p=1, max_tokens=8)
            np.testing.assert_allclose(answer.logps, cold_logps(tiny_folder, answer), atol=1e-4)

    asyncio.run(run())


def test_temperature_zero_is_greedy(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            first = await generate(engine, PROMPT, temperature=0, max_tokens=12)
            second = await generate(engine, PROMPT, temperature=0.0, max_tokens=12)
            assert first.ids.tolist() == second.ids.tolist()

    asyncio.run(run())


def test_top_k_and_top_p_restrict_what_is_sampled(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            greedy = await generate(engine, PROMPT, temperature=0, max_tokens=12)
            narrow = await generate(engine, PROMPT, temperature=1.0, top_k=1, max_tokens=12)
            nucleus = await generate(engine, PROMPT, temperature=1.0, top_p=1e-6, max_tokens=12)
            assert greedy.ids.tolist() == narrow.ids.tolist() == nucleus.ids.tolist()

    asyncio.run(run())


def test_hostile_requests_leave_a_healthy_stream_undisturbed(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            never_ending(engine)
            healthy = Drain(engine, request(PROMPT, temperature=1.0, max_tokens=400))
            await healthy.more(1)
            with pytest.raises(UnsupportedRequest, match="do not fit"):
                await generate(engine, [5] * 4000, max_tokens=10)
            with pytest.raises(UnsupportedRequest, match="empty"):
                await generate(engine, [], max_tokens=10)
            with pytest.raises(UnsupportedRequest, match="outside"):
                await generate(engine, [10**6], max_tokens=10)
            for temperature in (float("nan"), float("inf"), -1.0, 1e-40):
                with pytest.raises(UnsupportedRequest, match="temperature"):
                    await generate(engine, PROMPT, temperature=temperature, max_tokens=10)
            await generate(engine, PROMPT, temperature=0, max_tokens=10)
            await generate(engine, PROMPT, temperature=2, max_tokens=10)
            await generate(engine, PROMPT, stop=("a", "e"), max_tokens=50)
            cancelled = Drain(engine, request(PROMPT, max_tokens=400))
            await cancelled.more(1)
            cancelled.cancel()
            answer = await healthy.answer()
            assert len(answer.ids) == 400
            engine.health()
            np.testing.assert_allclose(answer.logps, cold_logps(tiny_folder, answer), atol=1e-4)

    asyncio.run(run())


def test_a_fault_in_one_requests_results_leaves_its_neighbours_whole(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            original = engine._collect

            def collect_or_fail(running, output, base):  # type: ignore[no-untyped-def]
                if running.request.sampling.max_tokens == 77:
                    raise KeyError("a tokenizer error, say")
                original(running, output, base)

            engine._collect = collect_or_fail  # type: ignore[method-assign]
            faulty, *healthy = await asyncio.wait_for(
                asyncio.gather(
                    generate(engine, PROMPT, max_tokens=77),
                    *(generate(engine, PROMPT, max_tokens=60) for _ in range(3)),
                    return_exceptions=True,
                ),
                120,
            )
            assert isinstance(faulty, EngineError)
            for answer in healthy:
                np.testing.assert_allclose(answer.logps, cold_logps(tiny_folder, answer), atol=1e-4)
            assert engine.slots.running == 0

    asyncio.run(run())


def test_a_stop_string_ends_the_answer_at_the_token_that_completes_it(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            for _ in range(3):
                answer = await generate(engine, PROMPT, stop=("e", "a", "o", "t"), max_tokens=400)
                if answer.finish is FinishReason.STOP and answer.ids[-1] != engine.tokenizer.eos_token_id:
                    break
            text = engine.tokenizer.decode(answer.ids)
            before = engine.tokenizer.decode(answer.ids[:-1])
            assert any(stop in text for stop in "eaot")
            assert not any(stop in before for stop in "eaot")
            np.testing.assert_allclose(answer.logps, cold_logps(tiny_folder, answer), atol=1e-4)

    asyncio.run(run())


def test_tokens_leave_one_by_one_while_the_rest_is_still_being_sampled(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            never_ending(engine)
            asked = request(PROMPT, max_tokens=100)
            times, chunks = [], []
            async for chunk in engine.generate(asked):
                times.append(time.perf_counter())
                chunks.append(chunk)
            assert len(chunks) > len(collect(asked.prompt_ids, chunks).ids) // 2
            assert times[0] - times[-1] < -0.01

    asyncio.run(run())


def test_a_closed_stream_frees_its_slot_and_the_next_request_runs(tiny_folder: Path) -> None:
    async def run() -> None:
        config = TINY.model_copy(update={"max_running_requests": 1})
        async with running_engine(tiny_folder, config) as engine:
            never_ending(engine)
            stream = engine.generate(request(PROMPT, max_tokens=400))
            await anext(stream)
            waiting = asyncio.create_task(generate(engine, PROMPT, max_tokens=5))
            while engine.slots.waiting == 0:
                await asyncio.sleep(0)
            assert (engine.slots.running, engine.slots.waiting) == (1, 1)
            await stream.aclose()
            assert len((await asyncio.wait_for(waiting, 120.0)).ids) <= 5
            assert (engine.slots.running, engine.slots.waiting) == (0, 0)

    asyncio.run(run())


def test_more_requests_than_the_cache_holds_wait_and_all_finish(tiny_folder: Path) -> None:
    async def run() -> None:
        config = TINY.model_copy(update={"kv_blocks": 16, "max_running_requests": 8})
        async with running_engine(tiny_folder, config) as engine:
            answers = await asyncio.gather(*(generate(engine, PROMPT, max_tokens=220) for _ in range(10)))
            for answer in answers[:3]:
                np.testing.assert_allclose(answer.logps, cold_logps(tiny_folder, answer), atol=1e-4)

    asyncio.run(run())


def test_a_dead_loop_fails_the_requests_and_the_health_check(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            never_ending(engine)
            stream = Drain(engine, request(PROMPT, max_tokens=400))
            await stream.more(10)
            original, engine.model.forward = engine.model.forward, _explode
            with pytest.raises(EngineError, match="generation failed"):
                await asyncio.wait_for(stream.answer(), 120.0)
            with pytest.raises(EngineError, match="died"):
                async with asyncio.timeout(120.0):
                    # Its thread may still be on its way out.
                    while True:
                        engine.health()
                        await asyncio.sleep(0.01)
            with pytest.raises(EngineError):
                await generate(engine, PROMPT, max_tokens=5)
            engine.model.forward = original

    asyncio.run(run())


def _explode(*args: object, **kwargs: object) -> None:
    raise RuntimeError("out of memory, say")
