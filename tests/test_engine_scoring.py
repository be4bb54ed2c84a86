"""Scoring reads the same log-probs as a plain forward pass, whatever the batch around it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from clawrl.engine.protocol import ScoreRequest, UnsupportedRequest
from clawrl.engine.scoring import plan_batches
from tests.engine_tools import TINY, running_engine


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
