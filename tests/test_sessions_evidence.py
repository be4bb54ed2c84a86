"""What people and tools said, and what a client says in their name."""

from __future__ import annotations

import pytest

from clawrl.messages import Message, ToolCall
from clawrl.serving.sessions.canonical import conversation_hash
from clawrl.serving.sessions.evidence import (
    Internal,
    evidence_of,
    internal_of,
    own_words,
    without_internal,
    without_unheard,
)

CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnothing runs\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
ABORTED = "<turn_aborted>\nThe turn was stopped.\n</turn_aborted>"
REMINDER = "<system-reminder>\nThe branch is main.\n</system-reminder>"
ENVIRONMENT = "<environment_context>\n  <cwd>/srv</cwd>\n</environment_context>"
HEARTBEAT = "Read HEARTBEAT.md if it exists (workspace context). Follow it strictly."
QUEUED = "[Queued user message from a previous active turn; preserved as context only. Go on below.]\n"
EARLIER = "[Earlier unanswered user message. Address this request as well.]\n"
GO_ON = "Continue the current task from the existing transcript, and mind the gap."
REPORT = "[Internal task completion event]\nsource: subagent\n\nResult: scones"
RUNTIME_REPORT = f"OpenClaw runtime context (internal):\nThis context is runtime-generated, so hush.\n\n{REPORT}"
RETRIED = "[Retry after the previous model attempt failed or timed out]\n\n"
RUNTIME = "\n\nRuntime: agent=main | session=a:b | sessionId=abc | host=box"


