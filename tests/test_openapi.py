"""The description of the HTTP API: that it is one, that it leaves no address out, and that the parsers keep it."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from clawrl.actors.operator_routes import MOST_EXPORTED, MOST_ROWS, MOST_TURNS, wanted_version
from clawrl.inspection.asked import page_size, turn_filter
from clawrl.messages import FinishReason, Message, ToolCall, TurnId, VersionSpan
from clawrl.serving import errors
from clawrl.serving.body import decode_body
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects import chat, messages, responses
from clawrl.serving.dialects.base import AnswerFacts, Asked
from clawrl.serving.errors import ApiError
from clawrl.serving.feedback import parse_feedback, unknown_turn
from clawrl.serving.fields import JsonObject
from clawrl.serving.forgetting import parse_forget
from clawrl.serving.openapi import description
from clawrl.serving.pausing import parse_pause
from clawrl.serving.pieces import FinishPiece, TokenLogprob, Usage, WholeAnswer
from tests.schema_cases import Case, SchemaCases

CONFIG = ServingConfig(served_name="tide")
DOCUMENT = description("tide")
CASES = SchemaCases(DOCUMENT["components"]["schemas"])
PACKAGE = Path(__file__).resolve().parent.parent / "clawrl"
Read = Callable[[JsonObject], Any]
READERS: dict[str, Read] = {
    "/v1/chat/completions": lambda body: chat.read(body, {}, CONFIG),
    "/v1/responses": lambda body: responses.read(body, {}, CONFIG),
    "/v1/messages": lambda body: messages.read(body, {}, CONFIG),
    "/v1/messages/count_tokens": lambda body: messages.read_count(body, CONFIG),
    "/v1/feedback": lambda body: parse_feedback(body, {}),
    "/clawrl/pause": parse_pause,
    "/clawrl/rollback": wanted_version,
    "/clawrl/forget": parse_forget,
}
ANSWERS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
# What has no type is a function tool, or plain text, so that nothing is wrong with it.
GOOD_WITHOUT_IT = {
    "(ResponsesRequest)/tools/items/1(ResponsesNamespace)/required/type",
    "(ResponsesRequest)/text/format/1/required/type",
    "(ChatRequest)/response_format/1/required/type",
}
CALL = ToolCall(id="call_1", name="look", arguments='{"at": "the moon"}')
REFUSALS = (
    errors.invalid_request("Send less.", "messages"),
    errors.unsupported("tools", "No.", "Leave it out."),
    errors.context_overflow(10, 20),
    errors.invalid_key(given=True),
    errors.not_permitted(),
    errors.unknown_model("sea", "tide"),
    errors.unknown_response("0123"),
    errors.body_too_large(10),
    errors.overloaded(),
    errors.too_many_requests(5, 2.0),
    errors.internal(),
    errors.empty_answer(),
    errors.malformed_call(),
    errors.unavailable(),
    errors.unknown_turn("0123"),
    errors.unknown_session("harbour"),
    errors.version_not_kept(3, [0]),
    errors.conflict("Not now.", "publish_refused"),
    unknown_turn(parse_feedback({"turn_id": "t", "score": 1}, {})),
)


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _body(path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return found


def _examples(path: str) -> dict[str, Any]:
    return {name: example["value"] for name, example in _body(path)["examples"].items()}


def _accepts(read: Read, body: JsonObject) -> bool:
    """Through the bytes of a request, as a client sends it."""
    try:
        read(decode_body(json.dumps(body).encode(), 1_000_000))
    except ApiError as error:
        assert 400 <= error.status < 500
        return False
    return True


def _source(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


def _routes() -> Iterator[tuple[str, str, ast.AST]]:
    """Path, method and function of every route of the server, read off its source."""
    sources = (_source("actors/ingress.py"), _source("actors/operator_routes.py"))
    for node in (node for source in sources for node in ast.walk(source)):
        for decorator in getattr(node, "decorator_list", ()):
            match decorator:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="api" | "router"), attr=method),
                    args=[ast.Constant(value=str(path)), *_],
                ):
                    yield path.replace(":path}", "}"), method, node


def _returned_keys(file: str, function: str) -> set[str]:
    node = next(n for n in ast.walk(_source(file)) if isinstance(n, ast.FunctionDef) and n.name == function)
    returned = next(n.value for n in ast.walk(node) if isinstance(n, ast.Return) and isinstance(n.value, ast.Dict))
    return {key.value for key in returned.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def test_it_is_an_openapi_document() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    validate(DOCUMENT)


def test_it_can_be_sent() -> None:
    assert json.loads(json.dumps(DOCUMENT, allow_nan=False)) == DOCUMENT


def test_it_describes_the_very_routes_of_the_server() -> None:
    served = {(path, method) for path, method, _ in _routes() if path != "/openapi.json"}
    assert len(served) > 10
    assert {(path, method) for path, method, _ in _operations()} == served


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for _, _, operation in _operations()]
    assert len(set(names)) == len(names)


def test_every_schema_is_used() -> None:
    written = json.dumps(DOCUMENT)
    assert [name for name in DOCUMENT["components"]["schemas"] if f'schemas/{name}"' not in written] == []


def test_whoever_need_not_have_a_key_is_said() -> None:
    """A route without a key does not look at the request's headers."""
    asks = {
        path: any(isinstance(node, ast.Name) and node.id == "request" for node in ast.walk(function))
        for path, _, function in _routes()
        if path != "/openapi.json"
    }
    assert {path: operation.get("security") != [] for path, _, operation in _operations()} == asks


