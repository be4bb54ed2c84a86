"""A request as the ledger will know it, and the replica that it should go to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from clawrl.messages import NO_INPUTS, Arrival, Message, TemplateInputs, TurnId, TurnKind
from clawrl.serving.sessions.canonical import answer_hash, conversation_hash, opening_hash, segment_hash
from clawrl.serving.sessions.evidence import answered, evidence_of, without_unheard


def make_arrival(
    *,
    turn_id: TurnId,
    messages: Sequence[Message],
    session: str | None,
    owner: str,
    kind: TurnKind,
    ends_session: bool,
    arrived_at: float,
    may_train: bool = True,
    train_wish: bool | None = None,
    group: str | None = None,
    inputs: TemplateInputs = NO_INPUTS,
) -> Arrival:
    """``messages`` are the whole request, exactly as it is rendered with ``inputs``.

    ``may_train`` is what the key allows, ``train_wish`` what the request says.
    """
    end = answered(messages)
    history, sent, evidence = tuple(messages[:end]), tuple(messages[end:]), evidence_of(messages)
    before = conversation_hash(history)
    return Arrival(
        turn_id=turn_id,
        session=session,
        owner=owner,
        kind=kind,
        prefix_hash=before if history else None,
        messages_hash=conversation_hash(sent, before),
        answer_hash=_last_answer(history),
        segment=segment_hash(messages, inputs.tools),
        history=history,
        new_messages=evidence,
        sent=None if sent == evidence else sent,
        group=group,
        ends_session=ends_session,
        arrived_at=arrived_at,
        may_train=may_train and train_wish is not False,
        train_wish=train_wish,
        inputs=inputs,
    )


def _last_answer(history: Sequence[Message]) -> str | None:
    """The hash of the last answer that the user can have seen."""
    heard = without_unheard(history)
    end = answered(heard)
    return (answer_hash(heard[end - 1]) or None) if end else None


def affinity_key(session: str | None, owner: str, messages: Sequence[Message]) -> str:
    """Equal for all turns of one conversation, so that they reach the replica whose cache knows the prefix.

    Without a session the opening tells: the messages up to and including the first from the user.
    """
    if session is not None:
        return session
    return hashlib.sha256(f"{owner}\n{opening_hash(messages)}".encode()).hexdigest()
