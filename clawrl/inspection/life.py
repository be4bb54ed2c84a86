"""One turn's life as one document: what was asked and answered, what came of it, and why it is where it is.

Tokens are the engine's own, with the behaviour log-prob at the sampling temperature. Where the teacher's targets are
still kept each token also has the teacher's log-prob. What it is credited with is `clawrl.inspection.credit`'s: its
``advantage``, and in ``credit`` the formula of that number (``advantage_of``) and what to know of it, or why there is
none (``advantage_note``). ``piece`` is the token's text, which a replica fills in: `with_pieces`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clawrl.config import Deployment
from clawrl.inspection.credit import Credit, credit_of
from clawrl.inspection.documents import finite, step_document, turn_document
from clawrl.inspection.situation import Situation
from clawrl.inspection.why import explain
from clawrl.ledger.life import TurnLife, TurnText
from clawrl.messages import TeacherTargets, Turn, TurnState
from clawrl.serving.openai_message import openai_message

GONE = "its texts and tokens are gone: they were not to be kept, were forgotten, or the key of their owner was deleted"


def life_document(life: TurnLife, deployment: Deployment, situation: Situation) -> dict[str, Any]:
    text, trainer = life.text, deployment.trainer
    credit = credit_of(text, life.row.state, life.step, trainer.method, trainer.loss)
    return {
        **turn_document(life.row),
        **(_without_text() if text is None else _with_text(text, credit)),
        "credit": _credit_document(life, deployment, credit),
        "transitions": [
            {"from": None if move.source is None else move.source.value, "to": move.target.value}
            | {"detail": move.detail, "at": move.at}
            for move in life.transitions
        ],
        "trained_by": None if life.step is None else step_document(life.step),
        "why": asdict(explain(life, deployment, situation)),
    }


def _with_text(text: TurnText, credit: Credit) -> dict[str, Any]:
    return {
        "text_gone": None,
        "request": _request(text.turn),
        "answer": openai_message(text.turn.answer),
        "response_text": text.turn.response_text,
        "evidence": _evidence(text),
        "feedback": _feedback(text),
        "judgement": _judgement(text),
        "sampling": _sampling(text.turn),
        "spans": [asdict(span) for span in text.turn.spans],
        "tokens": _tokens(text, credit),
    }


def _without_text() -> dict[str, Any]:
    """The same fields, with nothing in them but why."""
    absent = ("request", "answer", "response_text", "evidence", "feedback", "judgement", "sampling")
    return {"text_gone": GONE, **dict.fromkeys(absent), "spans": [], "tokens": []}


def with_pieces(document: Mapping[str, Any], pieces: Sequence[str] | None) -> dict[str, Any]:
    """The document with each token's text; pieces that do not fit the tokens are left out."""
    tokens = document["tokens"]
    if pieces is None or len(pieces) != len(tokens):
        return dict(document)
    return {**document, "tokens": [{**token, "piece": piece} for token, piece in zip(tokens, pieces, strict=True)]}


def _request(turn: Turn) -> dict[str, Any]:
    inputs = turn.arrival.inputs
    return {
        "messages": [openai_message(message) for message in turn.arrival.messages],
        "tools": [json.loads(tool) for tool in inputs.tools],
        "template_arguments": json.loads(inputs.arguments),
        "arrived_at": turn.arrival.arrived_at,
    }


def _evidence(text: TurnText) -> dict[str, Any] | None:
    if text.evidence is None:
        return None
    messages = [openai_message(message) for message in text.evidence.messages]
    return {"from_turn": text.evidence.from_turn, "messages": messages}


def _feedback(text: TurnText) -> dict[str, Any] | None:
    if text.said is None:
        return None
    given = text.said.feedback
    return {"score": given.score, "comment": given.comment, "given_at": given.given_at, "taken": text.said.taken}


def _judgement(text: TurnText) -> dict[str, Any] | None:
    judgement = text.judgement
    if judgement is None:
        return None
    return {
        "verdict": None if judgement.verdict is None else int(judgement.verdict),
        "score": finite(judgement.score),
        "votes": list(judgement.votes),
        "judge": judgement.judge,
        "seconds": finite(judgement.seconds),
        "reasoning": judgement.detail,
        "hints": list(judgement.hints),
        "feedback": judgement.feedback,
        "reward": judgement.reward,
    }


def _sampling(turn: Turn) -> dict[str, Any]:
    return asdict(turn.sampling) | {
        "stop": list(turn.sampling.stop),
        "imposed": turn.overridden,
        "finish_reason": turn.finish_reason.value,
        "replica": turn.replica,
        "started_at": turn.started_at,
        "reused_tokens": turn.reused_ids,
    }


def _tokens(text: TurnText, credit: Credit) -> list[dict[str, Any]]:
    turn = text.turn
    versions = [span.version for span in turn.spans for _ in range(span.start, span.end)]
    teacher = _teacher(text)
    advantages = credit.advantages
    return [
        {
            "id": int(token_id),
            "piece": None,
            "logp": float(logp),
            "version": version,
            "teacher_logp": None if teacher is None else float(teacher.logps[0][at]),
            "advantage": None if advantages is None else advantages[at],
        }
        for at, (token_id, logp, version) in enumerate(
            zip(turn.response_ids, turn.response_logps, versions, strict=True)
        )
    ]


def _teacher(text: TurnText) -> TeacherTargets | None:
    """Targets of a response of another length cannot be laid beside its tokens."""
    targets = text.targets
    return targets if targets is not None and targets.logps.shape[1] == len(text.turn.response_ids) else None


def _credit_document(life: TurnLife, deployment: Deployment, credit: Credit) -> dict[str, Any]:
    method = deployment.trainer.method
    return {
        "method": getattr(method, "name", None),
        "reward": life.row.reward,
        "baseline": getattr(method, "baseline", None),
        "step_reward_mean": None if life.step is None else life.step.reward_mean,
        "taught": life.row.taught,
        "in_weights": life.row.state in (TurnState.APPLIED, TurnState.TRAINED),
        "advantage_of": credit.of,
        "advantage_note": credit.note,
    }
