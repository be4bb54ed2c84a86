"""Documents for the console as the true functions make them, of a small ledger with turns in most of their states."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawrl.config import read_deployment
from clawrl.inspection.documents import session_document, step_document, turn_document, version_document
from clawrl.inspection.life import life_document, with_pieces
from clawrl.inspection.situation import Situation
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, PolicyVersion
from tests.ledger_kit import judge, listing, open_ledger, opinion, queue, say, take_step, to_judging, user

LAPTOP = Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml"


@dataclass(frozen=True)
class TrueDocuments:
    """``turns`` oldest first, ``versions`` newest first, as the fake server keeps them."""

    turns: list[dict[str, Any]]
    lives: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    versions: list[dict[str, Any]]


def true_documents() -> TrueDocuments:
    deployment = read_deployment(LAPTOP)
    with tempfile.TemporaryDirectory() as folder, open_ledger(Path(folder)) as ledger:
        for number, step in ((0, 0), (1, 1)):
            ledger.commit_version(
                PolicyVersion(
                    version=number, step=step, snapshot=f"v{number}", digest="d", published_at=1_000.0 + number
                )
            )
        say(ledger, "greedy", user("hello"), "hi", drop=DropReason.GREEDY)
        say(ledger, "waiting", user("and now?"), "that", session="talk")
        to_judging(ledger, "rated", "asked")
        ledger.feedback(opinion("rated", -1.0, "Answer in one sentence."))
        judge(ledger, "rated", -1, targets=listing())
        ledger.restored("run", 0)
        take_step(ledger, "run", 1, 1, {"method_baseline": 0.2})
        ledger.checkpointed("run", 1)
        queue(ledger, "queued")
        ledger.roll_back(0)
        situation = Situation(
            now=2_000.0, pause=None, waits="for 7 more turns", lent_step=None, queued=1, judging_now=False,
            trainer="training", checkpointed_step=1,
        )  # fmt: skip
        rows = ledger.find_turns(TurnFilter()).rows
        lives = [ledger.life(row.turn_id) for row in rows]
        documents = [life_document(life, deployment, situation) for life in lives if life is not None]
        current = ledger.current_version()
        assert current is not None
        return TrueDocuments(
            turns=[turn_document(row) for row in reversed(rows)],
            lives=[with_pieces(life, [f" {token['id']}" for token in life["tokens"]]) for life in documents],
            sessions=[session_document(row) for row in ledger.recent_sessions().rows],
            steps=[step_document(row) for row in ledger.step_page()],
            versions=[
                version_document(row, current=current.version, kept=True, step=ledger.step_taken(row.version.step))
                for row in ledger.version_rows()
            ],
        )
