"""What requests say in the same words, or mean alike, in more than one dialect."""

from __future__ import annotations

import json

from clawrl.serving.body import deeper_than
from clawrl.serving.config import ServingConfig
from clawrl.serving.errors import ApiError, invalid_request, unknown_model
from clawrl.serving.fields import JsonObject, as_object, as_text, flag, missing, text
from clawrl.serving.parsing.jsonscan import MAX_DEPTH as MAX_ARGUMENTS_DEPTH  # what a model may write may come back


def served_model(body: JsonObject, config: ServingConfig) -> str:
    """The model that is asked for. Raises `ApiError`: 400 where none is named, 404 where it is another than ours."""
    model = text(body, "model")
    if model is None:
        raise missing("model")
    if model != config.served_name:
        raise unknown_model(model, config.served_name)
    return model


def template_arguments(body: JsonObject) -> str:
    """``chat_template_kwargs``, and ``enable_thinking`` beside it as some clients send it, as one JSON object."""
    given = body.get("chat_template_kwargs")
    arguments = {} if given is None else dict(as_object(given, "chat_template_kwargs"))
    thinking = flag(body, "enable_thinking")
    if thinking is not None:
        arguments.setdefault("enable_thinking", thinking)
    as_text(json.dumps(arguments, ensure_ascii=False), "chat_template_kwargs")
    return json.dumps(arguments, sort_keys=True)


def arguments_text(value: object, path: str) -> str:
    """The arguments of a replayed call as they were written; ``{}`` where there are none.

    They need not be JSON. But where they are, templates and hashes read them, so that they are refused like the body
    itself if they are too deep or spell half of a surrogate pair.
    """
    if value is None:
        return "{}"
    written = as_text(value, path)
    if written.count("[") + written.count("{") <= MAX_ARGUMENTS_DEPTH and "\\u" not in written:
        return written
    try:
        decoded = json.loads(written)
    except ValueError:
        return written
    except RecursionError:
        raise _too_deep(path) from None
    if deeper_than(decoded, MAX_ARGUMENTS_DEPTH):
        raise _too_deep(path)
    as_text(json.dumps(decoded, ensure_ascii=False), path)
    return written


def _too_deep(path: str) -> ApiError:
    return invalid_request(f"Invalid value for '{path}': it nests deeper than {MAX_ARGUMENTS_DEPTH} levels.", path)
