"""Verdicts and hints in the judge model's own words, from an engine that says what a test wants it to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from clawrl.engine.errors import EngineError
from clawrl.engine.protocol import Capabilities, CommitForm, GenerateRequest, TokenChunk
from clawrl.engine.sampling import sample_each
from clawrl.judging.config import HintsConfig, JudgingConfig
from clawrl.judging.errors import JudgeError
from clawrl.judging.written import WrittenJudge
from clawrl.judging.written_hints import WrittenHints, hint_of
from clawrl.messages import FinishReason, Judgement, JudgeRequest, Message, TokenIds, TurnId, Verdict
from tests.engine_tools import TINY, running_engine

CASE = JudgeRequest(
    turn_id=TurnId("t"),
    request=(Message(role="system", content="SYSTEM"), Message(role="user", content="REQUEST")),
    response="<think>SECRET</think>ANSWER",
    evidence=(Message(role="tool", content="RESULT"), Message(role="user", content="REACTION")),
)
VERDICT = Judgement(turn_id=TurnId("t"), verdict=Verdict.BAD, score=None, votes=(), judge="fake", seconds=0.0)


class SpeakingEngine:
    """Answers in turn what it was given, in two chunks; None fails. Remembers the prompts and who ran together."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, answers: Sequence[str | None], context: int = 4000) -> None:
        self.tokenizer = tokenizer
        self._answers = iter(answers)
        self.asked: list[GenerateRequest] = []
        self.running = self.most_running = 0
        self.capabilities = Capabilities(
            commit_form=CommitForm.STAGED,
            weight_kinds=frozenset(),
            context_length=context,
            max_running_requests=8,
            scores=True,
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.asked.append(request)
        answer = next(self._answers)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if answer is None:
            raise EngineError("it broke")
        ids = self.tokenizer.encode(answer, add_special_tokens=False)
        for part, reason in ((ids[:3], None), (ids[3:], FinishReason.STOP)):
            yield TokenChunk(
                ids=np.array(part, dtype=np.int32),
                logps=np.zeros(len(part), dtype=np.float32),
                version=0,
                finish_reason=reason,
            )

    async def sample(self, request: GenerateRequest, times: int) -> list[TokenIds | Exception]:
        return await sample_each(self, request, times)

    @property
    def prompt(self) -> str:
        return str(self.tokenizer.decode(self.asked[0].prompt_ids))


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_folder)


def _judge(
    tokenizer: PreTrainedTokenizerBase, answers: Sequence[str | None], case: JudgeRequest = CASE, context: int = 4000
) -> tuple[Judgement, SpeakingEngine]:
    engine = SpeakingEngine(tokenizer, answers, context)
    config = JudgingConfig(kind="written", votes=len(answers), temperature=0.4, max_tokens=50)
    return asyncio.run(WrittenJudge(engine, tokenizer, config, "fake").judge(case)), engine  # type: ignore[arg-type]


