"""``POST /v1/chat/completions``: the body and the headers in, one strict `ModelRequest` out.

Fields that nobody here knows are ignored, since clients send many; a field that would change the answer and cannot
be honoured is a 400 that names it. After this module nothing looks at the client's JSON again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clawrl.messages import TemplateInputs, TurnKind
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.chat.messages import parse_messages
from clawrl.serving.dialects.chat.response import ChatWriter
from clawrl.serving.dialects.common import served_model, template_arguments
from clawrl.serving.dialects.sampling import parse_sampling
from clawrl.serving.dialects.structured import held_to
from clawrl.serving.dialects.tools import parse_tool_choice, parse_tools
from clawrl.serving.fields import JsonObject, as_object, flag, integer
from clawrl.serving.request import ModelRequest
from clawrl.serving.sessions import session_facts

MAX_ANSWERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAsked:
    request: ModelRequest
    include_usage: bool

    def writer(self, facts: AnswerFacts) -> ChatWriter:
        return ChatWriter(facts, include_usage=self.include_usage, logprobs=self.request.logprobs)


def read(fields: JsonObject, headers: Mapping[str, str], config: ServingConfig) -> ChatAsked:
    """Raises `ApiError` with the first thing wrong."""
    model = served_model(fields, config)
    messages = parse_messages(fields)
    tools = parse_tools(fields)
    choice = parse_tool_choice(fields, tools)
    facts = session_facts(headers, fields, TurnKind(config.default_turn_type), messages, tools)
    impose = config.sampling.override and facts.kind is TurnKind.MAIN
    sampling, overridden = parse_sampling(fields, config.sampling, impose=impose)
    called = tools if choice.allowed else ()
    form = fields.get("response_format")
    sampling = held_to(sampling, form, "response_format", tools=called, nested="json_schema")
    stream = flag(fields, "stream") or False
    request = ModelRequest(
        model=model,
        messages=messages,
        inputs=TemplateInputs(tools=called, arguments=template_arguments(fields)),
        tool_choice=choice,
        sampling=sampling,
        facts=facts,
        overridden=tuple(overridden),
        schema_field="response_format" if sampling.json_schema else None,
        answers=integer(fields, "n", low=1, high=MAX_ANSWERS) or 1,
        stream=stream,
        logprobs=flag(fields, "logprobs") or False,
    )
    return ChatAsked(request=request, include_usage=_include_usage(fields) and stream)


def _include_usage(fields: JsonObject) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    return flag(as_object(options, "stream_options"), "include_usage", "stream_options.include_usage") or False
