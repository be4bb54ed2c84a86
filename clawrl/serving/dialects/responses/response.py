"""The Response object, as it stands at any moment of an answer.

``status`` is ``completed``, or ``incomplete`` with the reason ``max_output_tokens`` where the length ended the answer;
an answer that was aborted or failed is never shown as a finished one. Fields that only repeat the request (``echo``)
say what holds: the values that were drawn with, and the tools that the model was told of. Ours beyond the standard is
in one block, ``clawrl``, that other clients ignore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clawrl.messages import FinishReason
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.responses.output import Json, Status
from clawrl.serving.dialects.responses.tools import ToolName
from clawrl.serving.errors import ApiError
from clawrl.serving.pieces import FinishPiece, Usage

RESPONSE_PREFIX = "resp_"
_ENDED: Mapping[FinishReason, Status] = {FinishReason.STOP: "completed", FinishReason.LENGTH: "incomplete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseShape:
    """What all Response objects of one request share. ``names`` turn the model's names of tools into the client's."""

    facts: AnswerFacts
    echo: Mapping[str, Any]
    names: Mapping[str, ToolName]

    def response(self, status: str, version: int | None, output: Sequence[Json], **more: Any) -> Json:
        return {
            "id": RESPONSE_PREFIX + self.facts.turn_ids[0],
            "object": "response",
            "created_at": self.facts.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.facts.model,
            "output": list(output),
            "usage": None,
            **self.echo,
            **more,
            "clawrl": self.facts.ours(0, version),
        }

    def finished(self, finish: FinishPiece, output: Sequence[Json]) -> Json:
        status = ended(finish)
        response = self.response(status, finish.version, output, usage=_usage(finish.usage))
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["clawrl"] = self.facts.ours(0, finish.version, finish.spans)
        return response

    def failed(self, error: ApiError, version: int | None, output: Sequence[Json]) -> Json:
        # The code is one of a fixed list to clients, and all of the server's own troubles have one name there.
        code = "server_error" if error.status >= 500 else error.code or "invalid_prompt"
        return self.response("failed", version, output, error={"code": code, "message": error.message})


def ended(finish: FinishPiece) -> Status:
    """The status of a finished answer, which is also that of its last item."""
    if finish.finish_reason not in _ENDED:
        raise ValueError(f"a turn that ended as {finish.finish_reason.value!r} is never shown as a finished answer")
    return _ENDED[finish.finish_reason]


def error_body(error: ApiError) -> Json:
    return error.body()


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
