"""What the frozen starting model says of answers that a run gave: are they fluent, on topic, still close to the start?

In: turns as the ledger recorded them; ids and log-probs are the engine's own and are never made again from text. Out:
per turn

- ``fluency``: mean log-prob per token of the answer with the preference's instruction written into the prompt, where a
  teacher reads its hint, at temperature 1. The policy is compared with a model that was told of the preference, so that
  keeping to it costs nothing and broken language does.
- ``lift``: mean log-prob of the answer given its own prompt, minus that given the prompt of another question, at the
  temperature that sampled it. An answer that would do for any question has none.
- ``kl``: mean over tokens of the k3 estimate of KL(policy || start) from the behaviour log-probs, at that temperature.

All are in nats per token and include the token that ends the answer. Work is bounded by the number of turns that are
passed in; one engine call holds `_AT_ONCE` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from clawrl.judging.divergence import k3
from clawrl.messages import TokenIds, Turn, TurnId

if TYPE_CHECKING:
    from clawrl.engine.protocol import Engine
    from clawrl.ledger.store import Ledger
    from clawrl.serving.template import ChatRenderer

_AT_ONCE = 16


class NotMeasurable(ValueError):
    """A turn is not what the measures need; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A turn to measure. ``topic`` decides which other turn's prompt is about something else."""

    turn: Turn
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Of one turn, or the mean over ``turns`` of them. ``lift`` is None where no other topic was at hand."""

    turns: int
    tokens: float
    fluency: float
    lift: float | None
    kl: float


async def measure(
    engine: Engine, renderer: ChatRenderer, questions: Sequence[Question], instruction: str | None
) -> list[Measures]:
    """One `Measures` per question, in order. Raises `NotMeasurable` for a turn without tokens or with a lost prompt.

    ``instruction`` None leaves the prompts as they are. The other prompt is that of the next question in the sequence,
    cyclically, that has another topic.
    """
    found: list[Measures] = []
    for start in range(0, len(questions), _AT_ONCE):
        batch = range(start, min(start + _AT_ONCE, len(questions)))
        found += await _measure_batch(engine, renderer, questions, batch, instruction)
    return found


def mean_of(measures: Sequence[Measures]) -> Measures | None:
    """Each turn counts once; None of none."""
    if not measures:
        return None
    lifts = [one.lift for one in measures if one.lift is not None]
    return Measures(
        turns=sum(one.turns for one in measures),
        tokens=fmean(one.tokens for one in measures),
        fluency=fmean(one.fluency for one in measures),
        lift=fmean(lifts) if lifts else None,
        kl=fmean(one.kl for one in measures),
    )


def measurable(ledger: Ledger, turn_ids: Sequence[str], topics: Sequence[str]) -> list[Question]:
    """Those of the turns that the ledger still holds with at least one token, in order."""
    found = []
    for turn_id, topic in zip(turn_ids, topics, strict=True):
        turn = ledger.turn(TurnId(turn_id))
        if turn is not None and len(turn.response_ids):
            found.append(Question(turn=turn, topic=topic))
    return found


def ledger_file(home: Path, state_dir: str, name: str) -> Path:
    """Where a server whose CLAWRL_HOME was ``home`` keeps its ledger."""
    return home / (state_dir or name) / "ledger.sqlite"


async def _measure_batch(
    engine: Engine, renderer: ChatRenderer, questions: Sequence[Question], batch: range, instruction: str | None
) -> list[Measures]:
    from clawrl.engine.protocol import ScoreRequest

    def request(prompt: TokenIds, turn: Turn, temperature: float) -> ScoreRequest:
        return ScoreRequest(ids=np.concatenate([prompt, turn.response_ids]), start=len(prompt), temperature=temperature)

    requests, others = [], []
    for index in batch:
        turn, temperature = questions[index].turn, questions[index].turn.sampling.temperature or 1.0
        if not len(turn.response_ids):
            raise NotMeasurable(f"turn {turn.turn_id} has no tokens; leave it out")
        other = _other_prompt(questions, index)
        others.append(other is not None)
        requests.append(request(_told_prompt(renderer, turn, instruction), turn, 1.0))
        requests.append(request(turn.prompt_ids, turn, temperature))
        if other is not None:
            requests.append(request(other, turn, temperature))
    logps = iter([scores.logps for scores in await engine.score(requests)])
    found = []
    for index, has_other in zip(batch, others, strict=True):
        turn = questions[index].turn
        told, own = next(logps), next(logps)
        lift = float(np.mean(own) - np.mean(next(logps))) if has_other else None
        found.append(
            Measures(
                turns=1,
                tokens=float(len(turn.response_ids)),
                fluency=float(np.mean(told)),
                lift=lift,
                kl=k3(own, turn.response_logps),
            )
        )
    return found


def _told_prompt(renderer: ChatRenderer, turn: Turn, instruction: str | None) -> TokenIds:
    from clawrl.judging.teacher import hinted_messages

    if instruction is None:
        return turn.prompt_ids
    messages = turn.arrival.messages
    if renderer.render(messages) != turn.prompt_ids.tolist():
        raise NotMeasurable(
            f"turn {turn.turn_id}: its messages no longer make its prompt; measure with the model that served it"
        )
    return np.asarray(renderer.render(hinted_messages(messages, instruction, "")), dtype=np.int32)


def _other_prompt(questions: Sequence[Question], index: int) -> TokenIds | None:
    following = (questions[(index + step) % len(questions)] for step in range(1, len(questions)))
    return next((other.turn.prompt_ids for other in following if other.topic != questions[index].topic), None)
