"""The whole document: every address, who may ask it, what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clawrl import __version__
from clawrl.serving.auth import LOCAL_OWNER
from clawrl.serving.openapi import chat, errors, looking, messages, operating, responses, streams
from clawrl.serving.openapi.schemas import Json, boolean, integer, ref, text
from clawrl.serving.openapi.shared import TRAIN_PATTERN, TURN_TYPE_PATTERN
from clawrl.serving.sessions import MAX_SESSION_CHARS

_ANSWER = (400, 401, 403, 404, 413, 429, 500, 502, 503)
_OPERATE = (401, 403, 500, 503)


def description(served_name: str) -> Json:
    """``served_name`` is the one model that can be asked for."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "clawrl",
            "version": __version__,
            "description": "Serves a chat model to agents and trains it on what people and tools say to its answers.",
        },
        "security": [{"bearer": []}, {"key": []}],
        "paths": _answers(served_name) | _learning() | _server(),
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"Not asked for where no key is configured: everybody is `{LOCAL_OWNER}` then.",
                },
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
            },
            "schemas": (
                chat.schemas(served_name)
                | responses.schemas(served_name)
                | messages.schemas(served_name)
                | operating.schemas(served_name)
                | errors.schemas()
            ),
            "responses": errors.responses(),
        },
    }


def _answers(served_name: str) -> Json:
    return {
        "/v1/chat/completions": _answer(
            "chat_completions", "ChatRequest", "ChatCompletion", chat.examples(served_name), streams.CHAT
        ),
        "/v1/responses": _answer(
            "responses", "ResponsesRequest", "Response", responses.examples(served_name), streams.RESPONSES
        ),
        "/v1/messages": _answer(
            "messages",
            "MessagesRequest",
            "MessagesAnswer",
            messages.examples(served_name),
            streams.MESSAGES,
            errors.ANTHROPIC,
        ),
        "/v1/messages/count_tokens": {
            "post": _operation(
                "count_tokens",
                "How many tokens the prompt of a message would have.",
                "Count",
                errors.refusals((400, 401, 403, 404, 413, 429, 500, 503), errors.ANTHROPIC),
                body=_body("CountRequest", messages.count_examples(served_name)),
            )
        },
    }


def _session_by_name() -> Json:
    return _parameter("query", "session", "The session's name, whatever it is.", text(minLength=1)) | {"required": True}


def _learning() -> Json:
    session = _parameter("path", "session", "The session's name; it may have slashes in it.", text())
    return {
        "/v1/feedback": {
            "post": _operation(
                "feedback",
                "What a person says of an answer.",
                "FeedbackTaken",
                errors.refusals((400, 401, 403, 404, 413, 500, 503)),
                body=_body("FeedbackRequest", operating.feedback_examples()),
                parameters=[_session_header()],
            )
        },
        "/clawrl/sessions/{session}/done": {
            "post": _operation(
                "session_done",
                "No more will be said in this session.",
                "SessionEnded",
                errors.refusals(_OPERATE),
                parameters=[session],
            )
        },
        "/clawrl/session/done": {
            "post": _operation(
                "session_done_by_query",
                "The same for any name; clients shorten a path with `..` in it.",
                "SessionEnded",
                errors.refusals((400, *_OPERATE)),
                parameters=[_session_by_name()],
            )
        },
    }


def _server() -> Json:
    named = _parameter("path", "model_id", "The model's id; it may have slashes in it.", text())
    away = {"503": {"description": "Not all parts answer.", "content": {"application/json": {"schema": ref("Ready")}}}}
    return {
        "/v1/models": {
            "get": _operation("models", "The one model.", "Models", errors.refusals((401, 403, 500))),
        },
        "/v1/models/{model_id}": {
            "get": _operation(
                "model", "The one model.", "Model", errors.refusals((401, 403, 404, 500)), parameters=[named]
            ),
        },
        "/healthz": {"get": _operation("healthz", "Whether this process is alive.", "Alive", {}, open_to_all=True)},
        "/readyz": {"get": _operation("readyz", "Whether all parts answer.", "Ready", away, open_to_all=True)},
        "/clawrl/status": {
            "get": _operation("status", "What the system is doing.", "Status", errors.refusals(_OPERATE)),
        },
        **_looking(),
        "/clawrl/pause": {
            "post": _operation(
                "pause",
                "Hold judged turns back from training.",
                "Paused",
                errors.refusals((400, 401, 403, 413, 500, 503)),
                body=_body("PauseRequest", {"why": {"reason": "a new judge"}}, required=False),
            ),
        },
        "/clawrl/resume": {
            "post": _operation("resume", "Let judged turns train again.", "Resumed", errors.refusals(_OPERATE)),
        },
        "/clawrl/rollback": {
            "post": _operation(
                "roll_back",
                "Serve the weights of a kept version again, and go on training from them.",
                "RolledBack",
                errors.refusals((400, 401, 403, 404, 413, 500, 503)),
                body=_body("RollbackRequest", {"start": {"version": 0}}),
            ),
        },
        "/clawrl/publish": {
            "post": _operation(
                "publish",
                "Publish what the trainer holds, if that is not what serves.",
                "PublishAsked",
                errors.refusals((401, 403, 409, 500, 503)),
            ),
        },
        "/clawrl/forget": {
            "post": _operation(
                "forget",
                "Delete what was said, for good.",
                "Forgotten",
                errors.refusals((400, 401, 403, 413, 500, 503)),
                body=_body("ForgetRequest", operating.forget_examples()),
            ),
        },
    }


