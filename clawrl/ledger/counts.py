"""Figures for people: where every turn is, what the judge cost, what each step learned from.

``recorded`` is a counter of its own, incremented on insert; the states are counted from the rows. That
the two agree is therefore a finding, not a definition.
"""

from __future__ import annotations

import sqlite3
from collections import Counter

from clawrl.ledger.codec import KeyGone, unpack_stats
from clawrl.ledger.database import Database
from clawrl.ledger.views import Counts, JudgeStats, RunRow, StepRow, StepState, TurnRow, VersionReward
from clawrl.messages import DropReason, TurnKind, TurnState, Verdict

ROW_SQL = (
    "SELECT t.*, a.parent, j.verdict, j.reward, j.opinion,"
    " EXISTS (SELECT 1 FROM targets WHERE turn_id = t.turn_id) AS taught"
    " FROM turns t JOIN arrivals a USING (turn_id) LEFT JOIN judgements j USING (turn_id)"
)
"""What `turn_row` makes a `TurnRow` of."""


def count_up(db: Database, name: str, by: float = 1) -> None:
    db.execute(
        "INSERT INTO counters (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        name,
        by,
    )


def counter(db: Database, name: str) -> float:
    value = db.scalar("SELECT value FROM counters WHERE name = ?", name)
    return 0.0 if value is None else float(value)


def counts(db: Database) -> Counts:
    # One statement, so that the parts come from one moment even for a reader beside the writer.
    by_state: Counter[TurnState] = Counter()
    reasons: Counter[DropReason] = Counter()
    recorded = 0
    for row in db.rows(
        "SELECT state, reason, count(*) AS n FROM turns GROUP BY state, reason"
        " UNION ALL SELECT state, reason, n FROM pruned"
        " UNION ALL SELECT NULL, NULL, value FROM counters WHERE name = 'recorded'"
    ):
        if row["state"] is None:
            recorded = int(row["n"])
            continue
        by_state[TurnState(row["state"])] += row["n"]
        if row["reason"]:
            reasons[DropReason(row["reason"])] += row["n"]
    return Counts(recorded=recorded, by_state=dict(by_state), dropped=dict(reasons))


def queued(db: Database, until: float) -> int:
    return int(db.scalar("SELECT count(*) FROM turns WHERE state = 'queued' AND state_at <= ?", until))


def active_sessions(db: Database) -> int:
    """Sessions in which a turn awaits its evidence."""
    return int(
        db.scalar("SELECT count(*) FROM (SELECT DISTINCT owner, session FROM turns WHERE state = 'awaiting_next')")
    )


def judge_stats(db: Database) -> JudgeStats:
    judged, abstained = int(counter(db, "judged")), int(counter(db, "abstained"))
    answers = judged + abstained
    return JudgeStats(
        judged=judged, abstained=abstained, mean_seconds=counter(db, "judge_seconds") / answers if answers else 0.0
    )


def reward_by_version(db: Database, turns: int, versions: int) -> list[VersionReward]:
    """Of the newest ``turns`` turns, by the version of their oldest token; the newest ``versions``, newest first."""
    rows = db.rows(
        "SELECT t.oldest_version AS version, avg(j.reward) AS mean, count(*) AS n"
        " FROM turns t JOIN judgements j USING (turn_id)"
        " WHERE t.seq > (SELECT max(seq) FROM turns) - ? AND t.oldest_version IS NOT NULL AND j.reward IS NOT NULL"
        " GROUP BY t.oldest_version ORDER BY t.oldest_version DESC LIMIT ?",
        turns,
        versions,
    )
    return [VersionReward(version=row["version"], mean=row["mean"], turns=row["n"]) for row in rows]


def turn_rows(
    db: Database, limit: int, state: TurnState | None, session: str | None, owner: str | None, before_seq: int | None
) -> list[TurnRow]:
    """The newest turns first; ``before_seq`` pages on."""
    wanted = {"t.state = ?": state, "t.session = ?": session, "t.owner = ?": owner, "t.seq < ?": before_seq}
    given = {clause: value for clause, value in wanted.items() if value is not None}
    rows = db.rows(f"{ROW_SQL} WHERE {' AND '.join(given) or '1'} ORDER BY t.seq DESC LIMIT ?", *given.values(), limit)
    return [turn_row(db, row) for row in rows]


def run_row(db: Database) -> RunRow | None:
    run = db.one("SELECT run_id, restored_step FROM runs ORDER BY id DESC LIMIT 1")
    if run is None:
        return None
    stats = db.scalar("SELECT stats FROM steps WHERE run_id = ? ORDER BY step DESC LIMIT 1", run["run_id"])
    return RunRow(
        run_id=run["run_id"], restored_step=run["restored_step"], stats=None if stats is None else unpack_stats(stats)
    )


def step_row(row: sqlite3.Row) -> StepRow:
    return StepRow(
        seq=row["id"],
        run_id=row["run_id"],
        step=row["step"],
        state=StepState(row["state"]),
        turns=row["turns"],
        reward_mean=row["reward_mean"],
        stats=unpack_stats(row["stats"]),
        at=row["at"],
    )


def turn_row(db: Database, row: sqlite3.Row) -> TurnRow:
    """Without what the judge said where that cannot be read any more: one row must not hide all others."""
    try:
        opinion = None if row["opinion"] is None else db.codec.unpack_json(row["owner"], row["opinion"])
    except KeyGone:
        opinion = None
    return TurnRow(
        seq=row["seq"],
        turn_id=row["turn_id"],
        owner=row["owner"],
        session=row["session"],
        parent=row["parent"],
        kind=TurnKind(row["kind"]),
        state=TurnState(row["state"]),
        drop_reason=None if row["reason"] is None else DropReason(row["reason"]),
        step=row["step"],
        oldest_version=row["oldest_version"],
        newest_version=row["newest_version"],
        prompt_tokens=row["prompt_tokens"],
        response_tokens=row["response_tokens"],
        finished_at=row["finished_at"],
        state_at=row["state_at"],
        verdict=None if row["verdict"] is None else Verdict(row["verdict"]),
        score=None if opinion is None else opinion["score"],
        reward=row["reward"],
        hints=0 if opinion is None else len(opinion["hints"]),
        taught=bool(row["taught"]),
    )