def test_the_majority_of_the_votes_is_the_verdict_and_the_first_of_them_speaks_for_it(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    answers = [r"fine \boxed{1}", r"it was corrected \boxed{-1}<|im_end|>", r"corrected \boxed{-1}"]
    judgement, engine = _judge(tokenizer, answers)
    assert judgement.verdict is Verdict.BAD and judgement.votes == (1, -1, -1) and judgement.judge == "fake"
    assert judgement.detail == r"it was corrected \boxed{-1}" and judgement.score is None
    assert engine.most_running == 3, "votes are asked for at the same time"
    assert len({request.request_id for request in engine.asked}) == 3
    assert {(r.sampling.temperature, r.sampling.max_tokens) for r in engine.asked} == {(0.4, 50)}


def test_the_judge_reads_the_request_the_answer_without_its_reasoning_and_what_came_next(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    _, engine = _judge(tokenizer, [r"\boxed{1}"])
    for part in ("[system] SYSTEM\n[user] REQUEST", "\nANSWER\n", "[tool] RESULT\n[user] REACTION"):
        assert part in engine.prompt
    assert "SECRET" not in engine.prompt
    assert engine.prompt.endswith("<|im_start|>assistant\n")


def test_votes_that_fail_or_cannot_be_read_abstain_each_for_itself(tokenizer: PreTrainedTokenizerBase) -> None:
    judgement, _ = _judge(tokenizer, [None, r"<think>hm \boxed{-1}", "no idea", r"\boxed{1}"])
    assert judgement.verdict is Verdict.GOOD and judgement.votes == (1,)


def test_without_a_readable_vote_the_judge_abstains_and_says_why(tokenizer: PreTrainedTokenizerBase) -> None:
    judgement, _ = _judge(tokenizer, ["no idea", None])
    assert judgement.verdict is None and judgement.votes == () and judgement.reward is None
    assert "none of 2 votes" in judgement.detail and "no idea" in judgement.detail


def test_a_tie_is_neutral_and_is_called_a_tie(tokenizer: PreTrainedTokenizerBase) -> None:
    judgement, _ = _judge(tokenizer, [r"\boxed{1}", r"\boxed{-1}"])
    assert judgement.verdict is Verdict.NEUTRAL and "tied" in judgement.detail


def test_an_engine_that_answers_nothing_at_all_is_an_error_worth_another_attempt(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(JudgeError, match="it broke"):
        _judge(tokenizer, [None, None])


def test_a_template_that_opens_the_reasoning_itself_does_not_turn_it_into_a_vote(tiny_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant\n{%", "assistant\n<think>\n{%")
    judgement, engine = _judge(tokenizer, [r"perhaps \boxed{1}", r"perhaps \boxed{1}</think>\boxed{-1}"])
    assert engine.prompt.endswith("<think>\n")
    assert judgement.votes == (-1,)


def test_long_texts_are_shortened_in_the_middle_until_the_answer_has_its_room(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    _, unlimited = _judge(tokenizer, [r"\boxed{1}"])
    context = len(unlimited.asked[0].prompt_ids) + 50 + 400
    evidence = Message(role="user", content="BEGIN " + "blah " * 5000 + "END")
    _, engine = _judge(tokenizer, [r"\boxed{1}"], replace(CASE, evidence=(evidence,)), context)
    assert context - 50 - 200 < len(engine.asked[0].prompt_ids) <= context - 50
    assert "BEGIN blah" in engine.prompt and "blah END" in engine.prompt
    assert "[user] REQUEST" in engine.prompt and "\nANSWER\n" in engine.prompt, "short texts stay whole"


def test_a_context_too_small_for_the_question_is_refused_at_start_by_name(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = SpeakingEngine(tokenizer, [], context=200)
    refused = r"engine.context_length 200 .* max_tokens 50"
    with pytest.raises(JudgeError, match=refused):
        WrittenJudge(engine, tokenizer, JudgingConfig(kind="written", max_tokens=50), "fake")  # type: ignore[arg-type]
    with pytest.raises(JudgeError, match=refused):
        WrittenHints(engine, tokenizer, HintsConfig(source="written", max_tokens=50))  # type: ignore[arg-type]


def test_a_real_engine_votes_in_words(tiny_folder: Path) -> None:
    """Random weights say nothing that can be read, so the judge abstains; the way there is what is tested."""

    async def run() -> Judgement:
        config = TINY.model_copy(update={"context_length": 1024, "kv_blocks": 128})
        async with running_engine(tiny_folder, config) as engine:
            judge = WrittenJudge(engine, engine.tokenizer, JudgingConfig(votes=2, max_tokens=8), "tiny")
            return await judge.judge(replace(CASE, request=(), evidence=CASE.evidence[1:]))

    judgement = asyncio.run(run())
    assert judgement.verdict is None and "none of 2 votes" in judgement.detail


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (r"\boxed{1} <hint> Use one sentence. </hint>", "Use one sentence."),
        ("<HINT>Use\none sentence.</HINT> \\boxed{+1}", "Use\none sentence."),
        (r"<hint>No.</hint> <hint>Use euros.</hint> \boxed{1}", "Use euros."),
        (r"<think>\boxed{-1} <hint>No.</hint></think> \boxed{1} <hint>Use euros.</hint>", "Use euros."),
        (r"\boxed{-1} <hint>Use euros.</hint>", None),
        (r"\boxed{0} <hint>Use euros.</hint>", None),
        (r"\boxed{1} no, \boxed{-1} <hint>Use euros.</hint>", None),
        (r"<hint>Use euros.</hint>", None),
        (r"\boxed{1} Use euros.", None),
        (r"\boxed{1} <hint>Use eu", None),
        (r"\boxed{1} <hint> </hint>", None),
        (r"<think>\boxed{1} <hint>Use euros.</hint>", None),
    ],
)
def test_a_hint_needs_a_vote_for_it_and_both_its_marks(text: str, hint: str | None) -> None:
    assert hint_of(text) == hint


def test_every_vote_for_a_hint_gives_a_candidate(tokenizer: PreTrainedTokenizerBase) -> None:
    answers = [r"\boxed{1}<hint>Use euros.</hint>", r"\boxed{-1}", None, r"\boxed{1}<hint>Say it in euros.</hint>"]
    engine = SpeakingEngine(tokenizer, answers)
    source = WrittenHints(engine, tokenizer, HintsConfig(votes=4))  # type: ignore[arg-type]
    assert asyncio.run(source.hints(CASE, VERDICT)) == ("Use euros.", "Say it in euros.")
    for part in ("[user] REQUEST", "ANSWER", "[tool] RESULT\n[user] REACTION"):
        assert part in engine.prompt
    assert "SECRET" not in engine.prompt
