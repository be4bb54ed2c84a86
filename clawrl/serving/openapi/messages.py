"""``POST /v1/messages`` and its ``count_tokens``: their schemas, and bodies that they accept."""

from __future__ import annotations

from clawrl.serving.dialects.messages.request import MAX_STOPS
from clawrl.serving.dialects.sampling import MAX_STOP_CHARS
from clawrl.serving.dialects.tools import MAX_TOOLS
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
from clawrl.serving.openapi.shared import (
    LOOK_PARAMETERS,
    model_field,
    ours,
    session_fields,
    stops,
    stream_field,
    template_fields,
)


def schemas(served_name: str) -> dict[str, Json]:
    return {
        "MessagesRequest": _request(served_name),
        "CountRequest": record(_prompt_fields(served_name), ("model", "messages")),
        "MessagesText": either(
            text(), array(_text_block()), description="Text, or blocks that are joined by a line break."
        ),
        "MessagesUserMessage": record(
            {
                "role": one_of("user"),
                "content": either(text(), array(either(_text_block(), ref("MessagesToolResult")))),
            },
            ("role", "content"),
        ),
        "MessagesAssistantMessage": record(
            {"role": one_of("assistant"), "content": either(text(), array(_assistant_block()))}, ("role", "content")
        ),
        "MessagesSystemMessage": record(
            {"role": one_of("system"), "content": ref("MessagesText")}, ("role", "content")
        ),
        "MessagesToolResult": record(
            {
                "type": one_of("tool_result"),
                "tool_use_id": text(),
                "content": either(
                    text(),
                    array(either(_text_block(), _block("tool_reference", tool_name=text()))),
                    {"type": "null"},
                ),
                "is_error": maybe(boolean()),
            },
            ("type", "tool_use_id"),
        ),
        "MessagesTool": either(
            record(
                {
                    "type": one_of("custom", None),
                    "name": text(),
                    "description": maybe(text()),
                    "input_schema": maybe(record({}, description="A JSON Schema.")),
                },
                ("name",),
            ),
            record(
                {"type": {**text(examples=["web_search_1"]), "not": {"const": "custom"}}},
                ("type",),
                "Known to its maker only: it is left out.",
            ),
        ),
        "MessagesToolChoice": either(
            record({"type": one_of("auto", "any", "none")}, ("type",)),
            record({"type": one_of("tool"), "name": text(examples=["look"])}, ("type", "name"), "One of the `tools`."),
            {"type": "null"},
        ),
        "MessagesAnswer": _answer(),
        "Count": record({"input_tokens": integer()}, ("input_tokens",)),
    }


def examples(served_name: str) -> dict[str, Json]:
    used = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "the tide table"}}
    thought = {"type": "thinking", "thinking": "I must look.", "signature": "clawrl"}
    return {
        "short": {
            "model": served_name,
            "max_tokens": 200,
            "messages": [{"role": "user", "content": "When is high tide?"}],
        },
        "stream": {
            "model": served_name,
            "max_tokens": 200,
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "When is high tide?"}]}],
            "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "stop_sequences": ["END"],
        },
        "tools": {
            "model": served_name,
            "max_tokens": 200,
            "messages": [
                {"role": "user", "content": "When is high tide?"},
                {"role": "assistant", "content": [thought, used]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "06:40 and 19:05"}],
                },
            ],
            "tools": [{"name": "look", "input_schema": LOOK_PARAMETERS}],
            "tool_choice": {"type": "auto"},
        },
    }


def count_examples(served_name: str) -> dict[str, Json]:
    unknown_to_counts = ("max_tokens", "stream", "stop_sequences")
    return {
        name: {field: value for field, value in body.items() if field not in unknown_to_counts}
        for name, body in examples(served_name).items()
    }


def _prompt_fields(served_name: str) -> dict[str, Json]:
    message = either(*(ref(f"Messages{kind}Message") for kind in ("User", "Assistant", "System")))
    return {
        "model": model_field(served_name),
        "messages": array(message, "In the order in which they were said.", minItems=1),
        "system": either(ref("MessagesText"), {"type": "null"}, description="What stands before the messages."),
        "tools": maybe(array(ref("MessagesTool"), maxItems=MAX_TOOLS)),
        "tool_choice": ref("MessagesToolChoice"),
        "thinking": maybe(
            record(
                {"type": one_of("enabled", "disabled", "adaptive")},
                ("type",),
                "`adaptive` leaves it to the chat template. A budget is ignored.",
            )
        ),
        "output_config": {"description": "A `format` of type `json_schema` holds the answer to its `schema`."},
        **template_fields(),
    }


def _request(served_name: str) -> Json:
    fields = _prompt_fields(served_name) | {
        "max_tokens": integer("Cut to what the prompt leaves of the context.", minimum=1),
        "temperature": maybe(number("0 always takes the likeliest token.", minimum=0, maximum=1)),
        "top_p": maybe(number("Below 1 the answer cannot train.", exclusiveMinimum=0, maximum=1)),
        "top_k": maybe(integer("0 and -1 are off. Above 0 the answer cannot train.", minimum=-1)),
        "stop_sequences": maybe(stops(f"Each of 1 to {MAX_STOP_CHARS} characters.", MAX_STOPS)),
        "stream": stream_field(),
        **session_fields(),
    }
    return record(fields, ("model", "messages", "max_tokens"), "The last message must not be the assistant's.")


def _text_block() -> Json:
    return _block("text", text=text())


def _assistant_block() -> Json:
    return either(
        _text_block(),
        _block("thinking", thinking=text()),
        _block("redacted_thinking"),
        _block("tool_use", id=text(), name=text(), input=record({})),
    )


def _block(kind: str, **needed: Json) -> Json:
    return record({"type": one_of(kind), **needed}, ("type", *needed))


def _answer() -> Json:
    usage = record(
        {
            "input_tokens": integer(),
            "output_tokens": integer(),
            "cache_creation_input_tokens": integer(),
            "cache_read_input_tokens": integer(),
        },
        ("input_tokens", "output_tokens"),
    )
    block = either(
        _block("thinking", thinking=text(), signature=text()),
        _text_block(),
        _block("tool_use", id=text(), name=text(), input=record({})),
    )
    fields = {
        "id": text(),
        "type": one_of("message"),
        "role": one_of("assistant"),
        "model": text(),
        "content": array(block),
        "stop_reason": one_of("end_turn", "max_tokens", "tool_use"),
        "stop_sequence": {"type": "null"},
        "usage": usage,
        "clawrl": ours(),
    }
    return record(fields, tuple(fields))