LISTS = [path for path, method, operation in _operations() if method == "get" and path.startswith("/clawrl/") and
         any(p["name"] == "limit" for p in operation.get("parameters", ()))]  # fmt: skip


@pytest.mark.parametrize("path", LISTS)
def test_the_limit_of_a_list_is_the_one_that_is_checked(path: str) -> None:
    (limit,) = [p["schema"] for p in DOCUMENT["paths"][path]["get"]["parameters"] if p["name"] == "limit"]
    most = {"/clawrl/turns": MOST_TURNS, "/clawrl/export": MOST_EXPORTED}.get(path, MOST_ROWS)
    assert (limit["minimum"], limit["maximum"]) == (1, most)
    assert page_size({}, usual=100, most=most) == limit["default"]
    assert [page_size({"limit": str(n)}, usual=100, most=most) for n in (1, most)] == [1, most]
    for wrong in (0, most + 1):
        with pytest.raises(ApiError, match="limit"):
            page_size({"limit": str(wrong)}, usual=100, most=most)


def test_every_filter_of_turns_that_is_said_is_read_and_its_rules_are_kept() -> None:
    for parameter in DOCUMENT["paths"]["/clawrl/turns"]["get"]["parameters"]:
        name = parameter["name"]
        if name in ("limit", "before"):
            continue
        for case in CASES.cases(parameter["schema"]):
            assert getattr(turn_filter({name: str(case.good)}), name) is not None
            # Everything is a text in a query.
            if type(case.bad) in (str, int) and parameter["schema"] != {"type": "string"}:
                with pytest.raises(ApiError, match=name):
                    turn_filter({name: str(case.bad)})


@pytest.mark.parametrize(
    ("schema", "function"),
    [
        ("Turn", "turn_document"),
        ("Session", "session_document"),
        ("Version", "version_document"),
        ("Step", "step_document"),
    ],
)
def test_a_row_is_shown_with_the_fields_that_are_said(schema: str, function: str) -> None:
    shown = _returned_keys("inspection/documents.py", function)
    assert set(DOCUMENT["components"]["schemas"][schema]["properties"]) == shown


def test_the_status_has_the_fields_that_are_said() -> None:
    required = set(DOCUMENT["components"]["schemas"]["Status"]["required"])
    coordinator = {"replicas", "trainer", "guards"}
    assert required - coordinator <= _returned_keys("actors/status.py", "status_document")
    source = ast.unparse(_source("actors/coordinator.py"))
    assert all(f"'{name}': " in source for name in coordinator)


def test_every_body_is_read_by_somebody() -> None:
    assert {path for path, _, operation in _operations() if "requestBody" in operation} == set(READERS)


@pytest.mark.parametrize("path", READERS)
def test_every_example_is_valid_and_accepted(path: str) -> None:
    for body in _examples(path).values():
        assert CASES.valid(_body(path)["schema"], body), body
        READERS[path](decode_body(json.dumps(body).encode(), 1_000_000))


