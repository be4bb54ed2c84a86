"""What the user, a tool or the environment said, without what the client says to the model on its own account.

Clients put messages of their own among the user's: a snapshot of what runs in the background, polls, reports of
sub-agents, notes about an aborted turn, another try after an answer that nobody saw. They are sent in the user's name,
and most of them are gone or rewritten in the next request. So they are no evidence, and no part of the hashes that
link one request to the next. They are known by the words that the clients send; a text that merely quotes them stays.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clawrl.messages import Message
from clawrl.serving.sessions.stamps import opening, unstamped, without_blocks

_BLOCKS = {
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>": "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>",
    "<turn_aborted>": "</turn_aborted>",
    "<system-reminder>": "</system-reminder>",
    "<environment_context>": "</environment_context>",
}
# A question that the user asks beside the conversation: it is the client's block before it that says so.
_ASIDE = re.compile(r"\s*<system-reminder>\s*This is a side question from the user\b")
_REPORT = "[Internal task completion event]"
_RETRIED = re.compile(r"\s*\[Retry after the previous model attempt failed or timed out\]\s*")
_SILENT = {"NO_REPLY", "HEARTBEAT_OK"}
_QUEUED = re.compile(
    r"\[(?:Queued user message from a previous active turn|Earlier unanswered user message)\b[^\]\n]{0,300}\]\n?"
)
_GO_ON = "Continue the current task from the existing transcript"


class Internal(enum.StrEnum):
    """What a client says in the user's name."""

    HEARTBEAT = "heartbeat"
    SCHEDULED = "scheduled"
    EVENT = "event"
    ANNOUNCEMENT = "announcement"
    MEMORY_FLUSH = "memory_flush"
    ANOTHER_TRY = "another_try"
    CONTINUATION = "continuation"
    FORK = "fork"


MORE = (Internal.ANOTHER_TRY, Internal.CONTINUATION)
"""With these the client asks for more of what was asked before."""

_INTERNAL: Mapping[Internal, re.Pattern[str]] = {
    Internal.HEARTBEAT: re.compile(
        r"\[OpenClaw heartbeat poll\]\s*\Z|Follow the heartbeat monitor scratch context\b"
        r"|Read HEARTBEAT\.md if it exists(?: \(workspace context\))?\. Follow it strictly"
    ),
    Internal.SCHEDULED: re.compile(
        r"\[OpenClaw cron wake\]|A scheduled (?:reminder has been|cron event was) triggered\b"
    ),
    Internal.EVENT: re.compile(
        r"\[OpenClaw (?:session event|exec completion)\]"
        r"|An async command (?:you ran earlier (?:has completed\.|completed without captured\b)"
        r"|completion event was triggered\b|the user already approved has completed\.|did not run\.)"
        r"|An approved async command (?:was not dispatched|has an unknown execution outcome)\b"
        r"|An approved async exec completed; load the authenticated completion handoff\."
    ),
    Internal.ANNOUNCEMENT: re.compile(
        r"(?:\[System Message\]\s*)?(?:\[sessionId: [^\]]*\]\s*)?A subagent task \".*?\" (?:just |timed out|failed)"
        r"|\[Inter-session message\][^\n]*\bisUser=false|\[Internal task completion event\]"
        r"|OpenClaw runtime context \(internal\):\s*\n\s*This context is runtime-generated\b"
        r"|\[Queued announce messages while agent was busy\]"
        r"|A background task completed\. Use this result to reply to the user\b",
        re.DOTALL,
    ),
    Internal.MEMORY_FLUSH: re.compile(r"Pre-compaction memory flush\b"),
    Internal.ANOTHER_TRY: re.compile(
        r"The previous (?:attempt|assistant turn)\b[^.]{0,80}\bdid not produce a user-visible answer"
        r"|Continue where you left off\. The previous model attempt failed or timed out\."
    ),
    Internal.CONTINUATION: re.compile(_GO_ON),
    Internal.FORK: re.compile(
        r"\[SUGGESTION MODE: |The user stepped away and is coming back\. Recap\b"
        r"|You are now acting as the memory extraction subagent\b|# Dream: Memory Consolidation\b"
        r"|Generate a short kebab-case name \(|" + _ASIDE.pattern
    ),
}


def evidence_of(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What came after the last assistant message, without what is internal; all of that if there is none.

    Instructions that a client gives after an answer are nobody's reaction to it.
    """
    end = answered(messages)
    said = without_internal(messages[end:])
    return tuple(message for message in said if not end or message.role not in ("system", "developer"))


def answered(messages: Sequence[Message]) -> int:
    """How many messages there are up to and including the last of an assistant."""
    return max((i + 1 for i, message in enumerate(messages) if message.role == "assistant"), default=0)


def without_internal(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with every user message reduced to the user's own words, and left out where there are none."""
    reduced = (_reduced(message) for message in messages)
    return tuple(message for message in reduced if message is not None)


def without_unheard(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages without the finished runs of the client's own that no user heard of.

    Such are memory flushes, whatever the model says at their end, and all others at whose end it keeps silent. Some
    clients leave them in the history and others do not, and the user speaks to the answer before them.
    """
    kept: list[Message] = []
    begun: tuple[int, Internal] | None = None
    for message in messages:
        if message.role == "user":
            internal = internal_of(message.content)
            if begun is None and internal is not None and internal not in MORE and unwrapped(message.content):
                begun = len(kept), internal
            elif own_words(message.content).strip():
                begun = None
        kept.append(message)
        if begun is not None and message.role == "assistant" and message.content.strip() and not message.tool_calls:
            if begun[1] is Internal.MEMORY_FLUSH or message.content.strip() in _SILENT:
                del kept[begun[0] :]
            begun = None
    return tuple(kept)


def own_words(text: str) -> str:
    """What the user said in a user message; empty where the client alone speaks."""
    said = unwrapped(text)
    if _is_queued(text):
        # Whatever was left unanswered stands in front of the prompt, each a paragraph, and may be the client's.
        return "\n\n".join(part for part in said.split("\n\n") if _which(part) is None).strip()
    return said if _which(said) is None else ""


def internal_of(text: str) -> Internal | None:
    """What the client says in a user message, where the user says nothing in it."""
    if own_words(text):
        return None
    return _which(unwrapped(text)) or (Internal.ANNOUNCEMENT if _REPORT in text else None)


def unwrapped(text: str) -> str:
    """A user message as it was before the client put its own context around it, internal or not."""
    said = _without_context(text)
    if _is_queued(text):
        before, go_on, _ = _QUEUED.sub("", said).partition(_GO_ON)
        said = unstamped(before.strip() or go_on)
    return said


def _is_queued(text: str) -> bool:
    return _QUEUED.match(_without_context(text)) is not None


def _without_context(text: str) -> str:
    if _ASIDE.match(text):
        return text
    said = unstamped(without_blocks(text, _BLOCKS))
    retried = _RETRIED.match(said)
    return said if retried is None else unstamped(said[retried.end() :])


def _which(text: str) -> Internal | None:
    start = opening(text)
    return next((internal for internal, pattern in _INTERNAL.items() if pattern.match(start)), None)


def _reduced(message: Message) -> Message | None:
    if message.role != "user":
        return message
    words = own_words(message.content)
    if words == message.content:
        return message
    return replace(message, content=words) if words.strip() else None
