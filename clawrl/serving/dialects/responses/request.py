"""``POST /v1/responses``: the body and the headers in, one strict `ModelRequest` out.

``instructions`` are a system message before the input. Every served turn is stored whatever ``store`` says, and
``previous_response_id`` goes on from one: the caller looks it up and calls `with_history`. Whether several tools are
called at once is the model's choice, whatever ``parallel_tool_calls`` says. ``reasoning``, ``include`` (but for
log-probs), ``prompt_cache_key``, ``client_metadata`` and fields that nobody here knows are ignored, since clients send
many; a field that would change the answer and cannot be honoured is a 400 that names it. After this module nothing
looks at the client's JSON again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clawrl.messages import Arrival, Message, SamplingParams, TemplateInputs, TurnId, TurnKind
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.common import served_model, template_arguments
from clawrl.serving.dialects.responses.items import parse_input
from clawrl.serving.dialects.responses.response import RESPONSE_PREFIX, ResponseShape
from clawrl.serving.dialects.responses.sampling import parse_sampling
from clawrl.serving.dialects.responses.tools import Tools, parse_tool_choice, parse_tools, tool_name
from clawrl.serving.dialects.responses.writer import ResponsesWriter
from clawrl.serving.dialects.structured import held_to
from clawrl.serving.errors import invalid_request, quoted
from clawrl.serving.fields import JsonObject, as_object, as_text, flag, text
from clawrl.serving.request import ModelRequest
from clawrl.serving.sessions import session_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesAsked:
    """``previous`` is the turn that this one goes on from; its messages are not in ``request`` before `with_history`.

    ``instructed`` tells that the first message is ``instructions``.
    """

    request: ModelRequest
    tools: Tools
    echo: Mapping[str, Any]
    previous: TurnId | None = None
    instructed: bool = False

    def writer(self, facts: AnswerFacts) -> ResponsesWriter:
        return ResponsesWriter(ResponseShape(facts=facts, echo=self.echo, names=self.tools.names))


def parse_responses_request(body: JsonObject, headers: Mapping[str, str], config: ServingConfig) -> ResponsesAsked:
    """Raises `ApiError` with the first thing wrong."""
    model = served_model(body, config)
    instructions = text(body, "instructions")
    messages = parse_input(body)
    if instructions:
        messages = (Message(role="system", content=instructions), *messages)
    tools = parse_tools(body)
    choice = parse_tool_choice(body, tools)
    facts = session_facts(headers, body, TurnKind(config.default_turn_type), messages, tools.texts)
    impose = config.sampling.override and facts.kind is TurnKind.MAIN
    sampling, overridden = parse_sampling(body, config.sampling, impose=impose)
    called = tools.texts if choice.allowed else ()
    shape = {} if body.get("text") is None else as_object(body["text"], "text")
    sampling = held_to(sampling, shape.get("format"), "text.format", tools=called)
    flag(body, "store")
    flag(body, "parallel_tool_calls")
    if body.get("reasoning") is not None:
        as_object(body["reasoning"], "reasoning")
    request = ModelRequest(
        model=model,
        messages=messages,
        inputs=TemplateInputs(tools=called, arguments=template_arguments(body)),
        tool_choice=choice,
        sampling=sampling,
        facts=facts,
        overridden=tuple(overridden),
        schema_field="text.format" if sampling.json_schema else None,
        stream=flag(body, "stream") or False,
    )
    return ResponsesAsked(
        request=request,
        tools=tools,
        echo=_echo(body, sampling, tools),
        previous=_previous(body),
        instructed=bool(instructions),
    )


def with_history(asked: ResponsesAsked, past: Arrival, last: Message) -> ResponsesAsked:
    """``asked``, going on from the turn that came as ``past`` and whose answer was ``last``.

    New instructions take the place of a system message at the head of the history. Without them it stays, since nothing
    tells whether it was instructions then or a message of the input.
    """
    own = asked.request.messages
    head = own[:1] if asked.instructed else ()
    history = past.messages
    if head and history and history[0].role == "system":
        history = history[1:]
    messages = (*head, *history, last, *own[len(head) :])
    facts = asked.request.facts.going_on_from(past)
    return replace(asked, request=replace(asked.request, messages=messages, facts=facts))


def _previous(body: JsonObject) -> TurnId | None:
    given = text(body, "previous_response_id")
    if given is None:
        return None
    turn_id = given.removeprefix(RESPONSE_PREFIX)
    if not turn_id or turn_id == given:
        raise invalid_request(
            f"Invalid 'previous_response_id': {quoted(given)}. It must be the id of a response, which begins with "
            f"'{RESPONSE_PREFIX}'.",
            "previous_response_id",
        )
    return TurnId(turn_id)


def _echo(body: JsonObject, sampling: SamplingParams, tools: Tools) -> dict[str, Any]:
    return {
        "instructions": text(body, "instructions"),
        "metadata": _metadata(body),
        "max_output_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "tools": list(tools.shown),
        "tool_choice": _choice(body.get("tool_choice")),
        "parallel_tool_calls": True,
        "previous_response_id": text(body, "previous_response_id"),
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "truncation": "disabled",
    }


def _choice(value: Any) -> Any:
    if isinstance(value, dict):
        return {"type": "function", "name": tool_name(value, "tool_choice").name}
    return "auto" if value is None else value


def _metadata(body: JsonObject) -> dict[str, str]:
    given = body.get("metadata")
    pairs = {} if given is None else as_object(given, "metadata")
    return {as_text(name, "metadata"): as_text(value, f"metadata.{name}") for name, value in pairs.items()}