@cache
def _cases(path: str) -> tuple[Case, ...]:
    """Those whose bad body breaks the whole schema and whose good one keeps it and is accepted."""
    schema = _body(path)["schema"]
    made = [case for body in _examples(path).values() for case in CASES.cases(schema, body)]
    wrong = [case for case in made if CASES.valid(schema, case.good) and not CASES.valid(schema, case.bad)]
    good = {json.dumps(case.good): case.good for case in wrong}
    accepted = {written for written, body in good.items() if _accepts(READERS[path], body)}
    return tuple(case for case in wrong if json.dumps(case.good) in accepted)


@pytest.mark.parametrize("path", READERS)
def test_every_rule_of_a_body_can_be_broken_by_itself(path: str) -> None:
    rules = set(CASES.rules(_body(path)["schema"])) - GOOD_WITHOUT_IT
    assert rules - {case.rule for case in _cases(path)} == set()


@pytest.mark.parametrize("path", READERS)
def test_a_body_that_breaks_a_rule_is_refused(path: str) -> None:
    assert {case.rule: case.bad for case in _cases(path) if _accepts(READERS[path], case.bad)} == {}


@pytest.mark.parametrize("path", READERS)
def test_unknown_fields_are_refused_only_where_it_is_said(path: str) -> None:
    for body in _examples(path).values():
        more = {**body, "no_such_field": {"a": [1]}}
        assert _accepts(READERS[path], more) == CASES.valid(_body(path)["schema"], more)


@pytest.mark.parametrize("path", ANSWERS)
def test_a_header_that_breaks_a_rule_is_refused(path: str) -> None:
    read = {"chat": chat, "responses": responses, "messages": messages}[path.split("/")[2]].read
    body = next(iter(_examples(path).values()))
    seen = set()
    for header in DOCUMENT["paths"][path]["post"]["parameters"]:
        for case in CASES.cases(header["schema"]):
            read(body, {header["name"]: case.good}, CONFIG)
            if isinstance(case.bad, str) and case.bad:
                seen.add(header["name"])
                with pytest.raises(ApiError):
                    read(body, {header["name"]: case.bad}, CONFIG)
    assert seen == {"X-Session-Id", "X-Turn-Type", "X-Group-Id", "X-Clawrl-Train"}


def _answer(message: Message, reason: FinishReason) -> WholeAnswer:
    finish = FinishPiece(
        finish_reason=reason,
        spans=(VersionSpan(start=0, end=2, version=3),),
        version=3,
        usage=Usage(prompt_tokens=5, completion_tokens=2),
        message=message,
    )
    return WholeAnswer(finish=finish, logprobs=(TokenLogprob(token="at", logprob=-0.5),))


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(role="assistant", content="at noon"), FinishReason.STOP),
        (Message(role="assistant", content="at", reasoning="I look."), FinishReason.LENGTH),
        (Message(role="assistant", reasoning="I look.", tool_calls=(CALL,)), FinishReason.STOP),
    ],
)
def test_an_answer_is_what_is_said_of_it(path: str, message: Message, reason: FinishReason) -> None:
    facts = AnswerFacts(turn_ids=(TurnId("t"),), model="tide", created=1, session="harbour")
    schema = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    for body in _examples(path).values():
        asked: Asked = READERS[path](body | ({"logprobs": True} if "chat" in path else {}))
        written = json.loads(json.dumps(asked.writer(facts).whole([_answer(message, reason)])))
        assert CASES.valid(schema, written), written
        assert not CASES.valid(schema, written | {"model": None})


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: f"{error.status} {error.code}")
@pytest.mark.parametrize(
    "dialect", [chat, responses, messages], ids=lambda dialect: dialect.__name__.rpartition(".")[2]
)
def test_a_refusal_is_what_is_said_of_it(dialect: Any, error: ApiError) -> None:
    shape = "MessagesError" if dialect is messages else "Error"
    said = DOCUMENT["components"]["responses"][f"{shape}{error.status}"]
    assert set(error.headers) <= set(said["headers"])
    schema = said["content"]["application/json"]["schema"]
    assert CASES.valid(schema, dialect.error(error))
    assert not CASES.valid(schema, {"error": error.message})


def test_every_refusal_has_the_shape_of_its_dialect() -> None:
    for path, _, operation in _operations():
        shape = "MessagesError" if path.startswith("/v1/messages") else "Error"
        named = [r["$ref"].rpartition("/")[2] for r in operation["responses"].values() if "$ref" in r]
        assert all(name.rstrip("0123456789") == shape for name in named), path
