"""``POST /v1/chat/completions``: the body and the headers in, one strict `ChatRequest` out.

Fields that nobody here knows are ignored, since clients send many; a field that would change the answer and cannot
be honoured is a 400 that names it. After this module nothing looks at the client's JSON again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from clawrl.messages import Message, SamplingParams, TurnKind
from clawrl.serving.chat_messages import parse_messages
from clawrl.serving.chat_sampling import parse_sampling
from clawrl.serving.config import ServingConfig
from clawrl.serving.errors import body_too_large, invalid_request, unknown_model
from clawrl.serving.fields import JsonObject, as_object, flag, missing, text
from clawrl.serving.sessions import session_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What the client asked for, resolved. ``overridden`` names its sampling values that the operator replaced."""

    model: str
    messages: tuple[Message, ...]
    sampling: SamplingParams
    overridden: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    session: str | None
    kind: TurnKind
    ends_session: bool
    group: str | None


def parse_chat_request(
    body: bytes | JsonObject, config: ServingConfig, headers: Mapping[str, str] | None = None
) -> ChatRequest:
    """``body`` is the raw bytes or the decoded JSON value. Raises `ApiError` with the first thing wrong."""
    fields = decode_body(body, config.max_body_bytes) if isinstance(body, bytes) else _body_object(body)
    model = text(fields, "model")
    if model is None:
        raise missing("model")
    if model != config.served_name:
        raise unknown_model(model, config.served_name)
    facts = session_facts(headers or {}, fields, TurnKind(config.default_turn_type))
    impose = config.sampling.override and facts.kind is TurnKind.MAIN
    sampling, overridden = parse_sampling(fields, config.sampling, impose=impose)
    stream = flag(fields, "stream") or False
    return ChatRequest(
        model=model,
        messages=parse_messages(fields),
        sampling=sampling,
        overridden=tuple(overridden),
        stream=stream,
        include_usage=_include_usage(fields) and stream,
        logprobs=flag(fields, "logprobs") or False,
        session=facts.session,
        kind=facts.kind,
        ends_session=facts.ends,
        group=facts.group,
    )


def decode_body(raw: bytes, limit: int) -> JsonObject:
    if len(raw) > limit:
        raise body_too_large(limit)
    try:
        value = json.loads(raw.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise invalid_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    return _body_object(value)


def _body_object(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise invalid_request("The request body must be a JSON object.", code="invalid_json")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _include_usage(fields: JsonObject) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    return flag(as_object(options, "stream_options"), "include_usage", "stream_options.include_usage") or False
