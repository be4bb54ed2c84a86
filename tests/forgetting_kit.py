"""Schedules of what two owners may do while one of them is forgotten, and what has to hold after each move."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck
from hypothesis import strategies as st

from clawrl.ledger import Ledger
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import Arrival
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.forgetting import Steps, Wanted, forget, resume
from clawrl.privacy.keys import KeyStore
from clawrl.privacy.opening import open_keys
from tests.ledger_kit import Talk, ask, judge, reply, serve, user
from tests.privacy_kit import opened

AHEAD_S = 900.0
MOVES = ("step", "step", "step", "arrive", "record", "record", "judge", "lease", "crash", "begin", "look")
FIRST = [(move, who, False) for who in ("ann", "bob") for move in ("arrive", "record", "arrive", "record", "judge")]
WHO = ("ann", "bob")


def stepwise(ledger: Ledger, steps: Steps, between: Callable[[int], None]) -> dict:  # type: ignore[type-arg]
    """Runs the steps with something else after each."""
    answer, ran = None, 0
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return dict(end.value)
        answer = step.run(ledger)
        ran += 1
        between(ran)


def now(ledger: Ledger) -> float:
    return ledger._db.clock()


def everything_works(ledger: Ledger) -> None:
    """All that reads everybody's rows."""
    ledger.awaiting_judgement()
    ledger.find_turns(TurnFilter())
    for row in ledger.turns(1_000):
        ledger.turn(row.turn_id), ledger.life(row.turn_id), ledger.judge_request(row.turn_id)
    assert ledger.counts().adds_up


class Party:
    """Two owners who talk through two ingresses, one with a clock that is ahead; one may be forgotten at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = open_keys(folder, PrivacyConfig())
        self.ledger = opened(folder, self.keys)
        self.ledger.restored("run", 0)
        self.steps: Steps | None = None
        self.answer: object = None
        self.whose = ""
        self.named = 0
        self.asked: dict[str, str] = {}
        self.said: dict[str, list[str]] = {who: [] for who in WHO}
        self.before: set[str] = set()

    def close(self) -> None:
        self.ledger.close()

    def do(self, move: str, who: str, ahead: bool) -> None:
        getattr(self, move)(who, ahead)
        assert self.ledger.counts().adds_up

    def step(self, who: str, ahead: bool) -> None:
        if self.steps is None:
            return
        try:
            step = self.steps.send(self.answer)
        except StopIteration:
            self.steps = None
            return
        self.answer = step.run(self.ledger)
        if step.alone and self.whose and not self.ledger.forgetting_under_way():
            self.before |= set(self.said[self.whose])
            self.said[self.whose].clear()
            self.whose = ""

    def begin(self, who: str, ahead: bool) -> None:
        if self.steps is None and not self.ledger.forgetting_under_way():
            self.steps, self.answer, self.whose = forget(Wanted(owner=who)), None, who

    def arrive(self, who: str, ahead: bool) -> None:
        """Announced; its answer may come much later, or never."""
        self.named += 1
        name = f"t{self.named}"
        self.ledger.arrive(self._asked(name, who, ahead))
        self.said[who].append(name)
        self.asked[name] = who

    def record(self, who: str, ahead: bool) -> None:
        name = next((name for name, owner in self.asked.items() if owner == who), None)
        if name is None:
            return
        del self.asked[name]
        turn = serve(self._asked(name, who, ahead), self._talk(name), f"answer {name}")
        self.ledger.record(turn)
        more = self._talk(name) + reply(f"answer {name}") + user("thanks")
        follow = ask(f"{name}-next", more, owner=who, session=name, at=now(self.ledger) + AHEAD_S * ahead)
        self.ledger.arrive(follow)

    def judge(self, who: str, ahead: bool) -> None:
        for case in self.ledger.awaiting_judgement(2):
            judge(self.ledger, case.turn_id)

    def lease(self, who: str, ahead: bool) -> None:
        lent = self.ledger.lease("run", self.ledger.taken_step() + 1, 2, now=0.0, timeout_s=1e12, minimum=1)
        if lent is None or not ahead:
            return
        if self.ledger.confirm(lent.lease_id, "run", 1.0):
            self.ledger.applied(lent.lease_id, "run", {})

    def look(self, who: str, ahead: bool) -> None:
        everything_works(self.ledger)

    def crash(self, who: str, ahead: bool) -> None:
        self.ledger.close()
        self.keys = KeyStore(self.keys.folder)
        self.ledger = opened(self.folder, self.keys)
        self.steps, self.answer = (resume(), None) if self.ledger.forgetting_under_way() else (None, None)

    def end(self) -> None:
        while self.steps is not None:
            self.step("", False)
        everything_works(self.ledger)
        for row in self.ledger.turns(10_000):
            turn = self.ledger.turn(row.turn_id)
            assert turn is not None
            if row.turn_id.removesuffix("-next") in self.before:
                assert row.owner == "forgotten" and turn.response_text == ""
            elif row.owner != "forgotten":
                assert turn.response_text == f"answer {row.turn_id}" and turn.arrival.messages == self._talk(
                    row.turn_id
                )
        kept = {row.turn_id for row in self.ledger.turns(10_000) if row.owner != "forgotten"}
        said_since = {name for names in self.said.values() for name in names}
        assert kept == said_since - set(self.asked), "what was said since is whole, and nothing else is left"

    def _talk(self, name: str) -> Talk:
        return user(f"question {name}")

    def _asked(self, name: str, who: str, ahead: bool) -> Arrival:
        return ask(name, self._talk(name), owner=who, session=name, at=now(self.ledger) + AHEAD_S * ahead)


def party(schedule: list[tuple[str, str, bool]]) -> Party:
    with tempfile.TemporaryDirectory() as folder:
        held = Party(Path(folder) / "state")
        try:
            for move in schedule:
                held.do(*move)
            held.end()
        finally:
            held.close()
    return held


MOVE = st.tuples(st.sampled_from(MOVES), st.sampled_from(WHO), st.booleans())
BOUNDED = {"suppress_health_check": list(HealthCheck), "deadline": None, "database": None}
