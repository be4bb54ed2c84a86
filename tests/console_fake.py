"""A server for the console's page without a model: the operator's routes with made-up documents, in the true shapes.

`Fake` is what the server knows; tests change it while the page looks. The page's files come from the room that serves them
in a deployment.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from clawrl.console.files import ConsoleFiles
from clawrl.serving.errors import ApiError
from tests.live import free_port

KEY = "the console's key"
HOSTILE = '<img src=x onerror="window.hacked = true"><script>window.hacked = true</script>'
STARTED = time.time() - 7200
STEPS = 64
BATCH = 4
PLAYED = ["served", "awaiting_next", "judging", "judged", "queued", "leased", "applied", "trained"]
WORDS = ("Measure", " twice", ",", " then", " cut", " once", ".", "\n", "A", " sharp", " saw", " needs", " little", " force", ".")
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
            "versions": [{name: row[name] for name in ("version", "step", "published_at", "stats")} for row in self.versions],
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
        more = {} if back_to is None else {"rolled_back_to": back_to, "rolled_back_from": self.version - 1, "by": "operator"}
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

    def add_turn(self, state: str, reason: str | None = None, *, answer: str = "".join(WORDS), **fields: Any) -> dict[str, Any]:
        seq = len(self.turns) + 1
        judged = state in PLAYED[3:] or reason in ("neutral", "stale")
        good = None if not judged else 0 if reason == "neutral" else (1 if seq % 3 else -1)
        held = state in PLAYED[5:]
        step = min(STEPS, 1 + seq // BATCH) if held else None
        row = {
            "seq": seq, "turn_id": f"turn{seq:04d}aa{(seq * 7919) % 65536:04x}", "owner": "5f0c2a9d11e4b7aa",
            "session": f"shop-{1 + seq // 7}", "parent": f"turn{seq - 1:04d}aa{((seq - 1) * 7919) % 65536:04x}" if seq % 7 else None,
            "kind": "side" if reason == "side" else "main", "state": state, "drop_reason": reason, "verdict": good,
            "score": None if good is None else 0.5 + 0.37 * good, "reward": None if good is None else float(good),
            "hints": 1 if good == -1 else 0, "taught": good == -1, "step": step, "version": max(0, (step or STEPS) - 1),
            "newest_version": max(0, (step or STEPS) - 1), "prompt_tokens": 40 + seq, "response_tokens": len(WORDS),
            "finished_at": STARTED + 28 * seq, "state_at": STARTED + 28 * seq + 9, **fields,
        }  # fmt: skip
        self.turns.append(row)
        self.lives[row["turn_id"]] = self.life(row, answer)
        return row

    def life(self, row: dict[str, Any], answer: str) -> dict[str, Any]:
        tokens = [
            {
                "id": 300 + at, "piece": piece, "logp": -0.02 - 0.55 * ((at * 5) % 11), "version": row["version"],
                "teacher_logp": -0.1 - 0.4 * ((at * 3) % 7) if row["taught"] else None,
                "advantage": None if row["reward"] is None else row["reward"] * (1 - at / 9),
            }
            for at, piece in enumerate(WORDS if answer == "".join(WORDS) else [answer])
        ]  # fmt: skip
        way = PLAYED[: PLAYED.index(row["state"]) + 1] if row["state"] in PLAYED else [*PLAYED[:3], "dropped"]
        asked = {"role": "user", "content": "How do I cut a straight board?"}
        judged = row["verdict"] is not None
        comment = "Answer in one sentence." if row["verdict"] == -1 else "Clear and short."
        return {
            **row,
            "text_gone": None,
            "request": {"messages": [asked], "tools": [], "template_arguments": {}, "arrived_at": row["finished_at"] - 3},
            "answer": {"role": "assistant", "content": answer},
            "response_text": answer,
            "evidence": {"from_turn": self.turns[-1]["turn_id"], "messages": [{"role": "user", "content": "Shorter, please."}]} if judged else None,
            "feedback": {"score": float(row["verdict"]), "comment": comment, "given_at": row["finished_at"] + 5, "taken": True}
            if judged and row["verdict"] else None,
            "judgement": {
                "verdict": row["verdict"], "score": row["score"], "votes": [row["verdict"], row["verdict"], None], "judge": "probability",
                "seconds": 0.61, "reasoning": "The user had to ask again.", "hints": ["Answer in one sentence."] if row["hints"] else [],
                "feedback": None, "reward": row["reward"],
            } if judged else None,
            "sampling": {"temperature": 0.8, "top_p": 1.0, "top_k": 0, "max_tokens": 96, "stop": [], "imposed": False, "json_schema": "",
                         "finish_reason": "stop", "replica": "Rollout#a81f", "started_at": row["finished_at"] - 2.7, "reused_tokens": 0},
            "spans": [{"start": 0, "end": len(tokens), "version": row["version"]}],
            "tokens": tokens,
            "credit": {"reward": row["reward"], "method": "combine"},
            "transitions": [
                {"from": way[at - 1] if at else None, "to": state, "at": row["finished_at"] + at,
                 "detail": row["drop_reason"] or "" if state == "dropped" else f"step {row['step']}" if state in PLAYED[5:] else ""}
                for at, state in enumerate(way)
            ],
            "trained_by": None if row["step"] is None or row["state"] == "leased" else self.steps[row["step"] - 1],
            "why": {"sentence": f"It is {row['state']}, as the made-up ledger says.", "remedy": "Nothing to do."},
        }  # fmt: skip

    def move(self, row: dict[str, Any], state: str, **fields: Any) -> None:
        row.update(state=state, state_at=time.time(), **fields)
        before = self.lives[row["turn_id"]]
        self.lives[row["turn_id"]] = self.life(row, before["response_text"])


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


def app_of(fake: Fake) -> FastAPI:
    app = FastAPI(openapi_url=None)
    files = ConsoleFiles()

    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), error.status, error.headers)

    @app.get("/console{path:path}")
    async def console(request: Request, path: str) -> Response:
        return files.answer(path, request.headers)

    @app.middleware("http")
    async def door(request: Request, call: Any) -> Response:
        path = request.url.path
        if path.startswith("/console"):
            return await call(request)
        if fake.down:
            # What a proxy says whose server is away; the page's own connection is cut in another test.
            return Response(status_code=502)
        fake.gets += request.method == "GET"
        fake.headers.append({**request.headers, "path": path, "query": request.url.query})
        if fake.key is not None and request.headers.get("authorization") != f"Bearer {fake.key}":
            return await refused(request, ApiError(401, "Incorrect API key provided.", code="invalid_api_key"))
        if path in fake.refuse:
            return await refused(request, fake.refuse[path])
        return await call(request)

    async def posted(request: Request) -> dict[str, Any]:
        raw = await request.body()
        body = json.loads(raw) if raw else {}
        fake.asked.append((request.url.path, body))
        return dict(body)

    @app.get("/clawrl/status")
    async def status() -> Any:
        return fake.status()

    @app.get("/clawrl/turns")
    async def turns(request: Request, before: int = 2**60, limit: int = 100) -> Any:
        query = request.query_params
        wanted = {"state": "state", "reason": "drop_reason", "session": "session", "version": "version", "step": "step"}
        rows = [turn for turn in reversed(fake.turns) if turn["seq"] < before]
        for name, column in wanted.items():
            if name in query:
                rows = [row for row in rows if str(row[column]) == query[name]]
        return rows[:limit]

    @app.get("/clawrl/turns/{turn_id}")
    async def turn(turn_id: str) -> Any:
        if turn_id not in fake.lives:
            raise ApiError(404, f"There is no turn '{turn_id}'; it may have been removed with the oldest finished turns.")
        return fake.lives[turn_id]

    def session_rows() -> list[dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for one in fake.turns:
            row = rows.setdefault(one["session"], {
                "session": one["session"], "owner": one["owner"], "named": True, "turns": 0, "by_state": {}, "first_at": one["finished_at"],
            })  # fmt: skip
            row["turns"] += 1
            row["by_state"][one["state"]] = row["by_state"].get(one["state"], 0) + 1
            row.update(seq=one["seq"], last_at=one["finished_at"], last_turn=one["turn_id"], active="awaiting_next" in row["by_state"])
        return sorted(rows.values(), key=lambda row: -row["seq"])

    @app.get("/clawrl/sessions")
    async def sessions(before: int = 2**60, limit: int = 100) -> Any:
        return [row for row in session_rows() if row["seq"] < before][:limit]

    @app.get("/clawrl/sessions/{name:path}")
    async def session(name: str, before: int = 2**60, limit: int = 100) -> Any:
        rows = [row for row in session_rows() if row["session"] == name]
        if not rows:
            raise ApiError(404, f"There is no session '{name}'.")
        found = [one for one in reversed(fake.turns) if one["session"] == name and one["seq"] < before]
        return {"session": name, "of": rows, "turns": found[:limit]}

    @app.get("/clawrl/versions")
    async def versions(before: int = 2**60, limit: int = 100) -> Any:
        return [row for row in fake.versions if row["version"] < before][:limit]

    @app.get("/clawrl/steps")
    async def steps(before: int = 2**60, limit: int = 100) -> Any:
        return [row for row in reversed(fake.steps) if row["seq"] < before][:limit]

    @app.post("/clawrl/pause")
    async def pause(request: Request) -> Any:
        fake.paused = (await posted(request)).get("reason", "")
        return {"paused": True}

    @app.post("/clawrl/resume")
    async def resume(request: Request) -> Any:
        await posted(request)
        fake.paused = fake.alarm = None
        return {"paused": False, "released": 5}

    @app.post("/clawrl/publish")
    async def publish(request: Request) -> Any:
        await posted(request)
        step = fake.steps[-1]["step"]
        return {"outcome": "asked", "version": fake.version, "step": step - 1, "newest_step": step, "trainer": "training"}

    @app.post("/clawrl/rollback")
    async def rollback(request: Request) -> Any:
        number = (await posted(request))["version"]
        wanted = next((row for row in fake.versions if row["version"] == number and row["kept"]), None)
        if wanted is None:
            raise ApiError(404, f"Version {number} is not kept; kept are 0.")
        before = fake.version
        fake.publish(wanted["step"], time.time(), {}, back_to=number)
        return {"version": fake.version, "rolled_back_to": number, "rolled_back_from": before, "step": wanted["step"]}

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Any:
        body = await posted(request)
        row = next(row for row in fake.turns if row["turn_id"] == body["turn_id"])
        fake.move(row, "judging")
        return {"turn_id": body["turn_id"], "outcome": "taken", "state": "judging"}

    @app.post("/clawrl/sessions/{name:path}/done")
    async def done(request: Request, name: str) -> Any:
        await posted(request)
        return {"session": name, "ended_turns": 1}

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [{"id": "SmolLM2-135M-Instruct", "object": "model"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await posted(request)
        answer = fake.answers.pop(0) if fake.answers else "".join(WORDS)
        side = request.headers.get("x-turn-type") == "side"
        row = fake.add_turn("awaiting_next", answer=answer, session=request.headers.get("x-session-id", "?"), version=fake.version,
                            kind="side" if side else "main", finished_at=time.time(), state_at=time.time())  # fmt: skip
        ours = {"turn_id": row["turn_id"], "version": fake.version}

        async def stream() -> AsyncIterator[bytes]:
            def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
                choice = {"index": 0, "delta": delta, "finish_reason": finish}
                return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice], 'clawrl': ours})}\n\n".encode()

            yield chunk({"role": "assistant", "content": ""})
            for at in range(0, len(answer), 6):
                await asyncio.sleep(0.004)
                yield chunk({"content": answer[at : at + 6]})
            if body.get("max_tokens") == 1:
                yield b'data: {"error": {"message": "The engine gave up.", "type": "server_error"}}\n\n'
                return
            yield chunk({}, "stop")
            yield b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Clawrl-Turn-Id": row["turn_id"]})

    return app


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    """The address of a running server."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app_of(fake), host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "the fake server did not start"
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
