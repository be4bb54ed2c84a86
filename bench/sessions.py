"""What sharing of beginnings saves on real sessions: recorded requests of clients, or the turns of a deployment.

    python -m bench.sessions --recordings FOLDER [--model FOLDER_OR_YAML] [--template FILE]
    python -m bench.sessions --ledger STATE/ledger.sqlite

For each session: its turns, their tokens as samples of their own, the tokens that the trainer computes, and where a
turn does not begin with the ids of the one before it, as when a client rewrites its history. No model runs. With
``--text`` the words around each such place are shown, which may be private. What a folder of recordings looks like is
told in `bench.sessions_recorded`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bench.sessions_recorded import read_recordings
from bench.sessions_shared import Parting, Seen, Shared, added, batches, by_session, measure, partings
from clawrl.config import read_deployment
from clawrl.ledger import Ledger
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import TurnKind
from clawrl.models import resolve

LAPTOP = Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml"
_PAGE = 500
_SHOWN = 20
"""Sessions and partings that are written out; ``--json`` has all of them."""
_WORDS = 12
"""Tokens shown on each side of a parting."""


def read_ledger(file: Path) -> list[Seen]:
    """Main turns that said something, the oldest first; also while the deployment runs. Raises `ValueError`."""
    if not file.is_file():
        raise ValueError(f"{file} is no file; a deployment has its ledger at `state` / name / ledger.sqlite")
    found: list[Seen] = []
    with Ledger(file, LedgerConfig()) as ledger:
        before: int | None = None
        while rows := ledger.turns(_PAGE, before_seq=before):
            before = rows[-1].seq
            for row in rows:
                turn = ledger.turn(row.turn_id) if row.kind is TurnKind.MAIN and row.response_tokens else None
                if turn is not None:
                    found.append(
                        Seen(
                            name=row.turn_id,
                            session=row.session,
                            parent=row.parent,
                            ids=np.concatenate([turn.prompt_ids, turn.response_ids]),
                            step=row.step,
                        )
                    )
    if not found:
        raise ValueError(f"{file} holds no answered main turn")
    return found[::-1]


def report(turns: Sequence[Seen], micro_batch_tokens: int, batch_size: int) -> tuple[list[str], dict[str, Any]]:
    """Lines of Markdown, and the same figures by name."""
    sessions = by_session(turns)
    figures = {name: measure(own, micro_batch_tokens) for name, own in sessions.items()}
    parted = {name: partings(own) for name, own in sessions.items()}
    lines = [
        "| session | turns | tokens | computed | factor | turns that begin otherwise |",
        "|---|---|---|---|---|---|",
    ]
    # Those that weigh most, in the order in which they began.
    longest = set(
        sorted((name for name in figures if figures[name].turns > 1), key=lambda name: -figures[name].tokens)[:_SHOWN]
    )
    lines += [_line(f"`{name}`", figures[name], len(parted[name])) for name in figures if name in longest]
    for title, others in (
        ("others", [name for name in figures if figures[name].turns > 1 and name not in longest]),
        ("of one turn", [name for name in figures if figures[name].turns == 1]),
    ):
        if others:
            count = sum(len(parted[name]) for name in others)
            lines.append(_line(f"{len(others)} {title}", added([figures[name] for name in others]), count))
    lines.append(_line("**together**", added(list(figures.values())), sum(map(len, parted.values()))))
    taken = [measure(batch, micro_batch_tokens) for batch in batches(turns, batch_size)]
    trained = any(turn.step is not None for turn in turns)
    title = "in the batches that were trained" if trained else f"in batches of {batch_size}, as they came"
    lines.append(_line(f"{title} ({len(taken)})", added(taken), None))
    found = {
        "sessions": {name: asdict(one) | {"factor": one.factor} for name, one in figures.items()},
        "partings": [asdict(one) for own in parted.values() for one in own],
        "batches": asdict(added(taken)) | {"factor": added(taken).factor, "count": len(taken)},
    }
    return lines, found


def told(parting: Parting, turns: Sequence[Seen], tokenizer: PreTrainedTokenizerBase | None) -> str:
    """One line on a parting; with a ``tokenizer`` also the words around it."""
    how = "continues" if parting.continues else "begins anew after"
    line = (
        f"- `{parting.name}` {how} `{parting.before}`: the same for the first {parting.kept} of its {parting.of} tokens"
    )
    if tokenizer is None:
        return line
    around = slice(max(0, parting.kept - _WORDS), parting.kept + _WORDS)
    before, now = (
        tokenizer.decode(turn.ids[around])
        for name in (parting.before, parting.name)
        for turn in turns
        if turn.name == name
    )
    return f"{line}\n  - before: {before!r}\n  - now: {now!r}"


def _line(name: str, found: Shared, parted: int | None) -> str:
    last = "" if parted is None else str(parted)
    return f"| {name} | {found.turns} | {found.tokens} | {found.computed} | {found.factor:.2f} | {last} |"


def _tokenizer(model: Path, template: Path | None) -> PreTrainedTokenizerBase:
    folder = model if model.is_dir() else resolve(read_deployment(model).policy.model)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if template is not None:
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--recordings", type=Path, help="a folder of recorded requests")
    source.add_argument("--ledger", type=Path, help="the ledger.sqlite of a deployment")
    parser.add_argument("--model", type=Path, default=LAPTOP, help="whose tokenizer: a folder, or a deployment's file")
    parser.add_argument("--template", type=Path, help="a chat template instead of the model's own")
    parser.add_argument(
        "--tokens", type=int, default=32768, help="the trainer's micro_batch_tokens, 32768 if not given"
    )
    parser.add_argument("--batch", type=int, default=8, help="the trainer's batch_size, 8 if not given")
    parser.add_argument("--text", action="store_true", help="show the words around each place where turns part")
    parser.add_argument("--json", type=Path, help="write the figures there")
    asked = parser.parse_args()
    tokenizer = _tokenizer(asked.model, asked.template) if asked.recordings or asked.text else None
    try:
        if asked.recordings:
            assert tokenizer is not None
            recorded = read_recordings(asked.recordings, tokenizer)
            turns, left_out = recorded.turns, recorded.left_out
        else:
            turns, left_out = read_ledger(asked.ledger), []
    except ValueError as error:
        parser.error(str(error))
    lines, figures = report(turns, asked.tokens, asked.batch)
    print("\n".join(lines))
    parted = [Parting(**one) for one in figures["partings"]]
    print("\n".join(["", *(told(one, turns, tokenizer if asked.text else None) for one in parted[:_SHOWN])]))
    if len(parted) > _SHOWN:
        print(f"- and {len(parted) - _SHOWN} more")
    if left_out:
        print("\n".join(["", "left out:", *(f"- {line}" for line in left_out)]))
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
