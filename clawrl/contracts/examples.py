"""Made-up nouns that look like real ones: what a user's code is tried out on.

Always the same, and made anew on every call, so that code which writes into its arguments harms nobody but itself.
The samples' token ids are below 64, a teacher's below `vocabulary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from clawrl.messages import (
    Arrival,
    FinishReason,
    Judgement,
    JudgeRequest,
    Message,
    Sample,
    SamplingParams,
    TeacherTargets,
    Turn,
    TurnId,
    TurnKind,
    Verdict,
    VersionSpan,
)

_VOCABULARY = 64
REQUEST = (Message(role="user", content="How do I keep basil alive on a windowsill?"),)
EVIDENCE: tuple[tuple[Message, ...], ...] = (
    (Message(role="user", content="No, that is a list. One plain sentence, please."),),
    (Message(role="user", content="Thanks! And how often should I water it?"),),
    (
        Message(role="tool", content="error: no such file: notes.txt"),
        Message(role="user", content="The file is called note.txt."),
    ),
    (),
)


def turns() -> list[Turn]:
    """Ordinary, one token, two policy versions, cut off, in a group of answers, in another language."""
    return [
        _turn("plain", "Water it when the soil is dry and give it six hours of sun.", tokens=7),
        _turn("one-token", "Yes", tokens=1),
        _turn("two-versions", "Keep it warm.\n\n1. Water it.\n2. Wait.", tokens=9, split=4),
        _turn("cut-off", "Basil, which came to Europe from", tokens=6, finish=FinishReason.LENGTH, temperature=0.7),
        _turn("grouped", "Pinch off the flowers.", tokens=5, group="prompt-1"),
        _turn("foreign", "Gießen, aber nicht zu viel. 多喝水 🙂", tokens=8),
    ]


def judgements(turn: Turn) -> list[Judgement]:
    """Good, bad, neutral, an abstention, and a person's score against the verdict."""
    hints = ("Answer in one plain sentence.", "Say how often to water it, and leave the list out.")
    plain = Judgement(
        turn_id=turn.turn_id, verdict=Verdict.GOOD, score=1.5, votes=(1, 1, 0), judge="example", seconds=0.2
    )
    return [
        plain,
        replace(plain, verdict=Verdict.BAD, score=-2.0, votes=(-1,), hints=hints),
        replace(plain, verdict=Verdict.NEUTRAL, score=0.0, votes=(0,)),
        replace(plain, verdict=None, score=None, votes=()),
        replace(plain, verdict=Verdict.GOOD, feedback=-0.5, judge="feedback", votes=(), hints=hints[:1]),
    ]


def vocabulary(top_k: int) -> int:
    """Size of a vocabulary from which a teacher can list ``top_k`` tokens."""
    return max(_VOCABULARY, top_k)


def teacher(turn_id: str, response_ids: npt.NDArray[np.int32], top_k: int, hints: Sequence[str]) -> TeacherTargets:
    """A teacher that is sure of some tokens and not of others."""
    rng = _rng(f"teacher of {turn_id}")
    logits = 3.0 * rng.standard_normal((len(hints), len(response_ids), vocabulary(top_k)))
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = np.broadcast_to(response_ids[:, None], (len(hints), len(response_ids), 1))
    best = np.argsort(-logps, axis=-1, kind="stable")[..., :top_k]
    return TeacherTargets(
        hints=tuple(hints),
        logps=np.take_along_axis(logps, own, -1)[..., 0].astype(np.float32),
        topk_ids=best.astype(np.int32),
        topk_logps=np.take_along_axis(logps, best, -1).astype(np.float32),
        teacher="example",
    )


def samples(top_k: int, max_hints: int | None) -> list[Sample]:
    """What a trainer may meet: rewards of both signs, masks that leave little or nothing.

    Each is there with and without a teacher. Teachers were told one hint and three in turn, ``max_hints`` at most.
    """
    shapes = [
        ("good", 7, 1.0, True, None),
        ("bad", 5, -1.0, True, None),
        ("a-little-good", 9, 0.3, True, [True, False, True, True, False, True, True, True, False]),
        ("not-rewarded", 4, 0.0, False, None),
        ("one-token", 1, -1.0, True, None),
        ("all-masked", 3, 1.0, True, [False] * 3),
        ("empty", 0, 1.0, True, None),
    ]
    found = []
    for i, (name, tokens, reward, rewarded, mask) in enumerate(shapes):
        turn = _turn(name, "", tokens=tokens)
        for taught in (False, True):
            hints = ("Shorter.", "No list.", "One sentence.")[: 1 if i % 2 else max_hints]
            found.append(
                Sample(
                    turn_id=TurnId(f"{name}{'-taught' * taught}"),
                    prompt_ids=turn.prompt_ids,
                    response_ids=turn.response_ids,
                    behaviour_logps=turn.response_logps,
                    mask=np.ones(tokens, np.bool_) if mask is None else np.array(mask, np.bool_),
                    spans=turn.spans,
                    temperature=1.0 if i % 2 else 0.8,
                    reward=reward,
                    rl_mask=rewarded,
                    teacher=teacher(name, turn.response_ids, top_k, hints) if taught else None,
                    group="prompt-1" if i % 3 == 0 else None,
                )
            )
    return found


def cases(turn: Turn) -> list[tuple[JudgeRequest, Judgement]]:
    return [
        (
            JudgeRequest(turn_id=turn.turn_id, request=REQUEST, response=turn.response_text, evidence=evidence),
            judgement,
        )
        for evidence in EVIDENCE
        for judgement in judgements(turn)
    ]


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def _turn(
    name: str,
    text: str,
    *,
    tokens: int,
    split: int = 0,
    finish: FinishReason = FinishReason.STOP,
    temperature: float = 1.0,
    group: str | None = None,
) -> Turn:
    rng = _rng(name)
    cuts = [0, split, tokens] if split else [0, tokens]
    return Turn(
        turn_id=TurnId(name),
        arrival=Arrival(
            turn_id=TurnId(name),
            session="session",
            owner="local",
            kind=TurnKind.MAIN,
            prefix_hash=None,
            messages_hash=f"hash of {name}",
            new_messages=REQUEST,
            ends_session=False,
            arrived_at=1_700_000_000.0,
            group=group,
        ),
        reply_hash=f"reply of {name}",
        response_text=text,
        prompt_ids=rng.integers(0, _VOCABULARY, 3 + len(name) % 4).astype(np.int32),
        response_ids=rng.integers(0, _VOCABULARY, tokens).astype(np.int32),
        response_logps=(-4.0 * rng.random(tokens)).astype(np.float32),
        spans=tuple(
            VersionSpan(start=start, end=end, version=3 + i)
            for i, (start, end) in enumerate(pairwise(cuts))
            if end > start
        ),
        sampling=SamplingParams(temperature=temperature),
        finish_reason=finish,
        started_at=1_700_000_001.0,
        finished_at=1_700_000_003.0,
        replica="replica-1",
        session="session",
    )