def _say(*pairs: tuple[str, str]) -> tuple[Message, ...]:
    return tuple(Message(role=role, content=content) for role, content in pairs)


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        (CONTEXT, None),
        (f"{CONTEXT}\n\n{CONTEXT}\n", None),
        (ABORTED, None),
        (REMINDER, None),
        (ENVIRONMENT, None),
        (RUNTIME, None),
        ("[OpenClaw heartbeat poll]", Internal.HEARTBEAT),
        (HEARTBEAT + "\nCurrent time: noon", Internal.HEARTBEAT),
        ("Follow the heartbeat monitor scratch context when provided.", Internal.HEARTBEAT),
        ("[OpenClaw cron wake]", Internal.SCHEDULED),
        ("A scheduled reminder has been triggered. The reminder content is:\n\ntea", Internal.SCHEDULED),
        ("[OpenClaw exec completion]\nSee the settings.", Internal.EVENT),
        ("[OpenClaw session event]", Internal.EVENT),
        ('[System Message] [sessionId: 1-2] A subagent task "make\ntea" just completed.', Internal.ANNOUNCEMENT),
        ('[Wed 2026-02-18 16:43 GMT+1] A subagent task "tea" just failed: no water', Internal.ANNOUNCEMENT),
        ("[Inter-session message] sourceSession=a sourceTool=x isUser=false\ntea is ready", Internal.ANNOUNCEMENT),
        (REPORT, Internal.ANNOUNCEMENT),
        (RUNTIME_REPORT, Internal.ANNOUNCEMENT),
        (f"[Sun 2026-11-29 11:30 UTC] {RUNTIME_REPORT}", Internal.ANNOUNCEMENT),
        (CONTEXT.replace("nothing runs", REPORT), Internal.ANNOUNCEMENT),
        (f"[Queued announce messages while agent was busy]\n\n---\nQueued #1\n{REPORT}", Internal.ANNOUNCEMENT),
        ("An async command you ran earlier has completed. The kettle is on.", Internal.EVENT),
        ("System: [2026-01-01 10:00:00 UTC] Exec finished\n\nAn async command you ran earlier has completed. Tell.",
         Internal.EVENT),
        ("An async command you ran earlier completed without captured stdout/stderr. Code 1.", Internal.EVENT),
        ("An async command completion event was triggered, and that is all.", Internal.EVENT),
        ("An async command the user already approved has completed.\nGo on.", Internal.EVENT),
        ("An async command did not run.\nLeave it.", Internal.EVENT),
        ("Continue where you left off. The previous model attempt failed or timed out.", Internal.ANOTHER_TRY),
        ("[SUGGESTION MODE: Guess what comes next.]\n\nBe short.", Internal.FORK),
        ("The user stepped away and is coming back. Recap it all.", Internal.FORK),
        ("You are now acting as the memory extraction subagent. Look at the kettle.", Internal.FORK),
        ("# Dream: Memory Consolidation\n\nSleep well.", Internal.FORK),
        ("Generate a short kebab-case name (like make-tea).", Internal.FORK),
        ("<system-reminder>This is a side question from the user. Be quick.</system-reminder>\n\nHow hot?",
         Internal.FORK),
        (
            "A background task completed. Use this result to reply to the user in your own words.\n\nsource: subagent",
            Internal.ANNOUNCEMENT,
        ),
        ("Pre-compaction memory flush. Write down what matters.", Internal.MEMORY_FLUSH),
        ("The previous attempt did not produce a user-visible answer. Go on.", Internal.ANOTHER_TRY),
        ("The previous assistant turn thought but did not produce a user-visible answer.", Internal.ANOTHER_TRY),
        (GO_ON, Internal.CONTINUATION),
        (QUEUED + GO_ON, Internal.CONTINUATION),
        (QUEUED + HEARTBEAT + "\n\n" + GO_ON, Internal.HEARTBEAT),
    ],
)  # fmt: skip
def test_what_only_the_client_says_is_no_word_of_the_user(text: str, internal: Internal | None) -> None:
    assert own_words(text) == ""
    assert internal_of(text) is internal
    assert without_internal(_say(("user", text))) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[Sun 2026-11-29 11:30 UTC] make tea", "make tea"),
        (f"make tea{RUNTIME}", "make tea"),
        (f"[Sun 2026-11-29 11:30 UTC] make tea{RUNTIME}\n", "make tea"),
        (f"make tea\n\n{CONTEXT}", "make tea"),
        (f"{CONTEXT}\n\nmake tea", "make tea"),
        (f"make\n{CONTEXT}\ntea", "make\ntea"),
        (f"{ABORTED}{CONTEXT} make tea {REMINDER}{ENVIRONMENT}", "make tea"),
        (f"{RETRIED}make tea", "make tea"),
        (f"{ABORTED}\nmake tea", "make tea"),
        (f"{REMINDER}\nmake tea\n{REMINDER}", "make tea"),
        (f"{QUEUED}make tea\n\n{GO_ON}", "make tea"),
        (f"{EARLIER}make tea\n\n{GO_ON}", "make tea"),
        (f"{QUEUED}[Sun 2026-11-29 11:30 UTC] make tea\n\n{GO_ON}", "make tea"),
        (f"[Sun 2026-11-29 11:31 UTC] {QUEUED}make tea\n\n{GO_ON}\n\n{CONTEXT}", "make tea"),
        (f"{QUEUED}{QUEUED}make tea\n\n{GO_ON}\n\n{GO_ON}", "make tea"),
        (f"{QUEUED}make tea\n\n\n  and\ntoast", "make tea\n\n\n  and\ntoast"),
        (f"{QUEUED}{HEARTBEAT}\nCurrent time: noon\n\nmake tea", "make tea"),
    ],
)
def test_a_message_is_reduced_to_the_users_own_words(text: str, words: str) -> None:
    assert own_words(text) == words
    assert internal_of(text) is None
    assert without_internal(_say(("user", text))) == _say(("user", words))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  make tea\n",
        "\n\n",
        "What does [OpenClaw heartbeat poll] mean?",
        "[OpenClaw heartbeat poll] is what I see",
        "Read HEARTBEAT.md if it exists and tell me what is in it.",
        "Why is there <<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> in my log?",
        "It said: The previous attempt did not produce a user-visible answer.",
        "How do I write [Queued user message from a previous active turn] in a file?",
        "What does <turn_aborted>x</turn_aborted> mean?",
        f"make{CONTEXT}tea",
        f"make {ABORTED} {CONTEXT}\ntea",
        f"make\n{ABORTED} {CONTEXT} tea",
        "What is an OpenClaw runtime context (internal): a block?",
        "OpenClaw runtime context (internal): what is that?",
        "It said: An async command you ran earlier has completed.",
        "Continue where you left off.",
        "What is [SUGGESTION MODE: on]?",
        'I was told that a subagent task "tea" just failed.',
        "[urgent] make tea",
        "System: the boiler is on",
    ],
)
def test_what_a_user_says_about_such_messages_stays_as_it_is(text: str) -> None:
    message = Message(role="user", content=text, name="n")
    assert without_internal([message]) == (message,)


