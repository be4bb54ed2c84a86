"""The fields of a request that all dialects have, or both of OpenAI's."""

from __future__ import annotations

from clawrl.serving.dialects.sampling import MAX_STOP_CHARS, MAX_STOPS
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
    text,
)
from clawrl.serving.sessions import MAX_SESSION_CHARS

TURN_TYPE_PATTERN = r"^\s*([Mm][Aa][Ii][Nn]|[Ss][Ii][Dd][Ee])\s*$"
TRAIN_PATTERN = r"^\s*(?:[Yy][Ee][Ss]|[Nn][Oo]|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[Oo][Nn]|[Oo][Ff][Ff]|0|1)?\s*$"
LOOK_PARAMETERS: Json = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


def model_field(served_name: str) -> Json:
    return {"description": "The model that is served here.", "type": "string", "const": served_name}


def stream_field() -> Json:
    return maybe(boolean("Send the answer as server-sent events while it is written."))


def session_fields() -> Json:
    """A header of the same meaning beats each of them."""
    name = {"maxLength": MAX_SESSION_CHARS}
    return {
        "session_id": maybe(text("The conversation that this request belongs to.", **name)),
        "group_id": maybe(text("The answers to one prompt that are to be compared with each other.", **name)),
        "turn_type": maybe(
            text(
                "`main` may train, `side` (summaries, heartbeats) never does. Without it the request is looked at.",
                pattern=TURN_TYPE_PATTERN,
                examples=["main", "side"],
            )
        ),
        "session_done": {
            "description": "True, or `1`, `true`, `yes` or `on`: the session ends with this turn.",
            "type": ["boolean", "string", "integer", "null"],
        },
    }


def template_fields() -> Json:
    return {
        "chat_template_kwargs": maybe(
            record({}, description="Given to the chat template. Must not name what the template is always given.")
        ),
    }


def thinking_field() -> Json:
    return {"enable_thinking": maybe(boolean("The same as in `chat_template_kwargs`, which wins."))}


def format_field(nested: str = "") -> Json:
    """The form of an answer; ``nested`` is the member that has the schema."""
    schema = record({"schema": record({})}, ("schema",))
    holder = schema if not nested else record({nested: schema}, (nested,))
    holder["properties"] |= {"type": one_of("json_schema")}
    holder["required"] = [*holder["required"], "type"]
    return either(
        record({"type": one_of("text", "json_object")}),
        holder,
        description="What the answer must be. JSON is refused together with tools that may be called.",
    )


def stops(description: str, most: int) -> Json:
    return array(_stop(), description, maxItems=most)


def sampling_fields() -> Json:
    """What both of OpenAI's dialects know, and what they know and is refused."""
    return {
        "temperature": maybe(number("0 always takes the likeliest token.", minimum=0, maximum=2)),
        "top_p": maybe(number("Below 1 the answer cannot train.", exclusiveMinimum=0, maximum=1)),
        "top_k": maybe(integer("0 and -1 are off. Above 0 the answer cannot train.", minimum=-1)),
        "stop": either(
            _stop(),
            stops("", MAX_STOPS),
            {"type": "null"},
            description="The answer ends before the first of these.",
        ),
        "seed": maybe(integer("Accepted, but answers cannot be repeated.")),
        "presence_penalty": one_of(0, None, description="Not served."),
        "frequency_penalty": one_of(0, None, description="Not served."),
        "min_p": one_of(0, None, description="Not served."),
        "repetition_penalty": one_of(1, None, description="Not served."),
        "logit_bias": nothing("Not served."),
        "top_logprobs": one_of(0, None, description="Not served."),
    }


def ours(*, whole: bool = True) -> Json:
    """What a response says beyond its standard, in one block."""
    span = record(
        {"start": integer(), "end": integer(), "version": integer()},
        ("start", "end", "version"),
        "Response tokens `start` to `end` were sampled by policy `version`.",
    )
    fields = {
        "turn_id": text("Name it in feedback."),
        "version": integer("The policy that wrote the end of the answer."),
        "session": text(),
        "spans": array(span),
        "turn_ids": array(text(), "One for each answer, if there are several."),
    }
    return record(fields, ("turn_id", "version", "spans") if whole else ("turn_id", "version"))


def _stop() -> Json:
    return text(minLength=1, maxLength=MAX_STOP_CHARS)
