"""Rows and lives as Rich renderables. What people wrote is shown as it is: it is never read as markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clawrl.status_view import number

Row = Mapping[str, Any]
_LONG_TEXT = 2_000


def turn_table(rows: Sequence[Row]) -> Table:
    table = _table(
        "turns", ("turn", "session", "state", "why dropped", "reward", "step", "versions", "tokens", "ended")
    )
    for row in rows:
        tokens = f"{row['prompt_tokens']}+{row['response_tokens']}"
        table.add_row(
            _plain(row["turn_id"]),
            _plain(row["session"]),
            row["state"],
            row["drop_reason"] or "",
            number(row["reward"]),
            number(row["step"]),
            _versions_of(row),
            tokens,
            _clock(row["finished_at"]),
        )
    return table


def session_table(rows: Sequence[Row]) -> Table:
    table = _table("sessions", ("session", "owner", "turns", "by state", "active", "first", "last"))
    for row in rows:
        states = ", ".join(f"{state} {count}" for state, count in sorted(row["by_state"].items()))
        active = "yes" if row["active"] else ""
        table.add_row(
            _plain(row["session"]),
            row["owner"],
            f"{row['turns']}+" if row["more_turns"] else str(row["turns"]),
            states,
            active,
            _clock(row["first_at"]),
            _clock(row["last_at"]),
        )
    return table


def version_table(rows: Sequence[Row]) -> Table:
    table = _table("versions", ("version", "step", "published", "reward", "accepted", "kl", "", "weights"))
    for row in rows:
        notes = ["serves"] if row["current"] else []
        notes += ["good"] if row["good"] else []
        if row["rolled_back_to"] is not None:
            notes.append(f"rolled back to {row['rolled_back_to']} from {number(row['rolled_back_from'])}")
        figures = [number(row["stats"].get(name)) for name in ("reward_mean", "accepted_share", "kl")]
        kept = "kept" if row["kept"] else "gone"
        table.add_row(
            str(row["version"]), str(row["step"]), _clock(row["published_at"]), *figures, ", ".join(notes), kept
        )
    return table


def turn_life(life: Row) -> RenderableType:
    parts: list[RenderableType] = [turn_table([life])]
    if life["text_gone"]:
        parts.append(Text(life["text_gone"], style="yellow"))
    else:
        parts += [_said(message) for message in life["request"]["messages"]]
        parts.append(_tokens(life["tokens"]) if _has_pieces(life) else _said(life["answer"]))
        if _has_pieces(life) and life["credit"].get("advantage_of"):
            parts.append(Text(f"colours show the advantage: {life['credit']['advantage_of']}", style="dim"))
        parts += [_said(message, after=True) for message in (life["evidence"] or {}).get("messages", ())]
        parts += [part for part in (_feedback(life["feedback"]), _judgement(life["judgement"])) if part is not None]
    parts.append(_transitions(life["transitions"]))
    if life["trained_by"]:
        step = life["trained_by"]
        stats = step["stats"]
        figures = ", ".join(f"{name} {number(stats[name], 4)}" for name in ("loss", "kl", "grad_norm") if name in stats)
        parts.append(Text(f"step {step['step']} ({step['state']}): {step['turns']} turns, {figures}"))
    parts.append(Text(life["why"]["sentence"], style="bold"))
    parts.append(Text(life["why"]["remedy"], style="dim"))
    return Group(*parts)


def _said(message: Row, *, after: bool = False) -> Text:
    content = str(message["content"])
    shown = content if len(content) <= _LONG_TEXT else f"{content[:_LONG_TEXT]}... ({len(content)} characters)"
    text = Text.assemble((f"{message['role']}{' (after it)' if after else ''}> ", "bold green"), shown)
    for call in message.get("tool_calls", ()):
        text.append(f"\n  calls {call['function']['name']}({call['function']['arguments']})", style="cyan")
    return text


def _has_pieces(life: Row) -> bool:
    return bool(life["tokens"]) and all(token["piece"] is not None for token in life["tokens"])


def _tokens(tokens: Sequence[Row]) -> Text:
    """The answer token by token: what it is credited with as colour, how sure the policy was as brightness."""
    text = Text.assemble(("assistant> ", "bold green"))
    for token in tokens:
        advantage = token["advantage"]
        colour = "" if not advantage else ("green" if advantage > 0 else "red")
        text.append(token["piece"], style=f"{'dim ' if token['logp'] < -2.0 else ''}{colour}".strip() or "none")
    return text


def _feedback(given: Row | None) -> Text | None:
    if given is None:
        return None
    late = "" if given["taken"] else " (too late to be learned from)"
    return Text(f"a person's feedback: {given['score']:g}{late} {given['comment']}".rstrip())


def _judgement(judgement: Row | None) -> Text | None:
    if judgement is None:
        return None
    votes = ", ".join(map(str, judgement["votes"])) or "none"
    score = number(judgement["score"])
    lines = [f"judge {judgement['judge']}: reward {number(judgement['reward'])}, score {score}, votes {votes}"]
    lines += [judgement["reasoning"]] if judgement["reasoning"] else []
    lines += [f"hint: {hint}" for hint in judgement["hints"]]
    return Text("\n".join(lines))


def _transitions(moves: Sequence[Row]) -> Table:
    table = _table("its way", ("at", "to", "detail"))
    for move in moves:
        table.add_row(_clock(move["at"]), move["to"], _plain(move["detail"]))
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name)
    return table


def _versions_of(row: Row) -> str:
    oldest, newest = row["version"], row["newest_version"]
    return "-" if oldest is None else (str(oldest) if oldest == newest else f"{oldest}-{newest}")


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%m-%d %H:%M:%S")


def _plain(text: str) -> Text:
    return Text(text)