def test_only_user_messages_are_touched() -> None:
    for role in ("system", "assistant", "tool"):
        messages = _say((role, CONTEXT), (role, "[OpenClaw heartbeat poll]"))
        assert without_internal(messages) == messages


def test_the_evidence_is_all_that_was_said_after_the_last_answer() -> None:
    talk = _say(("user", "hi"), ("assistant", "ho"), ("user", "tea"), ("assistant", "here"))
    tail = _say(("tool", "error 7"), ("user", CONTEXT), ("user", "again"), ("user", ABORTED), ("user", "please"))
    assert evidence_of(talk + tail) == (tail[0], tail[2], tail[4])
    assert evidence_of(talk) == ()
    assert evidence_of(talk[:1]) == talk[:1]
    assert evidence_of(talk + tail[1:2]) == ()


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_that_a_client_gives_in_between_are_nobodys_reaction(role: str) -> None:
    talk = _say(("user", "hi"), ("assistant", "ho"))
    assert evidence_of(talk + _say((role, "Be brief."))) == ()
    assert evidence_of(talk + _say((role, "Be brief."), ("user", "no"))) == _say(("user", "no"))


def test_a_run_of_which_no_user_heard_is_left_out_once_it_is_over() -> None:
    talk = _say(("user", "hi"), ("assistant", "ho"))
    call = Message(role="assistant", tool_calls=(ToolCall(id="c", name="read", arguments="{}"),))
    flush, thanks = _say(("user", "Pre-compaction memory flush. Write."), ("user", "thanks"))
    work, done, silent = (call, *_say(("tool", "ok"))), _say(("assistant", "Done.")), _say(("assistant", "NO_REPLY"))
    assert without_unheard((*talk, flush, *work, *done, thanks)) == (*talk, thanks)
    assert without_unheard((*talk, flush, *silent, thanks)) == (*talk, thanks)
    for unfinished in ((flush,), (flush, *work), (flush, *work, thanks)):
        assert without_unheard(talk + unfinished) == talk + unfinished
    for text in (HEARTBEAT, RUNTIME_REPORT, "[OpenClaw exec completion]"):
        wake = _say(("user", text))
        assert without_unheard((*talk, *wake, *work, *silent, thanks)) == (*talk, thanks)
        assert without_unheard((*talk, *wake, *done, thanks)) == (*talk, *wake, *done, thanks)
    asked = (*talk, thanks, *_say(("user", CONTEXT.replace("nothing runs", REPORT))), *silent)
    assert without_unheard(asked) == asked, "the silence answers the user"


@pytest.mark.parametrize(
    ("once", "then"),
    [
        (HEARTBEAT, "[OpenClaw heartbeat poll]"),
        ("An async command you ran earlier has completed. Tell.", "[OpenClaw exec completion]"),
        (f"{RETRIED}make tea", "make tea"),
        (f"{QUEUED}make tea\n\n{GO_ON}", "make tea"),
        (CONTEXT, ABORTED),
        (f"{REMINDER}\nmake tea", "make tea"),
        (f"make tea{RUNTIME}", f"make tea{RUNTIME.replace('box', 'other')}"),
    ],
)
def test_a_message_that_a_client_rewrites_or_drops_leaves_the_hash_as_it_was(once: str, then: str) -> None:
    before, after = _say(("user", "hi"), ("assistant", "ho")), _say(("assistant", "yes"), ("user", "thanks"))
    first = conversation_hash(before + _say(("user", once)) + after)
    assert conversation_hash(before + _say(("user", then)) + after) == first
    assert conversation_hash(before + _say(("user", "else")) + after) != first


@pytest.mark.parametrize(
    "text",
    [
        CONTEXT[:37] * 20_000,
        CONTEXT * 20_000,
        f"{ABORTED} x " * 20_000,
        "\n \n" * 200_000,
        QUEUED[:48] * 20_000,
        'A subagent task "' * 30_000,
        "[" * 500_000,
    ],
)
@pytest.mark.timeout(20)
def test_no_text_takes_long(text: str) -> None:
    own_words(text)
    own_words(f"{QUEUED}{text}")
