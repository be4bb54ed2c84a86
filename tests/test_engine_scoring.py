"""Scoring reads the same log-probs as a plain forward pass, whatever the batch around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig, MistralForCausalLM

from clawrl.engine.errors import UnsupportedRequest
from clawrl.engine.protocol import ScoreRequest, Scores
from clawrl.engine.scoring import plan_batches
from clawrl.engine.transformers import TransformersEngine
from tests.engine_tools import TINY, publish, running_engine, weights_of


def test_scores_of_a_mixed_batch_equal_single_forward_passes(tiny_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (2, 17, 40, 9)]
    asked = [
        ScoreRequest(ids=ids, start=max(1, len(ids) // 2), temperature=0.8, top_k=3, token_ids=(7, 300))
        for ids in texts
    ]

    async def run() -> None:
        config = TINY.model_copy(update={"score_batch_tokens": 60})
        async with running_engine(tiny_folder, config) as engine:
            for request, scores in zip(asked, await engine.score(asked), strict=True):
                with torch.no_grad():
                    ids = torch.from_numpy(request.ids.astype(np.int64))
                    reference = (model(ids[None]).logits[0] / 0.8).log_softmax(-1)
                rows = reference[request.start - 1 : -1]
                expected = rows.gather(-1, ids[request.start :, None])[:, 0]
                np.testing.assert_allclose(scores.logps, expected.numpy(), atol=1e-5)
                np.testing.assert_allclose(scores.topk_logps, rows.topk(3).values.numpy(), atol=1e-5)
                assert (scores.topk_ids == rows.topk(3).indices.numpy()).all()
                np.testing.assert_allclose(scores.next_logps, reference[-1, [7, 300]].numpy(), atol=1e-5)

    asyncio.run(run())


def test_a_request_for_the_next_token_only_returns_no_token_logps(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            ids = np.arange(5, 25, dtype=np.int32)
            (scores,) = await engine.score([ScoreRequest(ids=ids, start=20, token_ids=(1, 2))])
            assert len(scores.logps) == 0 and scores.next_logps is not None and len(scores.next_logps) == 2
            with pytest.raises(UnsupportedRequest, match="start"):
                await engine.score([ScoreRequest(ids=ids, start=0)])

    asyncio.run(run())


def test_batches_hold_every_text_once_within_the_budget() -> None:
    lengths = [5, 900, 30, 30, 31, 2000, 1]
    groups = list(plan_batches(lengths, 128))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or max(lengths[i] for i in group) * len(group) <= 128


OPENING = np.arange(10, 60, dtype=np.int32)


@contextmanager
def counted_tokens(engine: TransformersEngine) -> Iterator[list[int]]:
    """How many tokens each forward pass computes."""
    counts: list[int] = []

    def note(module: torch.nn.Module, arguments: tuple[()], named: dict[str, torch.Tensor]) -> None:
        counts.append(named["input_ids"].numel())

    handle = engine.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()


def _asked(rest: int, *, shared: int = len(OPENING), start: int | None = None) -> ScoreRequest:
    ids = np.concatenate([OPENING, np.arange(100, 100 + rest)]).astype(np.int32)
    start = len(OPENING) + 1 if start is None else start
    return ScoreRequest(ids=ids, start=start, temperature=0.7, top_k=4, token_ids=(5, 6), shared=shared)


def _assert_same(found: list[Scores], expected: list[Scores]) -> None:
    for one, other in zip(found, expected, strict=True):
        for name in ("logps", "topk_logps", "next_logps"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)
        assert (one.topk_ids == other.topk_ids).all() and one.version == other.version


def test_a_shared_opening_is_computed_once_and_changes_no_result(tiny_folder: Path) -> None:
    asked = [_asked(30), _asked(3), _asked(12, start=len(OPENING) + 5)]

    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            expected = await engine.score([replace(request, shared=0) for request in asked])
            with counted_tokens(engine) as counts:
                _assert_same(await engine.score(asked), expected)
                assert counts == [len(OPENING), 3 * 30]
                _assert_same(await engine.score(asked[1:2]), expected[1:2])
                assert counts[2:] == [3]

    asyncio.run(run())


def test_a_call_may_mix_openings_and_texts_that_ask_about_the_opening_itself(tiny_folder: Path) -> None:
    # Predicted from inside the opening, from its last token, and from the first token after it.
    asked = [_asked(9, start=start) for start in (1, len(OPENING), len(OPENING) + 1)]
    asked += [_asked(9, shared=20), _asked(4, shared=0), _asked(0, start=len(OPENING))]

    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            expected = await engine.score([replace(request, shared=0) for request in asked])
            for _ in range(2):
                _assert_same(await engine.score(asked), expected)

    asyncio.run(run())


def test_what_is_kept_of_an_opening_does_not_outlive_the_weights(tiny_folder: Path, other_tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            (before,) = await engine.score([_asked(8)])
            await publish(engine, 1, weights_of(other_tiny_folder))
            (kept,) = await engine.score([_asked(8)])
            (expected,) = await engine.score([_asked(8, shared=0)])
            _assert_same([kept], [expected])
            assert kept.version == 1 and np.abs(kept.logps - before.logps).max() > 1e-3

    asyncio.run(run())


def test_only_the_last_few_openings_are_kept(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            with counted_tokens(engine) as counts:
                for shared in (10, 11, 12, 13, 10, 14, 10, 11):
                    await engine.score([_asked(2, shared=shared)])
            # The rest of every text is longer than any of these openings.
            computed = [count for count in counts if count < 20]
            assert computed == [10, 11, 12, 13, 14, 11]

    asyncio.run(run())


def test_a_model_that_forgets_its_beginning_is_computed_in_full(build_model: Callable[..., Path]) -> None:
    folder = build_model()
    torch.manual_seed(0)
    tokens = len(AutoTokenizer.from_pretrained(folder))
    config = MistralConfig(
        vocab_size=tokens, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, sliding_window=16, initializer_range=0.2,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(folder)

    async def run() -> None:
        engine = TransformersEngine(folder, TINY, generates=False)
        await engine.start()
        try:
            expected = await engine.score([_asked(30, shared=0)])
            with counted_tokens(engine) as counts:
                _assert_same(await engine.score([_asked(30)]), expected)
            assert counts == [len(OPENING) + 30]
        finally:
            await engine.stop()

    asyncio.run(run())
