"""``POST /v1/chat/completions``: its schemas, and bodies that it accepts."""

from __future__ import annotations

from clawrl.serving.dialects.chat.messages import ROLES
from clawrl.serving.dialects.chat.request import MAX_ANSWERS
from clawrl.serving.dialects.tools import MAX_TOOLS
from clawrl.serving.openapi.schemas import (
    Json,
    array,
    boolean,
    either,
    integer,
    maybe,
    nothing,
    number,
    one_of,
    record,
    ref,
    text,
)
from clawrl.serving.openapi.shared import (
    LOOK_PARAMETERS,
    format_field,
    model_field,
    ours,
    sampling_fields,
    session_fields,
    stream_field,
    template_fields,
    thinking_field,
)


def schemas(served_name: str) -> dict[str, Json]:
    return {
        "ChatRequest": _request(served_name),
        "ChatInstruction": _message([role for role, meant in ROLES.items() if meant == "system"]),
        "ChatUserMessage": _message(["user"]),
        "ChatAssistantMessage": _message(
            ["assistant"],
            reasoning_content=_reasoning(),
            reasoning=_reasoning(),
            reasoning_text=_reasoning(),
            tool_calls=either(array(ref("ChatToolCall")), nothing("")),
            function_call=nothing("Not served; use `tool_calls`."),
        ),
        "ChatToolMessage": _message(["tool"], tool_call_id=maybe(text())),
        "ChatContent": either(
            text(),
            array(record({"type": one_of("text"), "text": text()}, ("type", "text"))),
            {"type": "null"},
            description="Text, or parts that are joined without anything between them.",
        ),
        "ChatToolCall": record(
            {
                "id": maybe(text()),
                "type": one_of("function", None),
                "function": record(
                    {"name": text(), "arguments": maybe(text("JSON text as it was written."))},
                    ("name",),
                ),
            },
            ("function",),
        ),
        "ChatTool": record(
            {
                "type": one_of("function", None),
                "function": record(
                    {
                        "name": text(),
                        "description": maybe(text()),
                        "parameters": maybe(record({}, description="A JSON Schema.")),
                    },
                    ("name",),
                ),
            },
            ("function",),
        ),
        "ChatToolChoice": either(
            one_of("none", "auto", "required", None),
            record(
                {"type": one_of("function"), "function": record({"name": text(examples=["look"])}, ("name",))},
                ("type", "function"),
                "The name of one of the `tools`.",
            ),
        ),
        "ChatCompletion": _completion(),
    }


def examples(served_name: str) -> dict[str, Json]:
    look = {"type": "function", "function": {"name": "look", "parameters": LOOK_PARAMETERS}}
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"the tide table"}'}}
    return {
        "short": {"model": served_name, "messages": [{"role": "user", "content": "When is high tide?"}]},
        "stream": {
            "model": served_name,
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "When is high tide?"}]},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": 200,
            "temperature": 1,
            "session_id": "harbour",
        },
        "tools": {
            "model": served_name,
            "messages": [
                {"role": "user", "content": "When is high tide?"},
                {"role": "assistant", "content": None, "reasoning_content": "I must look.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "06:40 and 19:05"},
            ],
            "tools": [look],
            "tool_choice": "auto",
        },
    }


def _request(served_name: str) -> Json:
    message = either(*(ref(name) for name in _MESSAGES))
    fields = {
        "model": model_field(served_name),
        "messages": array(message, "In the order in which they were said.", minItems=1),
        "tools": maybe(array(ref("ChatTool"), maxItems=MAX_TOOLS)),
        "tool_choice": ref("ChatToolChoice"),
        "stream": stream_field(),
        "stream_options": maybe(
            record({"include_usage": maybe(boolean("Send the usage in a chunk of its own before the end."))})
        ),
        "max_tokens": maybe(integer("Cut to what the prompt leaves of the context.", minimum=1)),
        "max_completion_tokens": maybe(integer("The same; the smaller one counts.", minimum=1)),
        "n": maybe(integer("How many answers.", minimum=1, maximum=MAX_ANSWERS)),
        "logprobs": maybe(boolean("Send the log-probabilities of the sampled tokens.")),
        "response_format": maybe(format_field(nested="json_schema")),
        "functions": nothing("Not served; use `tools`."),
    }
    return record(
        fields | sampling_fields() | template_fields() | thinking_field() | session_fields(), ("model", "messages")
    )


_MESSAGES = ("ChatInstruction", "ChatUserMessage", "ChatAssistantMessage", "ChatToolMessage")


def _message(roles: list[str], **more: Json) -> Json:
    return record({"role": one_of(*roles), "content": ref("ChatContent"), "name": maybe(text()), **more}, ("role",))


def _reasoning() -> Json:
    return maybe(text("The first of the three names that is not empty counts."))


def _completion() -> Json:
    call = record(
        {
            "id": text(),
            "type": one_of("function"),
            "function": record({"name": text(), "arguments": text()}, ("name", "arguments")),
        },
        ("id", "type", "function"),
    )
    message = record(
        {
            "role": one_of("assistant"),
            "content": maybe(text("Null beside tool calls only.")),
            "reasoning_content": text(),
            "tool_calls": array(call, minItems=1),
        },
        ("role", "content"),
    )
    token = record(
        {
            "token": text(),
            "logprob": number(),
            "bytes": maybe(array(integer())),
            "top_logprobs": array({}, maxItems=0),
        },
        ("token", "logprob", "bytes", "top_logprobs"),
    )
    choice = record(
        {
            "index": integer(),
            "message": message,
            "logprobs": maybe(record({"content": array(token), "refusal": {"type": "null"}}, ("content",))),
            "finish_reason": one_of("stop", "length", "tool_calls"),
        },
        ("index", "message", "logprobs", "finish_reason"),
    )
    usage = record(
        {"prompt_tokens": integer(), "completion_tokens": integer(), "total_tokens": integer()},
        ("prompt_tokens", "completion_tokens", "total_tokens"),
    )
    fields = {
        "id": text(),
        "object": one_of("chat.completion"),
        "created": integer("Seconds since the epoch."),
        "model": text(),
        "system_fingerprint": text("The policy version."),
        "choices": array(choice, minItems=1),
        "usage": usage,
        "clawrl": ours(),
    }
    return record(fields, tuple(fields))
