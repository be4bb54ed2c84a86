"""The probability verdict: one forward pass instead of a written opinion.

A few solved examples, then the case; the verdict is read off the next token as
``log P(good) - log P(bad)``, minus the judge's own leaning: the point half-way between its mean on a few
plainly pleased and a few plainly displeased replies, measured once at start. (Replies that say nothing are
no measure of it: to a small model they read like complaints.) Positive is good. The judge sees the request,
the answer and all the evidence; long texts are shortened in the middle, since openings and endings carry
the reaction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from clawrl.engine.protocol import Engine, ScoreRequest
from clawrl.judging.config import JudgingConfig
from clawrl.judging.errors import JudgeError
from clawrl.judging.text import said, shorten
from clawrl.messages import Judgement, JudgeRequest, Message, TokenIds, Verdict

_TASK = "Decide whether the user's reply shows that the assistant's last answer was good or bad."
# Some displeased ones are polite and take their leave: without them a small judge takes every farewell for praise.
_EXAMPLES = (
    ("That is great, thanks a lot. What is the tallest mountain?", 0),
    ("This is not right, please do it again.", 1),
    ("Okay, now the next one please.", 0),
    ("Too short. Change it to be more formal, please. See you later.", 1),
    ("I can't use this. Forget it. Bye for now.", 1),
    ("Wonderful, you can save it now.", 0),
    ("Why so complicated? Just tell me.", 1),
    ("Yes, exactly. Who painted it?", 0),
    ("I asked for something else.", 1),
    ("Good, that answers it.", 0),
)
# For the calibration alone: none of these replies is among the examples.
_CALIBRATION_CASES = (
    ("How tall is the Eiffel Tower?", "The Eiffel Tower is about 330 metres tall."),
    (
        "Give me tips for sleeping well.",
        "Sleeping well is important for your health. Here are some tips: 1. Keep a regular schedule. "
        "2. Avoid screens in the evening. 3. Make sure that your bedroom is dark, quiet and cool, and that",
    ),
    (
        "What is bread made of?",
        "Bread is a staple food that has been made for thousands of years in many cultures, and it is usually "
        "made of flour, water, salt and yeast, although there are many other kinds.",
    ),
)
_PLEASED = (
    "Thank you, that is what I was looking for. Next: how old is it?",
    "Super, that was helpful.",
    "Excellent. Where can I buy one?",
    "That is a good answer, goodbye.",
)
_DISPLEASED = (
    "No. That is not what I meant.",
    "This is useless to me. What else do you know?",
    "It is far too complicated, make it simpler.",
    "Wrong. Do it differently, please.",
)


class ProbabilityJudge:
    """``engine`` scores; ``name`` identifies the judge in every judgement."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase, config: JudgingConfig, name: str) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._name = name
        self._offset = 0.0
        self._labels = tuple(self._single_token(label) for label in config.labels)
        if self._labels[0] == self._labels[1]:
            raise JudgeError(f"judge.verdict.labels {config.labels} are the same token for this model")
        self._opening = self._ids(_opening(config.labels))

    async def calibrate(self) -> float:
        """Measure the judge's leaning and subtract it from now on; returns it, in nats."""
        means = [
            np.mean(
                await self._log_odds([self._case(*case, reply) for case in _CALIBRATION_CASES for reply in replies])
            )
            for replies in (_PLEASED, _DISPLEASED)
        ]
        if not means[0] > means[1]:
            raise JudgeError(
                f"the judge model finds displeased replies ({means[1]:.2f} nats) as good as pleased ones "
                f"({means[0]:.2f}); choose another judge.model or other judge.verdict.labels"
            )
        self._offset = float(sum(means) / 2)
        return self._offset

    async def judge(self, request: JudgeRequest) -> Judgement:
        began = time.monotonic()
        text = self._case(_transcript(request.request), request.response, _transcript(request.evidence))
        (odds,) = await self._log_odds([text])
        score = odds - self._offset
        if not np.isfinite(score):
            raise JudgeError(f"the judge model gave log-odds {odds} for turn {request.turn_id}")
        verdict = verdict_of(score, self._config.margin)
        return Judgement(
            turn_id=request.turn_id,
            verdict=verdict,
            score=score,
            votes=(int(verdict),),
            judge=self._name,
            seconds=time.monotonic() - began,
        )

    def _case(self, request: str, response: str, evidence: str) -> str:
        config = self._config
        return _prompt(
            shorten(request, config.max_request_chars),
            shorten(" ".join(response.split()), config.max_response_chars),
            shorten(evidence, config.max_evidence_chars),
            config.labels,
        )

    async def _log_odds(self, prompts: Sequence[str]) -> list[float]:
        asked = []
        for prompt in prompts:
            ids = self._ids(prompt)
            shared = common_prefix(ids, self._opening)
            asked.append(ScoreRequest(ids=ids, start=len(ids), token_ids=self._labels, shared=shared))
        scores = await self._engine.score(asked)
        return [float(s.next_logps[0] - s.next_logps[1]) for s in scores if s.next_logps is not None]

    def _ids(self, text: str) -> TokenIds:
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _single_token(self, label: str) -> int:
        ids = self._tokenizer.encode(label, add_special_tokens=False)
        if len(ids) != 1:
            raise JudgeError(
                f"judge.verdict.labels: {label!r} is {len(ids)} tokens for this model; choose words that are one"
            )
        return int(ids[0])


def verdict_of(score: float, margin: float) -> Verdict:
    """Good above ``margin``, bad below ``-margin``, else neutral."""
    if score > margin:
        return Verdict.GOOD
    return Verdict.BAD if score < -margin else Verdict.NEUTRAL


def _transcript(messages: Sequence[Message]) -> str:
    """One line per message; roles are named only when somebody other than the user speaks."""
    told = [(message.role, said(message)) for message in messages]
    lines = [text if role == "user" else f"[{role}] {text}" for role, text in told if text]
    return " ".join(" ".join(line.split()) for line in lines)


def common_prefix(ids: TokenIds, others: TokenIds) -> int:
    """How many ids agree from the start. A tokenizer may join the end of a text with what follows it."""
    length = min(len(ids), len(others))
    differ = np.flatnonzero(ids[:length] != others[:length])
    return int(differ[0]) if len(differ) else length


def _opening(labels: tuple[str, str]) -> str:
    """What every prompt begins with: the task and the solved examples."""
    examples = "".join(f"Reply: {reply}\nVerdict:{labels[label]}\n" for reply, label in _EXAMPLES)
    return f"{_TASK}\n{examples}(The user asked:"


def _prompt(request: str, response: str, evidence: str, labels: tuple[str, str]) -> str:
    return f"{_opening(labels)} {request} The assistant answered: {response})\nReply: {evidence}\nVerdict:"
