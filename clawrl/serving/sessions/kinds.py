"""Whether a request is part of the user's conversation, or work that a client does beside it.

The header ``X-Turn-Type`` or the body field ``turn_type`` says so and wins. Clients that say nothing are known by the
words with which they ask for such work; each kind of it has a detector of its own below. All of it is ``side``: nobody
reacts to its answers, so that nothing can be learned from what comes next. What no detector knows is of the default
kind. A run of tool calls is of the kind of the message that began it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clawrl.messages import Message, TurnKind
from clawrl.serving.errors import invalid_request, quoted
from clawrl.serving.fields import as_text
from clawrl.serving.sessions.evidence import MORE, Internal, internal_of, unwrapped
from clawrl.serving.sessions.stamps import opening

_MARKS: Mapping[str, re.Pattern[str]] = {
    "summary_system": re.compile(r"You are a context summarization assistant\b"),
    "summary_prompt": re.compile(
        r"^(?:You are performing a CONTEXT CHECKPOINT COMPACTION\b"
        r"|Your task is to create a detailed summary of"
        r" (?:the conversation so far|this conversation|the RECENT portion of the conversation)\b)",
        re.MULTILINE,
    ),
    "job": re.compile(r"\[cron:[^\]\n]+\]"),
    "sub_agent": re.compile(r"\[Subagent (?:Context|Task)\]"),
    "sub_agent_system": re.compile(r"x-anthropic-billing-header:[^\n]*\bcc_is_subagent=true\b"),
    "title": re.compile(
        r"^(?:### Task:\s+)?(?:Generate a concise, (?:sentence-case|3-5 word) title|You are a title generator"
        r"|You are naming a coding session|Generate a short kebab-case name)\b",
        re.MULTILINE,
    ),
}
BY_DEFAULT = "the default"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKind:
    kind: TurnKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """``system`` is all that the system messages say, ``prompt`` the message that is being worked on, ``internal`` what
    the client says in it, ``asked`` all of the user's messages, ``has_tools`` whether the model may call any."""

    system: str
    prompt: str
    internal: Internal | None
    asked: tuple[str, ...]
    has_tools: bool


def turn_kind(
    named: object, default: TurnKind, messages: Sequence[Message] = (), tools: Sequence[str] = ()
) -> FoundKind:
    """``named`` is what the client said, if anything; ``tools`` are function tools as JSON text.

    Raises `ApiError` for a name that is no kind.
    """
    if named is not None:
        return FoundKind(kind=_checked(named), reason="the client says so")
    prompt = _prompt(messages)
    run = _Run(
        system=opening("\n".join(m.content for m in messages if m.role in ("system", "developer"))),
        prompt=opening(unwrapped(prompt)),
        internal=internal_of(prompt),
        asked=tuple(opening(unwrapped(m.content)) for m in messages if m.role == "user"),
        has_tools=bool(tools),
    )
    for detects, reason in _DETECTORS:
        if detects(run):
            return FoundKind(kind=TurnKind.SIDE, reason=reason)
    return FoundKind(kind=default, reason=BY_DEFAULT)


def _context_summary(run: _Run) -> bool:
    """The history is to be replaced by a summary: the answer goes to the client and not to the user."""
    of_the_system = not run.has_tools and _MARKS["summary_system"].match(run.system)
    return bool(of_the_system or _MARKS["summary_prompt"].search(run.prompt))


def _memory_flush(run: _Run) -> bool:
    """Notes are to be written before the history is cut, with all of the tools or only those for files."""
    return run.internal is Internal.MEMORY_FLUSH


def _heartbeat(run: _Run) -> bool:
    """A clock asks whether there is anything to do; mostly there is not, and no user sees the answer."""
    return run.internal is Internal.HEARTBEAT


def _scheduled_job(run: _Run) -> bool:
    """A clock repeats what was once asked for; nobody waits for the answer."""
    return run.internal is Internal.SCHEDULED or bool(_MARKS["job"].match(run.prompt))


def _event(run: _Run) -> bool:
    """A command that ran in the background has ended, or the client has other news of its own."""
    return run.internal is Internal.EVENT


def _announcement(run: _Run) -> bool:
    """A sub-agent reports to the model that sent it; the user has not asked for anything since."""
    return run.internal is Internal.ANNOUNCEMENT


def _fork(run: _Run) -> bool:
    """The client copies the conversation to ask something of its own; the answer does not become part of it."""
    return run.internal is Internal.FORK


def _sub_agent(run: _Run) -> bool:
    """The model itself gave the task and reads the answer."""
    says_so = _MARKS["sub_agent_system"].match(run.system)
    return bool(says_so) or any(_MARKS["sub_agent"].match(text) for text in run.asked)


def _title(run: _Run) -> bool:
    """A name for the conversation, shown in a list."""
    return not run.has_tools and bool(_MARKS["title"].search(run.system) or _MARKS["title"].match(run.prompt))


_DETECTORS: tuple[tuple[Callable[[_Run], bool], str], ...] = (
    (_context_summary, "a context summary"),
    (_memory_flush, "a memory flush"),
    (_heartbeat, "a heartbeat"),
    (_scheduled_job, "a scheduled job"),
    (_event, "an event"),
    (_announcement, "a sub-agent's report"),
    (_fork, "a fork of the conversation"),
    (_sub_agent, "a sub-agent's task"),
    (_title, "a title"),
)


def _prompt(messages: Sequence[Message]) -> str:
    """The newest user message that asks for something and is not answered yet; a report in a context asks least."""
    waiting = list(_unanswered(messages))
    asking = (text for text in waiting if unwrapped(text))
    return next(asking, None) or next((text for text in waiting if internal_of(text) is not None), "")


def _unanswered(messages: Sequence[Message]) -> Iterator[str]:
    """The user messages after the last answer, the newest first; a call of a tool is no answer."""
    for message in reversed(messages):
        if message.role == "assistant" and message.content.strip() and not message.tool_calls:
            return
        if message.role == "user" and internal_of(message.content) not in MORE:
            yield message.content


def _checked(value: object) -> TurnKind:
    name = as_text(value, "turn_type").strip().lower()
    if name not in {kind.value for kind in TurnKind}:
        raise invalid_request(
            f"Invalid value for 'turn_type': {quoted(name)}. It must be 'main' or 'side'.", "turn_type"
        )
    return TurnKind(name)
