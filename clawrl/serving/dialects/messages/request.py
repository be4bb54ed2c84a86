"""``POST /v1/messages`` and its ``count_tokens``: the body and the headers in, one strict `ModelRequest` out.

Fields that nobody here knows (``context_management``, betas, most of ``output_config``) are ignored, since clients send
many. ``max_tokens`` is required, as these clients expect. ``thinking`` turns the template's ``enable_thinking`` on or
off, unless ``chat_template_kwargs`` says it; ``adaptive`` leaves it to the template, and neither a budget nor a way of
showing it is known: reasoning always goes to the client, which must be able to send it back. An answer cannot be begun
by the client: a last message of the assistant is refused. Where neither a header nor the body names the session,
``metadata`` may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clawrl.messages import Message, TemplateInputs, TurnKind
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.common import served_model, template_arguments
from clawrl.serving.dialects.messages.content import parse_messages
from clawrl.serving.dialects.messages.response import MessagesWriter
from clawrl.serving.dialects.messages.tools import parse_tool_choice, parse_tools
from clawrl.serving.dialects.sampling import MAX_STOP_CHARS, parse_sampling
from clawrl.serving.dialects.structured import held_to
from clawrl.serving.errors import invalid_request, quoted
from clawrl.serving.fields import JsonObject, as_object, as_text, flag, integer, missing, number, wrong_type
from clawrl.serving.request import ModelRequest
from clawrl.serving.sessions import session_facts

MAX_STOPS = 16
_DRAWN = ("temperature", "top_p", "top_k", "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesAsked:
    request: ModelRequest

    def writer(self, facts: AnswerFacts) -> MessagesWriter:
        return MessagesWriter(facts)


def parse_messages_request(body: JsonObject, headers: Mapping[str, str], config: ServingConfig) -> MessagesAsked:
    """Raises `ApiError` with the first thing wrong."""
    model = served_model(body, config)
    messages = parse_messages(body)
    if messages[-1].role == "assistant":
        raise invalid_request(
            "Invalid 'messages': the last message is the assistant's, but an answer cannot be continued here. "
            "End with a user message.",
            "messages",
        )
    if integer(body, "max_tokens", low=1) is None:
        raise missing("max_tokens")
    number(body, "temperature", 0.0, 1.0)
    tools = parse_tools(body)
    facts = session_facts(headers, body, TurnKind(config.default_turn_type), messages, tools)
    impose = config.sampling.override and facts.kind is TurnKind.MAIN
    sampling, overridden = parse_sampling({name: body.get(name) for name in _DRAWN}, config.sampling, impose=impose)
    inputs = _inputs(body, tools)
    # Clients put other wishes there, too.
    wishes = body.get("output_config")
    form = wishes.get("format") if isinstance(wishes, dict) else None
    sampling = held_to(sampling, form, "output_config.format", tools=inputs.tools)
    request = ModelRequest(
        model=model,
        messages=messages,
        inputs=inputs,
        tool_choice=parse_tool_choice(body, tools),
        sampling=replace(sampling, stop=_stops(body.get("stop_sequences"))),
        facts=facts,
        overridden=tuple(overridden),
        schema_field="output_config.format" if sampling.json_schema else None,
        stream=flag(body, "stream") or False,
    )
    return MessagesAsked(request=request)


def parse_count_request(body: JsonObject, config: ServingConfig) -> tuple[tuple[Message, ...], TemplateInputs]:
    """What to render in order to count it. Raises `ApiError` as a request for an answer would."""
    served_model(body, config)
    return parse_messages(body), _inputs(body, parse_tools(body))


def _inputs(body: JsonObject, tools: Sequence[str]) -> TemplateInputs:
    choice = parse_tool_choice(body, tools)
    said = {"chat_template_kwargs": body.get("chat_template_kwargs"), "enable_thinking": _thinking(body)}
    return TemplateInputs(tools=tuple(tools) if choice.allowed else (), arguments=template_arguments(said))


def _thinking(body: JsonObject) -> bool | None:
    """Nothing where the template is to decide."""
    if body.get("thinking") is None:
        return None
    kind = as_object(body["thinking"], "thinking").get("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise invalid_request(
            f"Invalid value for 'thinking.type': {quoted(kind)}. It must be 'enabled', 'disabled' or 'adaptive'.",
            "thinking.type",
        )
    return None if kind == "adaptive" else kind == "enabled"


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(value, "stop_sequences", "an array of strings")
    stops = tuple(as_text(stop, f"stop_sequences[{i}]") for i, stop in enumerate(value))
    if len(stops) > MAX_STOPS:
        raise invalid_request(
            f"Invalid 'stop_sequences': at most {MAX_STOPS} of them, but got {len(stops)}.", "stop_sequences"
        )
    if any(not 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise invalid_request(f"Invalid 'stop_sequences': each has 1 to {MAX_STOP_CHARS} characters.", "stop_sequences")
    return stops