def _looking() -> Json:
    """Lists are newest first; the ``seq`` (of a version its number) of the last row is the next page's ``before``."""
    refused = errors.refusals((400, *_OPERATE))
    unknown = errors.refusals((400, 401, 403, 404, 500, 503))
    turn_id = _parameter("path", "turn_id", "The turn, by the `X-Clawrl-Turn-Id` of its answer.", text())
    session = _parameter("path", "session", "The session's name; it may have slashes in it.", text())
    pages = [_limit(1_000), _before()]
    sealed = _parameter("query", "sealed", "Texts and tokens under their users' keys.", boolean())
    narrowed = [_parameter("query", name, what, kind) for name, (what, kind) in looking.FILTERS.items()]
    return {
        "/clawrl/turns": {
            "get": _operation(
                "turns", "Turns.", "Turn", refused, parameters=[_limit(10_000), _before(), *narrowed], many=True
            )
        },
        "/clawrl/export": {
            "get": _operation(
                "export",
                "Turns with texts and tokens. A page may be short; `before` is null when that was all.",
                "Exported",
                refused,
                parameters=[_limit(100), _before(), sealed, *narrowed],
            )
        },
        "/clawrl/turns/{turn_id}": {
            "get": _operation("turn", "A turn's whole life.", "TurnLife", unknown, parameters=[turn_id])
        },
        "/clawrl/sessions": {
            "get": _operation("sessions", "Sessions.", "Session", refused, parameters=pages, many=True)
        },
        "/clawrl/sessions/{session}": {
            "get": _operation(
                "session", "A session and its turns.", "SessionTurns", unknown, parameters=[session, *pages]
            )
        },
        "/clawrl/session": {
            "get": _operation(
                "session_by_query",
                "The same for any name; clients shorten a path with `..` in it.",
                "SessionTurns",
                unknown,
                parameters=[_session_by_name(), *pages],
            )
        },
        "/clawrl/versions": {
            "get": _operation("versions", "Versions.", "Version", refused, parameters=pages, many=True)
        },
        "/clawrl/steps": {"get": _operation("steps", "Optimizer steps.", "Step", refused, parameters=pages, many=True)},
    }


def _limit(most: int) -> Json:
    return _parameter("query", "limit", "How many at most.", integer(minimum=1, maximum=most, default=100))


def _before() -> Json:
    return _parameter("query", "before", "Only what is older than this.", integer(minimum=0, maximum=2**53))


def _answer(
    name: str, request: str, response: str, examples: Mapping[str, Json], stream: str, shape: str = errors.OPENAI
) -> Json:
    answered = _operation(
        name,
        "An answer of the model.",
        response,
        errors.refusals(_ANSWER, shape),
        body=_body(request, examples),
        parameters=_session_headers(),
    )
    ok = answered["responses"]["200"]
    ok["content"]["text/event-stream"] = {"schema": text(stream)}
    ok["headers"] = {
        header: {"description": "The turn's id.", "schema": text()} for header in ("X-Request-Id", "X-Clawrl-Turn-Id")
    }
    return {"post": answered}


def _operation(
    name: str,
    summary: str,
    response: str,
    others: Mapping[str, Json],
    *,
    body: Json | None = None,
    parameters: Sequence[Json] = (),
    open_to_all: bool = False,
    many: bool = False,
) -> Json:
    schema = {"type": "array", "items": ref(response)} if many else ref(response)
    found: Json = {"operationId": name, "summary": summary}
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = body
    if open_to_all:
        found["security"] = []
    ok = {"description": "Done.", "content": {"application/json": {"schema": schema}}}
    return found | {"responses": {"200": ok, **others}}


def _body(schema: str, examples: Mapping[str, Json], *, required: bool = True) -> Json:
    shown = {name: {"value": value} for name, value in examples.items()}
    return {"required": required, "content": {"application/json": {"schema": ref(schema), "examples": shown}}}


def _parameter(place: str, name: str, description: str, schema: Json) -> Json:
    return {"in": place, "name": name, "description": description, "required": place == "path", "schema": schema}


def _session_header() -> Json:
    what = "The conversation that this belongs to; without it other headers, the body and the messages are looked at."
    return _parameter("header", "X-Session-Id", what, text(maxLength=MAX_SESSION_CHARS))


def _session_headers() -> list[Json]:
    kind = text(pattern=TURN_TYPE_PATTERN, examples=["main", "side"])
    return [
        _session_header(),
        _parameter("header", "X-Turn-Type", "`main` may train, `side` never does.", kind),
        _parameter("header", "X-Group-Id", "The answers that are to be compared.", text(maxLength=MAX_SESSION_CHARS)),
        _parameter("header", "X-Session-Done", "`1`, `true`, `yes` or `on`: the session ends with this turn.", text()),
        _parameter(
            "header",
            "X-Clawrl-Train",
            "`no`: nothing is learned from this turn, nor from those after it in its session until one says `yes`.",
            text(pattern=TRAIN_PATTERN, examples=["no", "yes"]),
        ),
    ]
