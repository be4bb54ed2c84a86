"""Log-probs read off SGLang's replies, against the closed form over a whole vocabulary in float64."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clawrl.engine.config import EngineConfig
from clawrl.engine.errors import EngineError, UnsupportedRequest
from clawrl.engine.protocol import ScoreRequest
from clawrl.engine.sglang import SglangEngine
from clawrl.engine.sglang_api import Refusal, SglangError
from clawrl.engine.sglang_scores import (
    TOLERANCES,
    WrongReply,
    first_candidates,
    log_partition,
    read_scores,
    score_body,
    version_of,
)

TOLERANCE = TOLERANCES["float32"]
VOCABULARY = 2000
TEMPERATURES = [0.3, 0.5, 0.7, 0.95, 1.1, 1.5, 2.0]


def request(ids: Sequence[int], start: int, **rest: Any) -> ScoreRequest:
    return ScoreRequest(ids=np.asarray(ids, dtype=np.int32), start=start, **rest)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def distributions(count: int = 8) -> np.ndarray:
    """Log-probs float64[N, V] from nearly flat to nearly certain."""
    rng = np.random.default_rng(0)
    sharpness = np.geomspace(0.3, 8.0, count)[:, None]
    return log_softmax(sharpness * rng.standard_normal((count, VOCABULARY)))


def best(logp_NV: np.ndarray, candidates: int) -> np.ndarray:
    return -np.sort(-logp_NV, axis=-1)[:, :candidates]


def true_partition(logp_NV: np.ndarray, temperature: float) -> np.ndarray:
    return np.log(np.exp(logp_NV / temperature).sum(-1))


# -- the partition ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_partition_of_the_whole_vocabulary_is_exact_and_says_so(temperature: float) -> None:
    logp_NV = distributions()
    log_z_N, error_N = log_partition(best(logp_NV, VOCABULARY), temperature, VOCABULARY)
    np.testing.assert_allclose(log_z_N, true_partition(logp_NV, temperature), atol=1e-9, rtol=0)
    assert not error_N.any()


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("candidates", [1, 8, 128, 1024, VOCABULARY - 1])
def test_the_partition_of_the_best_is_no_further_off_than_it_says(temperature: float, candidates: int) -> None:
    logp_NV = distributions()
    log_z_N, error_N = log_partition(best(logp_NV, candidates), temperature, VOCABULARY)
    off_N = np.abs(log_z_N - true_partition(logp_NV, temperature))
    assert (off_N <= error_N + 1e-9).all(), (off_N, error_N)


@pytest.mark.parametrize("temperature", [0.3, 0.5, 0.7])
def test_below_one_a_few_hundred_candidates_are_enough_for_a_distribution_like_a_models(temperature: float) -> None:
    logp_NV = distributions()[-2:]
    _, error_N = log_partition(best(logp_NV, 512), temperature, VOCABULARY)
    assert error_N.max() < TOLERANCE


@pytest.mark.parametrize("temperature", [1.5, 2.0])
def test_what_float32_hides_of_a_nearly_certain_distribution_is_within_the_bound(temperature: float) -> None:
    """All but a ten-millionth of the mass is on one token: in float32 nothing is left for the many others."""
    logp_V = np.full((1, 150_000), np.log(1e-7 / 149_999))
    logp_V[0, 0] = np.log1p(-1e-7)
    named = logp_V[:, :128].astype(np.float32).astype(np.float64)
    named[0, 0] = 0.0
    log_z_N, error_N = log_partition(named, temperature, 150_000)
    off = abs(float(log_z_N[0] - true_partition(logp_V, temperature)[0]))
    assert off > 10 * TOLERANCE and off <= error_N[0], "more candidates must be asked for"


# -- what is asked ------------------------------------------------------------------------------------------------


def test_log_probs_are_asked_from_the_token_before_the_first_and_at_the_requests_temperature() -> None:
    body = score_body(
        [
            request([5, 6, 7, 8], 2, temperature=0.7, top_k=3),
            request([5, 6], 2, token_ids=(1, 4)),
            request([9, 9, 9], 1, token_ids=(2,)),
        ],
        [128, 0, 0],
    )
    assert body["input_ids"] == [[5, 6, 7, 8], [5, 6], [9, 9, 9]]
    assert body["logprob_start_len"] == [1, -1, 0], "-1: nothing of the text itself"
    assert body["top_logprobs_num"] == [128, 0, 0] and body["return_logprob"] == [True] * 3
    assert body["token_ids_logprob"] == [[], [1, 4], [2]]
    assert [p["max_new_tokens"] for p in body["sampling_params"]] == [0, 1, 1], "one token where the next is asked for"
    assert [p["temperature"] for p in body["sampling_params"]] == [0.7, 1.0, 1.0]
    assert all(type(token) is int for ids in body["input_ids"] for token in ids), "it must become JSON"


def test_candidates_are_asked_for_only_where_the_temperature_needs_them() -> None:
    assert first_candidates(request([1, 2], 1), 2000) == 0
    assert first_candidates(request([1, 2], 1, top_k=7), 2000) == 7
    assert first_candidates(request([1, 2], 1, temperature=0.7), 2000) == 128
    assert first_candidates(request([1, 2], 1, temperature=0.7, top_k=200), 2000) == 200
    assert first_candidates(request([1, 2], 1, temperature=0.7), 50) == 50, "there are no more"
    assert first_candidates(request([1, 2], 2, temperature=0.7, token_ids=(1,)), 2000) == 0


# -- what is answered ---------------------------------------------------------------------------------------------


class Model:
    """Answers like SGLang, from a log-prob table: position ``i`` of a text is predicted by row ``i - 1``."""

    def __init__(self, vocabulary: int = VOCABULARY, *, rows: int = 12, sharpness: float = 2.0) -> None:
        rng = np.random.default_rng(1)
        self.logp_TV = log_softmax(sharpness * rng.standard_normal((rows, vocabulary)))
        self.vocabulary = vocabulary
        self.asked: list[list[int]] = []

    def reply(self, asked: ScoreRequest, candidates: int) -> dict[str, Any]:
        body = score_body([asked], [candidates])
        return self.replies(body)[0]

    def replies(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.asked.append(body["top_logprobs_num"])
        return [self._one(body, index) for index in range(len(body["input_ids"]))]

    def _one(self, body: Mapping[str, Any], index: int) -> dict[str, Any]:
        ids, start = body["input_ids"][index], body["logprob_start_len"][index]
        candidates, sampling = body["top_logprobs_num"][index], body["sampling_params"][index]
        meta: dict[str, Any] = {"weight_version": "7"}
        if start >= 0:
            meta["input_token_logprobs"] = [[None, ids[start], None]] + [
                [float(self.logp_TV[i - 1, ids[i]]), self._named(ids[i]), None] for i in range(start + 1, len(ids))
            ]
            rows = [
                np.argsort(-self.logp_TV[i - 1])[:candidates] if candidates else [] for i in range(start + 1, len(ids))
            ]
            meta["input_top_logprobs"] = [None] + [
                [[float(self.logp_TV[start + at, token]), int(token), None] for token in row]
                for at, row in enumerate(rows)
            ]
        if sampling["max_new_tokens"]:
            next_V = log_softmax(self.logp_TV[len(ids) - 1] / sampling["temperature"])
            tokens = sorted(body["token_ids_logprob"][index])
            meta["output_token_ids_logprobs"] = [[[float(next_V[token]), token, None] for token in tokens]]
        return {"meta_info": meta}

    def _named(self, token: int) -> int:
        return 0 if token == self.vocabulary - 1 else token

    def truth(self, asked: ScoreRequest) -> np.ndarray:
        """Log-probs float64[N, V] at the temperature asked, of the positions asked."""
        return log_softmax(self.logp_TV[asked.start - 1 : len(asked.ids) - 1] / asked.temperature)


IDS = [3, 700, 12, 1400, 55, 3]


def test_scores_at_temperature_one_are_the_entries_after_the_first() -> None:
    model, asked = Model(), request(IDS, 2)
    scores = read_scores(asked, 0, model.reply(asked, 0), VOCABULARY)
    assert scores is not None and scores.version == 7
    np.testing.assert_allclose(scores.logps, model.truth(asked)[range(4), IDS[2:]], atol=1e-6)
    assert scores.logps.dtype == np.float32
    assert scores.topk_ids is None and scores.topk_logps is None and scores.next_logps is None


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_best_are_cut_to_those_asked_for_and_are_at_the_temperature_asked_for(temperature: float) -> None:
    model, asked = Model(), request(IDS, 1, temperature=temperature, top_k=3)
    candidates = 3 if temperature == 1.0 else VOCABULARY
    scores = read_scores(asked, candidates, model.reply(asked, candidates), VOCABULARY)
    truth = model.truth(asked)
    assert scores is not None and scores.topk_ids is not None and scores.topk_logps is not None
    np.testing.assert_allclose(scores.logps, truth[range(5), IDS[1:]], atol=1e-5)
    assert scores.topk_ids.tolist() == np.argsort(-truth)[:, :3].tolist() and scores.topk_ids.dtype == np.int32
    np.testing.assert_allclose(scores.topk_logps, best(truth, 3), atol=1e-5)


def test_without_top_k_the_candidates_for_the_temperature_do_not_get_out() -> None:
    model, asked = Model(), request(IDS, 1, temperature=0.5)
    scores = read_scores(asked, VOCABULARY, model.reply(asked, VOCABULARY), VOCABULARY)
    assert scores is not None and scores.topk_ids is None and scores.topk_logps is None


def test_too_few_candidates_for_the_temperature_give_no_scores() -> None:
    model, asked = Model(), request(IDS, 1, temperature=1.5)
    assert read_scores(asked, 128, model.reply(asked, 128), VOCABULARY) is None
    assert read_scores(asked, VOCABULARY, model.reply(asked, VOCABULARY), VOCABULARY) is not None


@pytest.mark.parametrize("temperature", [0.5, 0.9])
def test_scores_that_are_given_are_within_the_tolerance(temperature: float) -> None:
    model, asked = Model(sharpness=4.0), request(IDS, 1, temperature=temperature)
    given = 0
    for candidates in (16, 64, 256, 1024):
        scores = read_scores(asked, candidates, model.reply(asked, candidates), VOCABULARY)
        if scores is not None:
            given += 1
            off = np.abs(scores.logps - model.truth(asked)[range(5), IDS[1:]])
            assert off.max() < TOLERANCE + 2e-6, (candidates, off)
    assert given, "some of these numbers of candidates must be enough"


def test_the_last_id_of_the_vocabulary_is_known_by_the_zero_that_sglang_calls_it() -> None:
    model, last = Model(), VOCABULARY - 1
    asked = request([3, last, 12], 1)
    reply = model.reply(asked, 0)
    assert reply["meta_info"]["input_token_logprobs"][1][1] == 0
    scores = read_scores(asked, 0, reply, VOCABULARY)
    assert scores is not None and scores.logps[0] == pytest.approx(model.logp_TV[0, last])
    for wrong in (1, last - 1):
        reply["meta_info"]["input_token_logprobs"][1][1] = wrong
        with pytest.raises(WrongReply, match="asked for"):
            read_scores(asked, 0, reply, VOCABULARY)


def test_a_zero_in_the_place_of_any_other_id_is_refused() -> None:
    model, asked = Model(), request(IDS, 2)
    reply = model.reply(asked, 0)
    reply["meta_info"]["input_token_logprobs"][2][1] = 0
    with pytest.raises(WrongReply, match="asked for"):
        read_scores(asked, 0, reply, VOCABULARY)


def test_candidates_for_the_next_token_come_in_the_order_asked_and_at_the_temperature() -> None:
    model, asked = Model(), request([3, 4], 2, temperature=0.7, token_ids=(900, 2, 31))
    scores = read_scores(asked, 0, model.reply(asked, 0), VOCABULARY)
    truth = log_softmax(model.logp_TV[1] / 0.7)
    assert scores is not None and scores.next_logps is not None and len(scores.logps) == 0
    np.testing.assert_allclose(scores.next_logps, truth[[900, 2, 31]], atol=1e-6)
    assert scores.next_logps.dtype == np.float32


def swap(meta: dict[str, Any]) -> None:
    entries = meta["input_token_logprobs"]
    entries[1][1], entries[2][1] = entries[2][1], entries[1][1]


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "two ids swapped": swap,
    "one entry short": lambda meta: meta["input_token_logprobs"].pop(),
    "no entries": lambda meta: meta.pop("input_token_logprobs"),
    "a log-prob for the first": lambda meta: meta["input_token_logprobs"][0].__setitem__(0, -1.0),
    "no log-prob for another": lambda meta: meta["input_token_logprobs"][2].__setitem__(0, None),
    "one row of candidates short": lambda meta: meta["input_top_logprobs"].pop(),
    "an empty row of candidates": lambda meta: meta["input_top_logprobs"].__setitem__(2, None),
    "a row with a candidate less": lambda meta: meta["input_top_logprobs"][1].pop(),
    "no candidates": lambda meta: meta.pop("input_top_logprobs"),
    "a next token missing": lambda meta: meta["output_token_ids_logprobs"][0].pop(),
    "no next tokens": lambda meta: meta.pop("output_token_ids_logprobs"),
    "a null for the next tokens": lambda meta: meta.__setitem__("output_token_ids_logprobs", [None]),
    "no version": lambda meta: meta.pop("weight_version"),
    "a null for the version": lambda meta: meta.__setitem__("weight_version", None),
    "a version that is no number": lambda meta: meta.__setitem__("weight_version", "default"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_reply_to_something_else_is_refused(fault: str) -> None:
    model, asked = Model(), request(IDS, 2, top_k=4, token_ids=(5, 6))
    good = model.reply(asked, 4)
    assert read_scores(asked, 4, copy.deepcopy(good), VOCABULARY) is not None
    WRONG[fault](good["meta_info"])
    with pytest.raises(WrongReply):
        read_scores(asked, 4, good, VOCABULARY)


def test_a_version_is_read_off_its_label() -> None:
    assert version_of({"weight_version": "12"}) == 12
    for meta in ({}, {"weight_version": None}, {"weight_version": "default"}):
        with pytest.raises(WrongReply, match="version"):
            version_of(meta)


# -- asking until it is enough ------------------------------------------------------------------------------------


class FakeApi:
    def __init__(self, answer: Callable[[Mapping[str, Any]], Any]) -> None:
        self.answer = answer

    async def generate(self, body: Mapping[str, Any]) -> Any:
        return self.answer(body)

    async def close(self) -> None:
        pass


@contextmanager
def engine(answer: Callable[[Mapping[str, Any]], Any], vocabulary: int = VOCABULARY) -> Iterator[SglangEngine]:
    """An engine whose SGLang is a function."""
    made = SglangEngine(Path("/nowhere"), EngineConfig(kind="sglang", dtype="float32", context_length=64))
    made._api, made._vocabulary = FakeApi(answer), vocabulary  # type: ignore[assignment]
    try:
        yield made
    finally:
        asyncio.run(made.stop())


def test_more_candidates_are_asked_for_until_they_are_enough_and_only_where_they_were_not() -> None:
    model = Model(sharpness=2.0)
    requests = [
        request(IDS, 1, temperature=1.5, top_k=2),
        request(IDS, 3),
        request(IDS, 1, temperature=0.3),
    ]
    with engine(model.replies) as asked:
        scores = asyncio.run(asked.score(requests))
    assert model.asked[0] == [128, 0, 128] and model.asked[-1] == [VOCABULARY]
    assert all(len(round_) < 3 for round_ in model.asked[1:]), "what was enough is not asked for again"
    for wanted, got in zip(requests, scores, strict=True):
        truth = model.truth(wanted)[range(len(IDS) - wanted.start), IDS[wanted.start :]]
        np.testing.assert_allclose(got.logps, truth, atol=2 * TOLERANCE)


@pytest.mark.parametrize("most", [1, 700, 5 * VOCABULARY])
def test_no_reply_is_larger_than_the_limit_and_the_windows_make_one_answer(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("clawrl.engine.sglang_scoring.MOST_ENTRIES", most)
    model = Model()
    requests = [request(IDS, 1, temperature=2.0, top_k=3, token_ids=(7, 8)), request(IDS, 2), request(IDS, 5, top_k=2)]
    sizes: list[int] = []

    def replies(body: Mapping[str, Any]) -> Any:
        lengths = [
            len(ids) - 1 - max(start, 0)
            for ids, start in zip(body["input_ids"], body["logprob_start_len"], strict=True)
        ]
        sizes.append(sum(n * k for n, k in zip(lengths, body["top_logprobs_num"], strict=True)))
        return model.replies(body)

    with engine(replies) as asked:
        scores = asyncio.run(asked.score(requests))
    for wanted, got in zip(requests, scores, strict=True):
        truth = model.truth(wanted)[range(len(IDS) - wanted.start), IDS[wanted.start :]]
        np.testing.assert_allclose(got.logps, truth, atol=2 * TOLERANCE)
        assert wanted.top_k == 0 or (got.topk_logps is not None and got.topk_logps.shape == (len(truth), wanted.top_k))
    assert scores[0].next_logps is not None and len(scores[0].next_logps) == 2
    assert max(sizes) <= max(most, VOCABULARY), "one position is the least that can be asked for"


def test_windows_of_two_versions_are_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl.engine.sglang_scoring.MOST_ENTRIES", 2 * VOCABULARY)
    model, calls = Model(), []

    def replies(body: Mapping[str, Any]) -> Any:
        calls.append(body)
        answers = model.replies(body)
        for answer in answers:
            answer["meta_info"]["weight_version"] = "1" if len(calls) < 4 else "2"
        return answers

    with engine(replies) as asked:
        (scores,) = asyncio.run(asked.score([request(IDS, 1, temperature=2.0)]))
    assert scores.version == 2 and len(scores.logps) == len(IDS) - 1


def raising(error: Exception) -> Callable[[Mapping[str, Any]], Any]:
    def answer(body: Mapping[str, Any]) -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (raising(Refusal("too long")), UnsupportedRequest),
        (raising(SglangError("gone")), EngineError),
        (lambda body: [{"meta_info": {"weight_version": None}}], EngineError),
        (lambda body: [], EngineError),
        (lambda body: [{}], EngineError),
    ],
)
def test_what_sglang_gets_wrong_is_the_engines_error_and_what_it_refuses_is_the_requests(
    answer: Callable[[Mapping[str, Any]], Any], raised: type[Exception]
) -> None:
    with engine(answer) as asked, pytest.raises(raised):
        asyncio.run(asked.score([request(IDS, 1)]))
