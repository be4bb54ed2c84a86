"""One turn as a row of a data set: every column in every row, of one type, texts and tokens included.

Columns that hold lists hold the items of one token each and are of one length: ``response_ids``, ``response_logps``. A
message's ``tool_calls`` are JSON text, since a data set's columns have one type each. What is not known is null; what
was not said is an empty text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from clawrl.inspection.documents import finite
from clawrl.ledger.life import TurnText
from clawrl.ledger.views import TurnRow
from clawrl.messages import Message
from clawrl.serving.openai_message import openai_message


def export_row(row: TurnRow, text: TurnText | None) -> dict[str, Any]:
    """``text`` is absent where it is gone: then so are ids and log-probs, which decode to it."""
    turn = None if text is None else text.turn
    judgement = None if text is None else text.judgement
    said = None if text is None else text.said
    return {
        "turn_id": row.turn_id,
        "seq": row.seq,
        "owner": row.owner,
        "session": row.session,
        "parent": row.parent or "",
        "kind": row.kind.value,
        "state": row.state.value,
        "drop_reason": "" if row.drop_reason is None else row.drop_reason.value,
        "step": row.step,
        "finished_at": row.finished_at,
        "finish_reason": "" if turn is None else turn.finish_reason.value,
        "text_gone": turn is None,
        "messages": [] if turn is None else exported_messages(turn.arrival.messages),
        "tools": [] if turn is None else list(turn.arrival.inputs.tools),
        "answer": exported_messages([] if turn is None else [turn.answer]),
        "response_text": "" if turn is None else turn.response_text,
        "evidence": [] if text is None or text.evidence is None else exported_messages(text.evidence.messages),
        "prompt_ids": [] if turn is None else turn.prompt_ids.tolist(),
        "response_ids": [] if turn is None else turn.response_ids.tolist(),
        "response_logps": [] if turn is None else turn.response_logps.tolist(),
        "spans": []
        if turn is None
        else [{"start": span.start, "end": span.end, "version": span.version} for span in turn.spans],
        "temperature": None if turn is None else turn.sampling.temperature,
        "verdict": None if row.verdict is None else int(row.verdict),
        "score": finite(row.score),
        "reward": row.reward,
        "feedback": None if said is None else said.feedback.score,
        "comment": "" if said is None else said.feedback.comment,
        "judge": "" if judgement is None else judgement.judge,
        "reasoning": "" if judgement is None else judgement.detail,
        "hints": [] if judgement is None else list(judgement.hints),
    }


def exported_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    found = []
    for message in messages:
        written = openai_message(message)
        found.append(
            {
                "role": message.role,
                "content": message.content,
                "reasoning_content": message.reasoning,
                "tool_calls": json.dumps(written["tool_calls"]) if message.tool_calls else "",
                "tool_call_id": message.tool_call_id or "",
                "name": message.name or "",
            }
        )
    return found
