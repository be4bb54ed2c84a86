"""What a server of the console would know without a model: made-up documents in the true shapes, for two hours of work.

Tests change a `Fake` while the page looks at it; `tests.console_server` serves one.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from clawrl.serving.errors import ApiError

KEY = "the console's key"
HOSTILE = '<img src=x onerror="window.hacked = true"><script>window.hacked = true</script>'
STARTED = time.time() - 7200
STEPS = 64
BATCH = 4
PLAYED = ["served", "awaiting_next", "judging", "judged", "queued", "leased", "applied", "trained"]
WORDS = (
    "Measure",
    " twice",
    ",",
    " then",
    " cut",
    " once",
    ".",
    "\n",
    "A",
    " sharp",
    " saw",
    " needs",
    " little",
    " force",
    ".",
)
LEFT = "{left}"
IN_STATUS = ("version", "step", "published_at", "stats")
DROPS = ("neutral", "no_evidence", "stale", "side", "greedy", "too_short")


@dataclass
class Fake:
    """``asked`` are the bodies of what was posted, by path. While ``down`` every connection is cut."""

    key: str | None = KEY
    down: bool = False
    refuse: dict[str, ApiError] = field(default_factory=dict)
    paused: str | None = None
    alarm: dict[str, Any] | None = None
    up_since: float = STARTED
    version: int = STEPS
    steps: list[dict[str, Any]] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    lives: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    gets: int = 0
    model: str = "SmolLM2-135M-Instruct"

    def of(self, path: str) -> list[Any]:
        return [body for asked, body in self.asked if asked == path]

    def status(self) -> dict[str, Any]:
        by_state = {state: sum(turn["state"] == state for turn in self.turns) for state in (*PLAYED, "dropped")}
        dropped = [turn["drop_reason"] for turn in self.turns if turn["drop_reason"]]
        return {
            "name": "laptop",
            "version": self.version,
            "step": self.steps[-1]["step"] if self.steps else 0,
            "paused": self.paused is not None,
            "pause_reason": self.paused,
            "turns": {
                "recorded": len(self.turns),
                "adds_up": True,
                "by_state": {state: count for state, count in by_state.items() if count},
                "dropped": {reason: dropped.count(reason) for reason in sorted(set(dropped))},
            },
            "staleness": {
                "max_steps": 2, "limit": 2, "of_steps": len(self.steps), "dropped": dropped.count("stale"),
                "lag": {"0": 120, "1": 96, "2": 31} if self.steps else {},
            },
            "sessions": {"active": 3 if self.turns else 0},
            "versions": [{name: row[name] for name in IN_STATUS} for row in self.versions],
            "holds_ms": {"p50": 2.4, "p95": 6.1, "count": len(self.versions)},
            "judge": {"judged": 231, "abstained": 4, "mean_seconds": 0.62},
            "floor": max(0, self.version - 2),
            "replicas": [
                {"replica": "Rollout#a81f", "version": self.version, "running": 2, "waiting": 0, "hold_ms": 2.1},
                {"replica": "Rollout#c02d", "version": self.version - 1, "running": 1, "waiting": 3, "hold_ms": 2.6},
            ] if self.turns else [],
            "unrecorded": 0,
            "journaled": 0,
            "trainer": {"state": "training", "waits": "for 2 more turns"},
            "guards": {
                "figures": {
                    "mean_tokens": 41.2, "share_short": 0.04, "share_repetitive": 0.01, "kl": 0.18, "fluency": -2.61,
                    "baseline_mean_tokens": 58.0, "baseline_share_short": 0.02, "baseline_share_repetitive": 0.02,
                    "baseline_kl": 0.0, "baseline_fluency": -2.44,
                } if self.turns else {},
                "good_version": self.version - 2 if self.turns else None,
                "alarm": self.alarm,
            },
            "coordinator": {"pid": 4711, "up_since": self.up_since},
        }  # fmt: skip

    def add_step(self) -> None:
        step = len(self.steps) + 1
        wave = math.sin(step / 5)
        stats = {
            "loss": 0.4 / step + 0.03 * wave, "opd_kl": 0.6 * 0.97**step + 0.03, "ppo_kl": 0.004 + 0.002 * wave,
            "grad_norm": 0.8 + 0.2 * wave, "train_rollout_logprob_abs_diff": 0.0004, "entropy": 1.9 - step / 100,
            "accepted_share": min(1.0, 0.25 + step / 110 + 0.12 * wave), "lag": {"0": 3, "1": 1}, "lag_mean": 0.25,
            "changed": True,
        }  # fmt: skip
        at = STARTED + 60 * step
        reward = min(1.0, -0.5 + step / 55 + 0.24 * wave)
        self.steps.append(
            {
                "seq": step, "step": step, "run": "run-1", "state": "trained", "at": at, "turns": BATCH,
                "reward_mean": reward, "accepted_share": stats["accepted_share"], "lag": stats["lag"], "stats": stats,
            }
        )  # fmt: skip
        self.publish(step, at + 4, {**stats, "reward_mean": reward})

    def publish(self, step: int, at: float, stats: dict[str, Any], back_to: int | None = None) -> None:
        self.version = self.versions[0]["version"] + 1 if self.versions else 0
        for row in self.versions:
            row["current"] = False
        back = {"rolled_back_to": back_to, "rolled_back_from": self.version - 1, "by": "operator"}
        more = {} if back_to is None else back
        self.versions.insert(
            0,
            {
                "version": self.version, "step": step, "published_at": at, "current": True, "kept": True,
                "good": back_to is not None, "rolled_back_to": back_to,
                "rolled_back_from": None if back_to is None else self.version - 1,
                "stats": {**stats, **more, "hold_ms": 2.2, "publish_s": 0.41, "committed": True},
            },
        )  # fmt: skip
        for old in self.versions[6:]:
            old["kept"] = old["version"] == 0

    def add_turn(
        self,
        state: str,
        reason: str | None = None,
        *,
        answer: str = "".join(WORDS),
        asked: list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        seq = len(self.turns) + 1
        judged = state in PLAYED[3:] or reason in ("neutral", "stale")
        good = None if not judged else 0 if reason == "neutral" else (1 if seq % 3 else -1)
        held = state in PLAYED[5:]
        step = min(STEPS, 1 + seq // BATCH) if held else None
        row = {
            "seq": seq, "turn_id": turn_id(seq), "owner": "5f0c2a9d11e4b7aa",
            "session": f"shop-{1 + seq // 7}", "parent": turn_id(seq - 1) if seq % 7 else None,
            "kind": "side" if reason == "side" else "main", "state": state, "drop_reason": reason, "verdict": good,
            "score": None if good is None else 0.5 + 0.37 * good, "reward": None if good is None else float(good),
            "hints": 1 if good == -1 else 0, "taught": good == -1, "step": step, "version": max(0, (step or STEPS) - 1),
            "newest_version": max(0, (step or STEPS) - 1), "prompt_tokens": 40 + seq, "response_tokens": len(WORDS),
            "finished_at": STARTED + 28 * seq, "state_at": STARTED + 28 * seq + 9, **fields,
        }  # fmt: skip
        self.turns.append(row)
        self.lives[row["turn_id"]] = self.life(row, answer, asked)
        return row

    def life(self, row: dict[str, Any], answer: str, asked: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        pieces = WORDS if answer == "".join(WORDS) else (answer,)
        judged, at = row["verdict"] is not None, row["finished_at"]
        came_after = {"from_turn": self.turns[-1]["turn_id"], "messages": [said("user", "Shorter, please.")]}
        taken = row["step"] is not None and row["state"] != "leased"
        return {
            **row,
            "text_gone": None,
            "request": {
                "messages": asked or [said("user", "How do I cut a straight board?")],
                "tools": [],
                "template_arguments": {},
                "arrived_at": at - 3,
            },
            "answer": said("assistant", answer),
            "response_text": answer,
            "evidence": came_after if judged else None,
            "feedback": feedback_of(row) if judged and row["verdict"] else None,
            "judgement": judgement_of(row) if judged else None,
            "sampling": {
                "temperature": 0.8, "top_p": 1.0, "top_k": 0, "max_tokens": 96, "stop": [], "imposed": False,
                "json_schema": "", "finish_reason": "stop", "replica": "Rollout#a81f", "started_at": at - 2.7,
                "reused_tokens": 0,
            },
            "spans": [{"start": 0, "end": len(pieces), "version": row["version"]}],
            "tokens": [token_of(row, place, piece) for place, piece in enumerate(pieces)],
            "credit": {
                "method": "combine", "reward": row["reward"], "baseline": "none", "step_reward_mean": 0.25,
                "taught": row["taught"], "in_weights": row["state"] in ("applied", "trained"),
                "advantage_of": None if row["reward"] is None else f"reward {row['reward']:g}", "advantage_note": None,
            },
            "transitions": transitions_of(row),
            "trained_by": self.steps[row["step"] - 1] if taken else None,
            "why": {"sentence": sentence_of(row), "remedy": "Nothing to do."},
        }  # fmt: skip

    def document(self, turn_id: str) -> dict[str, Any]:
        """As it is told now: like the true sentences, those of turns that wait are others each time."""
        life = self.lives[turn_id]
        why = {**life["why"], "sentence": life["why"]["sentence"].replace(LEFT, str(300 - self.gets % 300))}
        return {**life, "why": why}

    def session_documents(self) -> list[dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for turn in self.turns:
            first = {"turns": 0, "more_turns": False, "by_state": {}, "first_at": turn["finished_at"], "named": True}
            row = rows.setdefault(turn["session"], {**first, "session": turn["session"], "owner": turn["owner"]})
            row["turns"] += 1
            row["by_state"][turn["state"]] = row["by_state"].get(turn["state"], 0) + 1
            row.update(seq=turn["seq"], last_at=turn["finished_at"], last_turn=turn["turn_id"])
            row["active"] = "awaiting_next" in row["by_state"]
        return sorted(rows.values(), key=lambda row: -int(row["seq"]))

    def move(self, row: dict[str, Any], state: str, **fields: Any) -> None:
        row.update(state=state, state_at=time.time(), **fields)
        before = self.lives[row["turn_id"]]
        self.lives[row["turn_id"]] = self.life(row, before["response_text"], before["request"]["messages"])


def turn_id(seq: int) -> str:
    return f"{(seq * 2654435761) % 2**32:08x}{seq:024x}"


def sentence_of(row: dict[str, Any]) -> str:
    waits = "" if row["state"] in ("trained", "dropped") else f", for {LEFT} more seconds at most"
    return f"It is {row['state']}{waits}, as the made-up ledger says."


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def feedback_of(row: dict[str, Any]) -> dict[str, Any]:
    comment = "Answer in one sentence." if row["verdict"] == -1 else "Clear and short."
    return {"score": float(row["verdict"]), "comment": comment, "given_at": row["finished_at"] + 5, "taken": True}


def judgement_of(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "verdict": row["verdict"], "score": row["score"], "votes": [row["verdict"], row["verdict"], 0],
        "judge": "probability", "seconds": 0.61, "reasoning": "The user had to ask again.",
        "hints": ["Answer in one sentence."] if row["hints"] else [], "feedback": None, "reward": row["reward"],
    }  # fmt: skip


def token_of(row: dict[str, Any], place: int, piece: str) -> dict[str, Any]:
    return {
        "id": 300 + place,
        "piece": piece,
        "logp": -0.02 - 0.55 * ((place * 5) % 11),
        "version": row["version"],
        "teacher_logp": -0.1 - 0.4 * ((place * 3) % 7) if row["taught"] else None,
        "advantage": None if row["reward"] is None else row["reward"] * (1 - place / 9),
    }


def transitions_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    state = row["state"]
    way = [*PLAYED[:3], "dropped"] if state == "dropped" else PLAYED[: PLAYED.index(state) + 1]
    details = {"dropped": row["drop_reason"], **dict.fromkeys(PLAYED[5:], f"step {row['step']}")}
    return [
        {"from": way[at - 1] if at else None, "to": to, "at": row["finished_at"] + at, "detail": details.get(to, "")}
        for at, to in enumerate(way)
    ]


def busy() -> Fake:
    """One that has worked for two hours."""
    fake = Fake()
    for _ in range(STEPS):
        fake.add_step()
    for number in range(1, 131):
        if number % 9 == 0:
            fake.add_turn("dropped", DROPS[number // 9 % len(DROPS)])
        elif number < 112:
            fake.add_turn("trained")
        else:
            fake.add_turn(PLAYED[number % 7])
    return fake
