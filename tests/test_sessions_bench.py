"""What sharing of beginnings saves: recorded requests become the turns that they were, and partings are found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.sessions import read_ledger, report, told
from bench.sessions_recorded import read_recordings
from bench.sessions_shared import Seen, batches, by_session, measure, partings
from clawrl.messages import Arrival, TurnId
from clawrl.serving.prompts import Prompt, PromptBuilder
from tests.clients.tokens import byte_tokenizer
from tests.ledger_kit import ask, open_ledger, reply, serve, user
from tests.wire import FOLDER

Json = dict[str, Any]
_TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}
_CALL = {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"at":  "noon"}'}}


def said(role: str, content: str, **more: Any) -> Json:
    return {"role": role, "content": content, **more}


SESSION = [
    said("system", "You know the harbour."),
    said("user", "When is high water?"),
    said("assistant", "", tool_calls=[_CALL]),
    said("tool", "10:10", tool_call_id="c1"),
    said("assistant", "At ten past ten."),
    said("user", "Thank you. And low water?"),
    said("assistant", "  A little after four.  "),
    said("user", "Good."),
]
ENDS = (2, 4, 6, 8)


def record(folder: Path, *requests: list[Json]) -> Path:
    for number, messages in enumerate(requests):
        body = {"model": "any", "messages": messages, "tools": [_TOOL]}
        (folder / f"{number}.json").write_text(json.dumps(body))
    return folder


def turns_of(folder: Path) -> list[Seen]:
    return read_recordings(folder, byte_tokenizer()).turns


def test_a_recorded_session_goes_through_the_model_once(tmp_path: Path) -> None:
    turns = turns_of(record(tmp_path, *(SESSION[:end] for end in ENDS)))
    assert [(seen.name, seen.parent, seen.session) for seen in turns] == [
        ("0", None, "0"), ("1", "0", "0"), ("2", "1", "0"), ("3", "2", "0")
    ]  # fmt: skip
    text = byte_tokenizer().decode(turns[0].ids)
    assert text.endswith('<tool_call>\n{"name": "tide", "arguments": {"at": "noon"}}\n</tool_call><|im_end|>')
    found = measure(turns, 10_000)
    assert found.tokens == sum(len(seen.ids) for seen in turns) and found.turns == 4
    assert found.computed == len(turns[-1].ids) and partings(turns) == []


def test_where_a_client_rewrites_its_history_is_found_to_the_token(tmp_path: Path) -> None:
    rewritten = [SESSION[0], said("user", "When is it high?"), *SESSION[2:]]
    turns = turns_of(record(tmp_path, SESSION[:2], SESSION[:4], rewritten[:6]))
    (parting,) = partings(turns)
    begun = byte_tokenizer().decode(turns[1].ids[: parting.kept])
    assert begun.endswith("user\nWhen is ") and parting.of == len(turns[1].ids)
    assert (parting.name, parting.before, parting.continues) == ("2", "1", False)
    assert "begins anew after `1`" in told(parting, turns, None)
    assert "When is it high?" in told(parting, turns, byte_tokenizer())


def test_a_remark_that_a_client_moves_to_the_end_of_each_request_is_a_parting(tmp_path: Path) -> None:
    moving = said("user", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnow\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>")
    turns = turns_of(record(tmp_path, [*SESSION[:2], moving], [*SESSION[:4], moving]))
    (parting,) = partings(turns)
    assert parting.continues and parting.before == "0" and 0 < parting.kept < parting.of
    found = measure(turns, 10_000)
    assert len(turns[1].ids) < found.computed < found.tokens
    assert measure(turns, len(turns[1].ids)).computed == found.tokens, "no room for the little that is twice"


def test_a_prompt_goes_on_from_the_ids_of_the_turn_before_though_the_template_drops_its_reasoning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reused: list[int] = []
    build = PromptBuilder.build

    def watched(self: PromptBuilder, arrival: Arrival) -> Prompt:
        prompt = build(self, arrival)
        reused.append(prompt.reused)
        return prompt

    monkeypatch.setattr(PromptBuilder, "build", watched)
    thinking = [*SESSION[:4], said("assistant", "At ten past ten.", reasoning_content="High water."), *SESSION[5:6]]
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = str(tokenizer.chat_template).replace("m.reasoning_content", "none")
    first, second = read_recordings(record(tmp_path, SESSION[:4], thinking), tokenizer).turns
    assert reused == [0, len(first.ids)] and partings([first, second]) == []


def test_ends_of_lines_inside_a_text_end_no_request(tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "a\u2028b \x85 c"}]}
    (tmp_path / "lines.jsonl").write_text("\ufeff" + json.dumps(asked, ensure_ascii=False) + "\n", encoding="utf-8")
    recorded = read_recordings(tmp_path, byte_tokenizer())
    assert [turn.name for turn in recorded.turns] == ["lines:1"] and recorded.left_out == []


def test_every_dialect_is_read_and_what_is_no_main_request_is_named(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text(
        "\n".join(json.dumps({"messages": SESSION[:end]}) for end in ENDS[:2]) + "\n\n[1]\n{"
    )
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "refused.json").write_text('{"messages": [{"role": "user", "content": 5}]}')
    for name in ("claude_code_1", "claude_code_2", "codex", "openclaw_compaction"):
        (tmp_path / f"{name}.json").write_text((FOLDER / f"{name}.json").read_text())
    recorded = read_recordings(tmp_path, byte_tokenizer())
    sessions = by_session(recorded.turns)
    assert [[seen.name for seen in own] for own in sessions.values()] == [
        ["claude_code_1", "claude_code_2"], ["codex"], ["lines:1", "lines:2"]
    ]  # fmt: skip
    left_out = "\n".join(recorded.left_out)
    for name in ("lines:4: no JSON object", "lines:5: no JSON", "other: no request", "refused: refused", "side turn"):
        assert name in left_out
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no request"):
        read_recordings(tmp_path / "empty", byte_tokenizer())


def test_a_ledger_shows_its_turns_and_the_batches_that_were_trained(tmp_path: Path) -> None:
    first = user("When is high water?")
    more = first + reply("At ten.") + user("And low?")
    with open_ledger(tmp_path) as ledger:
        for name, talk in (("a", first), ("b", more)):
            made = serve(ask(name, talk, session="harbour"), talk, "At ten." if name == "a" else "At four.")
            ids = np.arange(20 if name == "a" else 40, dtype=np.int32)
            ledger.record(replace(made, prompt_ids=ids))
    turns = read_ledger(tmp_path / "ledger.db")
    assert [(seen.name, seen.session) for seen in turns] == [("a", "harbour"), ("b", "harbour")]
    assert turns[1].parent in (None, TurnId("a"))
    with pytest.raises(ValueError, match="is no file"):
        read_ledger(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_report_has_sessions_their_sum_and_the_batches() -> None:
    whole = np.arange(400, dtype=np.int32)
    parents = (None, "t0", "t1", "t2")
    turns = [
        Seen(name=f"t{n}", session="s", parent=parent, ids=whole[: 100 * (n + 1)]) for n, parent in enumerate(parents)
    ]
    turns.append(Seen(name="x", session="other", parent=None, ids=whole[:50] + 1000))
    lines, figures = report(turns, 10_000, 2)
    assert lines[2:] == [
        "| `s` | 4 | 1000 | 400 | 2.50 | 0 |",
        "| 1 of one turn | 1 | 50 | 50 | 1.00 | 0 |",
        "| **together** | 5 | 1050 | 450 | 2.33 | 0 |",
        "| in batches of 2, as they came (3) | 5 | 1050 | 650 | 1.62 |  |",
    ]
    assert figures["sessions"]["s"]["factor"] == 2.5 and figures["batches"]["count"] == 3
    trained = [replace(seen, step=1 if seen.name in ("t0", "t2") else None) for seen in turns]
    assert [[seen.name for seen in batch] for batch in batches(trained, 8)] == [["t0", "t2"]]
    assert report(trained, 10_000, 8)[0][-1] == "| in the batches that were trained (1) | 2 | 400 | 300 | 1.33 |  |"
