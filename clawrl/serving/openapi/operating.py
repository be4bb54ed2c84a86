"""Feedback, and what an operator or a probe asks of the server."""

from __future__ import annotations

from clawrl.messages import TurnState
from clawrl.serving.feedback import MAX_COMMENT_CHARS
from clawrl.serving.openapi import looking
from clawrl.serving.openapi.schemas import (
    Json,
    array,
    boolean,
    either,
    integer,
    maybe,
    number,
    one_of,
    record,
    ref,
    text,
)
from clawrl.serving.pausing import MAX_REASON_CHARS
from clawrl.serving.sessions import MAX_SESSION_CHARS


def schemas(served_name: str) -> dict[str, Json]:
    flags = ("ready", "policy", "judge", "coordinator")
    return {
        "FeedbackRequest": _feedback(),
        "FeedbackTaken": record(
            {
                "turn_id": text(),
                "outcome": one_of("taken", "too_late", description="Nothing is learned from what comes too late."),
                "state": one_of(*(state.value for state in TurnState), description="Where the turn is in its life."),
            },
            ("turn_id", "outcome", "state"),
        ),
        "PauseRequest": record({"reason": maybe(text("Shown in the status.", maxLength=MAX_REASON_CHARS))}),
        "Paused": record({"paused": one_of(True)}, ("paused",)),
        "Resumed": record(
            {"paused": one_of(False), "released": integer("How many turns had been waiting.")}, ("paused", "released")
        ),
        "ForgetRequest": _forget_request(),
        "Forgotten": _forgotten(),
        "SessionEnded": record(
            {"session": text(), "ended_turns": integer("How many turns no longer wait for evidence.")},
            ("session", "ended_turns"),
        ),
        "Model": _model(served_name),
        "Models": record({"object": one_of("list"), "data": array(ref("Model"))}, ("object", "data")),
        "Alive": record({"ok": one_of(True)}, ("ok",)),
        "Ready": record({name: boolean() for name in flags}, flags),
        "Status": _status(),
        "RollbackRequest": record({"version": integer("One whose weights are kept.", minimum=0)}, ("version",)),
        **looking.schemas(),
    }


def feedback_examples() -> dict[str, Json]:
    return {
        "turn": {"turn_id": "0123", "score": 1},
        "session": {"session_id": "harbour", "score": -1, "comment": "Too formal."},
    }


def _feedback() -> Json:
    named = {"turn_id": {"type": "string"}, "session_id": {"type": "string", "pattern": r"\S"}}
    fields = {
        "turn_id": maybe(text("The turn that the header `X-Clawrl-Turn-Id` of its answer named.")),
        "session_id": maybe(text("Stands for the newest turn of this session.", maxLength=MAX_SESSION_CHARS)),
        "score": number("What you think of the answer; outranks the judge.", minimum=-1, maximum=1),
        "comment": maybe(text("What you would have liked.", maxLength=MAX_COMMENT_CHARS)),
    }
    return {
        **record(
            fields,
            ("score",),
            "Either a turn or a session must be named, the session here or in the header `X-Session-Id`.",
            additionalProperties=False,
        ),
        "not": {"properties": named, "required": list(named)},
    }


def forget_examples() -> dict[str, Json]:
    return {"user": {"user": "ann"}, "session": {"session": "harbour"}, "turn": {"turn_id": "0123"}}


def _forget_request() -> Json:
    said = r"\S"
    user = text("The user's name, or an owner id.", pattern=said)
    session = text("A session; with `user` that user's only.", pattern=said)
    turn = text("A turn, and the later ones of its session, which repeat it.", pattern=said)
    return either(
        record({"user": user, "session": maybe(text())}, ("user",), additionalProperties=False),
        record({"session": session}, ("session",), additionalProperties=False),
        record({"turn_id": turn}, ("turn_id",), additionalProperties=False),
        description="A user, a session, or a turn.",
    )


def _forgotten() -> Json:
    fields = {
        "found": boolean("There was something to forget."),
        "turns": integer("How many turns were deleted."),
        "dropped": integer("Of these were on their way to training, and are dropped."),
        "unanswered": integer("Requests that are being answered now; their turns will leave nothing but their count."),
        "evidence_of": integer("Answers that lost what they were judged by."),
        "leases_voided": integer("Batches that the trainer was lent and may not use any more."),
        "steps": array(integer(), "The training steps that had learned from the answers."),
        "evidence_steps": array(integer(), "Those that had learned from answers that it was evidence or hints for."),
        "versions": array(integer(), "The policy versions that hold one of these steps."),
        "keys_deleted": integer("How many keys were deleted."),
        "log_emptied": boolean("Nothing stayed in the write-ahead log."),
    }
    return record(fields, tuple(fields))


def _model(served_name: str) -> Json:
    fields = {
        "id": one_of(served_name),
        "object": one_of("model"),
        "created": integer("Seconds since the epoch."),
        "owned_by": text(),
        "max_model_len": integer("Tokens of prompt and answer together."),
    }
    return record(fields, tuple(fields))


def _status() -> Json:
    fields = {
        "name": text(),
        "version": integer("The policy that is served."),
        "step": integer("The training step that made it."),
        "paused": boolean(),
        "pause_reason": maybe(text()),
        "turns": record({}, description="How many there are in each state."),
        "staleness": record({}, description="How many optimizer steps the trained samples lagged, and the limits."),
        "versions": array(record({}), "The newest first."),
        "replicas": {"description": "The replicas that serve the policy."},
        "trainer": {"description": "What the trainer is doing, and what it waits for."},
        "guards": {"description": "What the alarms say."},
    }
    return record(fields, tuple(fields))
