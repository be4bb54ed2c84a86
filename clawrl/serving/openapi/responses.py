"""``POST /v1/responses``: its schemas, and bodies that it accepts."""

from __future__ import annotations

import re

from clawrl.serving.dialects.responses.items import ROLES
from clawrl.serving.dialects.responses.response import RESPONSE_PREFIX
from clawrl.serving.dialects.responses.tools import HOSTED
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
    format_field,
    model_field,
    ours,
    sampling_fields,
    session_fields,
    stream_field,
    template_fields,
    thinking_field,
)

_LOGPROBS = "message.output_text.logprobs"
_NULL: Json = {"type": "null"}


def schemas(served_name: str) -> dict[str, Json]:
    call = {"name": text(examples=["look"]), "namespace": maybe(text(examples=["deck"]))}
    return {
        "ResponsesRequest": _request(served_name),
        "ResponsesMessage": record(
            {
                "type": one_of("message", None),
                "role": one_of(*ROLES),
                "content": maybe(ref("ResponsesText")),
            },
            ("role",),
        ),
        "ResponsesReasoning": record(
            {
                "type": one_of("reasoning"),
                "content": maybe(array(_part("reasoning_text", "text"))),
                "summary": maybe(array(_part("summary_text"), "Read where there is no `content`.")),
            },
            ("type",),
        ),
        "ResponsesCall": record(
            {
                "type": one_of("function_call"),
                "call_id": text(),
                **call,
                "arguments": maybe(text("JSON text as it was written.")),
            },
            ("type", "call_id", "name"),
        ),
        "ResponsesCallOutput": record(
            {"type": one_of("function_call_output"), "call_id": maybe(text()), "output": ref("ResponsesText")},
            ("type", "output"),
        ),
        "ResponsesText": either(
            text(), array(_part("input_text", "output_text")), description="Text, or parts of it that are joined."
        ),
        "ResponsesFunction": record(
            {
                "type": one_of("function"),
                "name": text(),
                "description": maybe(text()),
                "parameters": maybe(record({}, description="A JSON Schema.")),
            },
            ("name",),
        ),
        "ResponsesNamespace": record(
            {
                "type": one_of("namespace"),
                "name": text(),
                "description": maybe(text()),
                "tools": array(ref("ResponsesFunction")),
            },
            ("type", "name", "tools"),
            "Function tools whose names are theirs within the namespace.",
        ),
        "ResponsesHostedTool": record(
            {"type": text(pattern=f"^({'|'.join(map(re.escape, HOSTED))})", examples=["web_search"])},
            ("type",),
            "Runs at its maker's: it is left out.",
        ),
        "ResponsesToolChoice": either(
            one_of("none", "auto", "required", None),
            record({"type": one_of("function"), **call}, ("type", "name"), "One of the `tools`."),
        ),
        "Response": _response(),
    }


def examples(served_name: str) -> dict[str, Json]:
    look = {"type": "function", "name": "look", "parameters": LOOK_PARAMETERS}
    return {
        "short": {"model": served_name, "input": "When is high tide?"},
        "stream": {
            "model": served_name,
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "When is high tide?"}]}],
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": 200,
        },
        "tools": {
            "model": served_name,
            "input": [
                {"type": "message", "role": "user", "content": "When is high tide?"},
                {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at":"the tide table"}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "06:40 and 19:05"},
            ],
            "tools": [look, {"type": "namespace", "name": "deck", "tools": [look]}, {"type": "web_search"}],
            "tool_choice": "auto",
        },
        "continued": {"model": served_name, "previous_response_id": f"{RESPONSE_PREFIX}0123", "input": "And tomorrow?"},
    }


def _part(*kinds: str) -> Json:
    return record({"type": one_of(*kinds), "text": text()}, ("type", "text"))


def _request(served_name: str) -> Json:
    item = either(*(ref(name) for name in _ITEMS))
    tool = either(ref("ResponsesFunction"), ref("ResponsesNamespace"), ref("ResponsesHostedTool"))
    fields = {
        "model": model_field(served_name),
        "input": either(
            text("One message of the user."),
            array(item, "Something must be said in them.", minItems=1),
        ),
        "instructions": maybe(text("A system message before the input.")),
        "previous_response_id": maybe(
            text(
                "The conversation up to this response goes before the input.",
                pattern=f"^{RESPONSE_PREFIX}[\\s\\S]",
                examples=[f"{RESPONSE_PREFIX}0123"],
            )
        ),
        "tools": maybe(array(tool, f"At most {MAX_TOOLS} functions, those in namespaces included.")),
        "tool_choice": ref("ResponsesToolChoice"),
        "parallel_tool_calls": maybe(boolean("Ignored: it is the model's choice.")),
        "stream": stream_field(),
        "store": maybe(boolean("Ignored: every turn is stored.")),
        "max_output_tokens": maybe(integer("Cut to what the prompt leaves of the context.", minimum=1)),
        "reasoning": maybe(record({}, description="Ignored.")),
        "metadata": maybe(record({}, description="Comes back.", additionalProperties=text())),
        "include": maybe(array({**text(), "not": {"const": _LOGPROBS}}, "Ignored; log-probabilities are not served.")),
        "text": maybe(record({"format": maybe(format_field())})),
        "truncation": one_of("disabled", None, description="A prompt is never cut."),
        "background": one_of(False, None, description="Not served."),
        "conversation": {"description": "Not served; use `previous_response_id`.", **_NULL},
        "prompt": {"description": "Not served.", **_NULL},
    }
    return record(
        fields | sampling_fields() | template_fields() | thinking_field() | session_fields(), ("model", "input")
    )


_ITEMS = ("ResponsesMessage", "ResponsesReasoning", "ResponsesCall", "ResponsesCallOutput")


def _response() -> Json:
    reasoning = record(
        {"id": text(), "type": one_of("reasoning"), "summary": array({}), "content": array(_part("reasoning_text"))},
        ("id", "type", "summary", "content"),
    )
    message = record(
        {"id": text(), "type": one_of("message"), "role": one_of("assistant"), "content": array(_part("output_text"))},
        ("id", "type", "role", "content"),
    )
    call = record(
        {
            "id": text(),
            "type": one_of("function_call"),
            "call_id": text(),
            "name": text(),
            "namespace": text(),
            "arguments": text("JSON text."),
        },
        ("id", "type", "call_id", "name", "arguments"),
    )
    usage = record(
        {"input_tokens": integer(), "output_tokens": integer(), "total_tokens": integer()},
        ("input_tokens", "output_tokens", "total_tokens"),
    )
    fields = {
        "id": text(f"`{RESPONSE_PREFIX}` and the turn's id."),
        "object": one_of("response"),
        "created_at": integer("Seconds since the epoch."),
        "status": one_of("completed", "incomplete"),
        "incomplete_details": maybe(record({"reason": one_of("max_output_tokens")}, ("reason",))),
        "error": _NULL,
        "model": text(),
        "output": array(either(reasoning, message, call), minItems=1),
        "usage": usage,
        "instructions": maybe(text()),
        "metadata": record({}, additionalProperties=text()),
        "max_output_tokens": integer(),
        "temperature": number("As it was drawn with."),
        "top_p": number("As it was drawn with."),
        "tools": array(record({}), "Those that the model was told of."),
        "tool_choice": {},
        "previous_response_id": maybe(text()),
        "clawrl": ours(),
    }
    return record(fields, tuple(fields))
