"""Which requests are work beside the conversation, and why."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.messages import Message, ToolCall, TurnKind
from clawrl.serving.dialects.tools import function_tool
from clawrl.serving.errors import ApiError
from clawrl.serving.sessions import session_facts
from clawrl.serving.sessions.kinds import FoundKind, turn_kind

CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnothing runs\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
HEARTBEAT = "Read HEARTBEAT.md if it exists (workspace context). Follow it strictly."
FLUSH = "Pre-compaction memory flush. Write down what matters."
QUEUED = "[Queued user message from a previous active turn; preserved as context only.]\n"
SUMMARIZER = "You are a context summarization assistant."
COMPACT = "You are performing a CONTEXT CHECKPOINT COMPACTION."
SUM_UP = "Only text.\nYour task is to create a detailed summary of the conversation so far, please."
SUB_AGENT = "[Subagent Context] You help.\n\n[Subagent Task]: tea"
GO_ON = "\n\nContinue the current task from the existing transcript, and mind the gap."
REPORT = "[Internal task completion event]\nsource: subagent\n\nResult: scones"
OLD_REPORT = f"OpenClaw runtime context (internal):\nThis context is runtime-generated, so hush.\n\n{REPORT}"
NEW_REPORT = CONTEXT.replace("nothing runs", REPORT)
WAKE = "An async command you ran earlier has completed. The kettle is on."
AGAIN = "Continue where you left off. The previous model attempt failed or timed out."
NAMING = "x-anthropic-billing-header: v=1\nYou help.\nYou are naming a coding session, so be short."
CALL = Message(role="assistant", tool_calls=(ToolCall(id="c", name="read", arguments="{}"),))
RESULT = Message(role="tool", content="tea", tool_call_id="c")


def _user(*texts: str) -> list[Message]:
    return [Message(role="user", content=text) for text in texts]


def _system(text: str) -> list[Message]:
    return [Message(role="system", content=text)]


def _answer(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


def _tools(*names: str) -> list[str]:
    return [function_tool(name, None, None) for name in names]


def _reason(messages: list[Message], tools: list[str] | None = None) -> str | None:
    """Why this is a side turn, if it is."""
    found = turn_kind(None, TurnKind.MAIN, messages, tools or [])
    assert (found.kind is TurnKind.MAIN) == (found.reason == "the default")
    return None if found.kind is TurnKind.MAIN else found.reason


@pytest.mark.parametrize("default", list(TurnKind))
def test_what_nothing_is_known_about_is_of_the_default_kind(default: TurnKind) -> None:
    assert turn_kind(None, default) == FoundKind(kind=default, reason="the default")
    assert turn_kind(None, default, _system("Be kind.") + _user("hi"), _tools("exec")).kind is default


def test_what_the_client_says_beats_what_the_messages_look_like() -> None:
    def kind(headers: dict[str, str], body: dict[str, Any], default: TurnKind = TurnKind.SIDE) -> TurnKind:
        return session_facts(headers, body, default, _user(HEARTBEAT)).kind

    assert kind({"X-Turn-Type": " Main "}, {}) is TurnKind.MAIN
    assert kind({}, {"turn_type": "main"}) is TurnKind.MAIN
    assert kind({"X-Turn-Type": "side"}, {"turn_type": "main"}, TurnKind.MAIN) is TurnKind.SIDE
    assert kind({"X-Turn-Type": " "}, {}, TurnKind.MAIN) is TurnKind.SIDE
    assert turn_kind("main", TurnKind.SIDE, _user(FLUSH)).reason == "the client says so"


@pytest.mark.parametrize("value", ["both", "", 1])
def test_a_kind_that_there_is_not_is_refused_by_its_field(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        turn_kind(value, TurnKind.MAIN)
    assert (caught.value.status, caught.value.param) == (400, "turn_type")


@pytest.mark.parametrize(
    ("messages", "tools", "reason"),
    [
        (_system(SUMMARIZER) + _user("[User]: tea?"), [], "a context summary"),
        (_user("hi") + _answer("ho") + _user(SUM_UP), ["exec"], "a context summary"),
        (_user("hi") + _answer("ho") + _user(COMPACT), ["exec"], "a context summary"),
        (_user("hi") + _answer("ho") + _user(FLUSH), ["read", "write"], "a memory flush"),
        (
            _user("hi") + _answer("ho") + _user("Your task is to create a detailed summary of this conversation."),
            ["exec"],
            "a context summary",
        ),
        (
            _user("Your task is to create a detailed summary of the RECENT portion of the conversation, no more."),
            [],
            "a context summary",
        ),
        (_user(FLUSH), ["write"], "a memory flush"),
        (_user("hi") + _answer("ho") + _user(FLUSH), ["read", "write", "exec"], "a memory flush"),
        (_user("hi") + _answer("ho") + _user(WAKE), ["exec"], "an event"),
        (_user("hi") + _answer("ho") + _user("[OpenClaw exec completion]"), ["exec"], "an event"),
        (_user("hi") + _answer("ho") + _user(WAKE, AGAIN), ["exec"], "an event"),
        (_user("hi") + _answer("ho") + _user(OLD_REPORT), ["exec"], "a sub-agent's report"),
        (_user("hi") + _answer("ho") + _user(NEW_REPORT), ["exec"], "a sub-agent's report"),
        (_user("hi") + _answer("ho") + _user(OLD_REPORT, CONTEXT), ["exec"], "a sub-agent's report"),
        (_user("hi") + _answer("ho") + _user("[SUGGESTION MODE: Guess.]"), ["exec"], "a fork of the conversation"),
        (_system(NAMING) + _user("tea?"), [], "a title"),
        (
            _system("x-anthropic-billing-header: v=1") + _system("You are naming a coding session.") + _user("tea?"),
            [],
            "a title",
        ),
        (_user(HEARTBEAT), ["exec"], "a heartbeat"),
        (_user("[OpenClaw heartbeat poll]"), ["exec"], "a heartbeat"),
        (_user("Follow the heartbeat monitor scratch context when provided."), [], "a heartbeat"),
        (_user("System: [2026-01-01 10:00:00 UTC] Exec finished\n\n" + HEARTBEAT), [], "a heartbeat"),
        (_user("[Sun 2026-11-29 11:29 UTC] " + HEARTBEAT, CONTEXT), [], "a heartbeat"),
        (_user(QUEUED + HEARTBEAT + GO_ON), [], "a heartbeat"),
        (_user("[cron:7 tea] Put the kettle on."), ["exec"], "a scheduled job"),
        (_user("A scheduled reminder has been triggered. The reminder content is:\n\ntea"), [], "a scheduled job"),
        (_user("[Sun 2026-11-29 11:29 UTC] " + SUB_AGENT), ["exec"], "a sub-agent's task"),
        (_user("[Subagent Task]\ntea") + _answer("made") + _user("more"), ["exec"], "a sub-agent's task"),
        (
            _system("x-anthropic-billing-header: cc_is_subagent=true;") + _user("tea?"),
            ["exec"],
            "a sub-agent's task",
        ),
        (_system("You are a title generator. Be short.") + _user("tea?"), [], "a title"),
        (_system("Generate a concise, sentence-case title (3-7 words).") + _user("tea?"), [], "a title"),
        (_user("### Task:\nGenerate a concise, 3-5 word title for this chat."), [], "a title"),
    ],
)
def test_work_beside_the_conversation_is_known_by_its_words(
    messages: list[Message], tools: list[str], reason: str
) -> None:
    assert _reason(messages, _tools(*tools)) == reason


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        (_system(SUMMARIZER) + _user("hi"), ["exec"]),
        (_user("What does 'You are performing a CONTEXT CHECKPOINT COMPACTION' mean?"), []),
        (_user("hi") + _answer("ho") + _user("more", AGAIN), ["exec"]),
        (_user("hi") + _answer("ho") + _user("more", NEW_REPORT), ["exec"]),
        (_user(FLUSH) + _answer("NO_REPLY") + _user("thanks, now make tea"), ["read", "write", "exec"]),
        (_user(OLD_REPORT) + _answer("Scones.") + _user("thanks"), ["exec"]),
        (_system(NAMING), ["exec"]),
        (_user("Why was there a Pre-compaction memory flush?"), []),
        (_user("[OpenClaw heartbeat poll] is what I see here. Why?"), []),
        (_user("Read HEARTBEAT.md if it exists and tell me what is in it."), ["read"]),
        (_user("[OpenClaw heartbeat poll]") + _answer("All quiet.") + _user("thanks"), []),
        (_user("[OpenClaw heartbeat poll]") + _answer("All quiet.") + _user(CONTEXT), []),
        (_user("[cron:7 tea] Put the kettle on.") + _answer("It is on.") + _user("thanks"), []),
        (_user("What does [Subagent Context] mean?"), []),
        (_system("You are a title generator."), ["exec"]),
        (_user(QUEUED + HEARTBEAT + "\n\nMake tea."), []),
    ],
)
def test_a_conversation_that_only_speaks_of_such_work_is_a_conversation(
    messages: list[Message], tools: list[str]
) -> None:
    assert _reason(messages, _tools(*tools)) is None


@pytest.mark.parametrize("prompt", [HEARTBEAT, FLUSH, WAKE, OLD_REPORT, NEW_REPORT, "[cron:7 tea] Put the kettle on."])
def test_a_run_of_tool_calls_is_of_the_kind_of_the_message_that_began_it(prompt: str) -> None:
    begun = _user("hi") + _answer("ho") + _user(prompt)
    tools = _tools("read")
    expected = _reason(begun, tools)
    assert expected is not None
    assert _reason([*begun, CALL, RESULT], tools) == expected
    assert _reason([*begun, CALL, RESULT, *_user(CONTEXT)], tools) == expected
    again = "The previous attempt did not produce a user-visible answer. Go on."
    assert _reason([*begun, CALL, RESULT, *_answer(""), *_user(again)], tools) == expected
    assert _reason([*begun, CALL, RESULT, *_user("and hurry")], tools) is None, "the user has taken over"
