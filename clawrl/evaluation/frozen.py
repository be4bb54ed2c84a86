"""The frozen starting model of a run that is over, beside the ledger that the run left: what `measures` needs.

Opens the ledger's file of a server that has stopped, loads the deployment's policy model as it was at the start, and
lets go of both at the end of the block. Turns that the ledger no longer holds are not measured, and not an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from clawrl.engine.protocol import Engine
from clawrl.evaluation.demo_users import Answer
from clawrl.evaluation.live_graph import RunProblem
from clawrl.evaluation.measures import Measures, NotMeasurable, ledger_file, measurable, measure
from clawrl.evaluation.simulated_user import topic_of
from clawrl.ledger.store import Ledger
from clawrl.messages import TurnId
from clawrl.privacy.opening import open_ledger
from clawrl.serving.template import ChatRenderer

_SCORE_BATCH_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class FrozenStart:
    engine: Engine
    renderer: ChatRenderer
    ledger: Ledger

    async def measure(self, answers: Sequence[Answer], instruction: str | None) -> Mapping[str, Measures]:
        """Turn id -> what `measures.measure` found; the order of the answers decides whose prompt is whose other.

        Raises `RunProblem` where a turn is not what the measures need.
        """
        known = [answer for answer in answers if answer.turn_id]
        ids, topics = [a.turn_id or "" for a in known], [topic_of(a.question) for a in known]
        questions = measurable(self.ledger, ids, topics)
        try:
            found = await measure(self.engine, self.renderer, questions, instruction)
        except NotMeasurable as error:
            raise RunProblem(f"the run cannot be measured: {error}") from error
        return {question.turn.turn_id: one for question, one in zip(questions, found, strict=True)}

    def tokens(self, answers: Sequence[Answer]) -> Mapping[str, int]:
        """Turn id -> how many tokens the answer has, the one that ends it included."""
        turns = (self.ledger.turn(TurnId(answer.turn_id)) for answer in answers if answer.turn_id)
        return {turn.turn_id: len(turn.response_ids) for turn in turns if turn is not None}


@asynccontextmanager
async def frozen_start(deployment: Path, home: Path) -> AsyncIterator[FrozenStart]:
    from clawrl.config import read_deployment
    from clawrl.engine.transformers import TransformersEngine
    from clawrl.models import resolve

    args = read_deployment(deployment)
    file = ledger_file(home, args.state_dir, args.name)
    if not file.exists():
        raise RunProblem(f"{file} is not there: the server kept its ledger elsewhere, or never made one")
    # Both cores are free once the server has stopped.
    config = args.policy.engine.model_copy(update={"threads": 2, "score_batch_tokens": _SCORE_BATCH_TOKENS})
    engine = TransformersEngine(resolve(args.policy.model), config, generates=False)
    await engine.start()
    try:
        with open_ledger(file.parent, args.ledger, args.privacy) as ledger:
            yield FrozenStart(engine, ChatRenderer(engine.tokenizer, config.context_length), ledger)
    finally:
        await engine.stop()
