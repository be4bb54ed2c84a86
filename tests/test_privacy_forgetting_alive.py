"""Who is forgotten goes on talking, everybody else goes on learning: at every step, over crashes, with any clock."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clawrl.ledger import Ledger
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, TurnId, TurnState
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.forgetting import Steps, Wanted, forget, resume, run_steps
from clawrl.privacy.keys import KeyStore
from clawrl.privacy.opening import open_keys
from tests.ledger_kit import ask, ids, judge, queue, reply, rows, serve, take_step, to_judging, user
from tests.office import Office, talk
from tests.privacy_kit import SECRET, found_in, opened, said

AHEAD_S = 900.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl.ledger.forgetting.BATCH", 2)


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


def one_more(ledger: Ledger, name: str, owner: str = "ann", ahead: float = 0.0, session: str = "s") -> None:
    """A turn that is answered, goes on and is judged: it lies in the queue."""
    talk, at = user(f"{SECRET} {name}"), now(ledger) + ahead
    turn = said(name, talk, "indeed", owner=owner, session=f"{session}-{name}", at=at)
    ledger.arrive(turn.arrival)
    ledger.record(turn)
    talk = talk + reply("indeed") + user("thanks")
    ledger.arrive(ask(f"{name}-next", talk, owner=owner, session=f"{session}-{name}", at=at))
    if ahead >= 0.0:
        assert judge(ledger, name)


def everything_works(ledger: Ledger) -> None:
    """All that reads everybody's rows."""
    ledger.awaiting_judgement()
    ledger.find_turns(TurnFilter())
    for row in ledger.turns(1_000):
        ledger.turn(row.turn_id), ledger.life(row.turn_id), ledger.judge_request(row.turn_id)
    assert ledger.counts().adds_up


@pytest.mark.parametrize("ahead", [0.0, AHEAD_S, -AHEAD_S], ids=["same clock", "clock ahead", "clock behind"])
@pytest.mark.parametrize(
    "wanted", [Wanted(owner="ann"), Wanted(owner="ann", session="s-old0")], ids=["user", "session"]
)
def test_who_talks_at_every_step_leaves_nothing_that_stands_in_the_way(
    state: Path, ahead: float, wanted: Wanted
) -> None:
    ledger = opened(state)
    ledger.restored("run", 0)
    to_judging(ledger, "bob", owner="bob")
    for number in range(5):
        one_more(ledger, f"old{number}")

    def between(ran: int) -> None:
        one_more(ledger, f"new{ran}", ahead=ahead)
        everything_works(ledger)

    report = stepwise(ledger, forget(wanted), between)
    everything_works(ledger)
    assert ledger.awaiting_judgement()[0].turn_id == "bob"
    judge(ledger, "bob")
    assert ids(ledger.lease("run", 1, 100, now=0.0, timeout_s=60.0, minimum=1)).count("bob") == 1
    if wanted.session is None:
        # The last steps came after her key was gone: what she said then is whole.
        hers = {row.turn_id for row in ledger.turns(1_000) if row.owner == "ann"}
        assert report["turns"] >= 5 + 3 * (ahead >= 0.0) and report["keys_deleted"] == 1
        assert all(ledger.turn(TurnId(name)).response_text == "indeed" for name in hers)  # type: ignore[union-attr]
        assert not any(name.startswith("old") for name in hers)
        assert bool(hers) == (ahead >= 0.0), "the steps after the key was deleted"


def test_rows_whose_time_lies_in_the_future_go_too(state: Path) -> None:
    ledger = opened(state, encrypt=False)
    one_more(ledger, "future", ahead=AHEAD_S)
    assert run_steps(ledger, forget(Wanted(owner="ann")))["turns"] == 1
    assert found_in(state, SECRET) == [] and rows(ledger, "hints") == 0


def test_a_turn_that_nobody_announced_is_refused_although_its_clock_is_ahead(state: Path) -> None:
    ledger = opened(state)
    one_more(ledger, "known", ahead=AHEAD_S)
    late = said("late", user(SECRET), SECRET, session="s", at=now(ledger) + AHEAD_S)
    run_steps(ledger, forget(Wanted(owner="ann")))
    ledger.record(late)
    assert ledger.turns(1)[0].drop_reason is DropReason.FORGOTTEN
    after = said("after", user("hello"), "hi", session="s", at=now(ledger) + 1.0)
    ledger.arrive(after.arrival)
    ledger.record(after)
    assert ledger.turns(1)[0].state is TurnState.AWAITING_NEXT, "announced afterwards, by a clock that is right"


@pytest.mark.parametrize("where", ["before the key goes", "after it"])
def test_a_crash_around_the_deletion_of_the_key_is_finished_while_she_talks(
    state: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = open_keys(state, PrivacyConfig())
    ledger = opened(state, keys)
    one_more(ledger, "old")

    def dies(self: Ledger, owner: str) -> bool:
        if where == "after it":
            keys.shred(owner)
        raise OSError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "shred", dies)
        with pytest.raises(OSError, match="power"):
            run_steps(ledger, forget(Wanted(owner="ann")))
    ledger.close()
    ledger = opened(state, KeyStore(keys.folder))
    one_more(ledger, "meanwhile")
    stepwise(ledger, resume(), lambda ran: everything_works(ledger))
    assert ledger.forgetting_under_way() == []
    assert {row.owner for row in ledger.turns()} == {"forgotten"}
    assert KeyStore(keys.folder).existing("ann") is None
    one_more(ledger, "later")
    everything_works(ledger)
    assert ledger.turn(TurnId("later")).response_text == "indeed"  # type: ignore[union-attr]
    told = run_steps(ledger, forget(Wanted(owner="ann")))
    assert told["turns"] == 3 and told["keys_deleted"] >= 1


def test_chats_go_on_while_their_user_is_forgotten_and_everybody_can_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path / "state").open()
        for number in range(4):
            await talk(coordinator, 10, session=f"s{number}")
        forgetting = asyncio.create_task(coordinator.forget(Wanted(owner="o")))

        async def chat(name: str) -> None:
            await asyncio.sleep(0.0)
            await talk(coordinator, 4, session=name)

        report, *_ = await asyncio.gather(forgetting, *(chat(f"live{number}") for number in range(6)))
        assert report["turns"] >= 40 and report["keys_deleted"] == 1
        await talk(coordinator, 2, session="afterwards")
        await coordinator._db.run(everything_works)
        await coordinator._desk.take_what_is_owed()
        status = await coordinator.status()
        assert status["turns"]["adds_up"] and status["turns"]["recorded"] == 66
        assert (await coordinator.answered(TurnId("afterwards-1"), "o")) is not None
        await coordinator.close()

    asyncio.run(run())


# Who asked and went away.


def test_a_forgetting_goes_on_when_who_asked_for_it_goes_away_and_is_told_to_who_asks_again(tmp_path: Path) -> None:
    async def run() -> None:
        # No sweep that would finish it.
        coordinator = Office(tmp_path / "state", ledger__sweep_s=1_000.0).open()
        await talk(coordinator, 20)
        asked = asyncio.create_task(coordinator.forget(Wanted(owner="o", asked="first")))
        while not await coordinator._db.run(lambda ledger: ledger.forgetting_under_way()):
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(5):
            while await coordinator._db.run(lambda ledger: ledger.forgetting_under_way()):
                await asyncio.sleep(0.01)
        assert coordinator._keys.existing("o") is None
        again = await coordinator.forget(Wanted(owner="o", asked="second"))
        assert (again["found"], again["turns"], again["keys_deleted"]) == (True, 20, 1)
        assert not (await coordinator.forget(Wanted(owner="o", asked="third")))["found"]
        await coordinator.close()

    asyncio.run(run())


def test_a_forgetting_that_met_with_an_error_is_finished_by_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path / "state").open()
        await talk(coordinator, 6)
        shred = Ledger.shred

        def fails_once(self: Ledger, owner: str) -> bool:
            monkeypatch.setattr(Ledger, "shred", shred)
            raise OSError("no space left")

        monkeypatch.setattr(Ledger, "shred", fails_once)
        with pytest.raises(OSError, match="no space"):
            await coordinator.forget(Wanted(owner="o"))
        async with asyncio.timeout(5):
            while coordinator._keys.existing("o") is not None:
                await asyncio.sleep(0.01)
        assert (await coordinator.forget(Wanted(owner="o")))["turns"] == 6
        await coordinator.close()

    asyncio.run(run())


# Keys.


def test_a_late_answer_makes_no_new_key(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    ledger = opened(state, keys)
    one_more(ledger, "old")
    late = said("late", user(SECRET), SECRET, session="s", at=now(ledger))
    ledger.arrive(late.arrival)
    unannounced = said("unannounced", user(SECRET), SECRET, session="s", at=now(ledger))
    run_steps(ledger, forget(Wanted(owner="ann")))
    for turn in (late, unannounced):
        assert not ledger.is_duplicate(turn)
        ledger.arrive(turn.arrival)
        ledger.record(turn)
    assert [row.drop_reason for row in ledger.turns(2)] == [DropReason.FORGOTTEN] * 2
    assert KeyStore(keys.folder).owners() == []


@pytest.mark.parametrize("first", ["export", "forget"])
def test_forgetting_beside_a_sealed_export_leaves_no_new_key(tmp_path: Path, first: str) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path / "state").open()
        await talk(coordinator, 12)
        calls = {
            "export": lambda: coordinator.operator("export", TurnFilter(), None, 50, True),
            "forget": lambda: coordinator.forget(Wanted(owner="o")),
        }
        order = [first, *(name for name in calls if name != first)]
        tasks = [asyncio.create_task(calls[name]()) for name in order]
        tasks += [asyncio.create_task(calls["export"]()) for _ in range(8)]
        lending = [asyncio.create_task(coordinator.journal_keys("")) for _ in range(8)]
        await asyncio.gather(*tasks, *lending)
        assert coordinator._keys.existing("o") is None
        assert "o" not in KeyStore(coordinator._keys.folder).owners()
        found = await coordinator.journal_keys("")
        assert found is not None and "o" not in found[1] and await coordinator.journal_keys(found[0]) is None
        await coordinator.close()

    asyncio.run(run())


# The report.


def three_steps(ledger: Ledger) -> None:
    ledger.restored("run", 0)
    for step in (1, 2, 3):
        queue(ledger, f"t{step}", owner="ann")
        take_step(ledger, "run", step, 1)
    ledger.checkpointed("run", 3)


@pytest.mark.parametrize("asked", ["", "this call"], ids=["anew", "the same call"])
@pytest.mark.parametrize("after", range(8))
def test_after_a_crash_at_any_step_who_asks_again_is_told_all_of_it(state: Path, after: int, asked: str) -> None:
    keys = open_keys(state, PrivacyConfig())
    ledger = opened(state, keys)
    three_steps(ledger)
    steps, answer, wanted = forget(Wanted(owner="ann", asked=asked)), None, Wanted(owner="ann", asked=asked)
    done = False
    for _ in range(after):
        try:
            answer = steps.send(answer).run(ledger)
        except StopIteration:
            done = True
            break
    ledger.close()
    ledger = opened(state, KeyStore(keys.folder))
    run_steps(ledger, resume())
    report = run_steps(ledger, forget(wanted))
    if done and not asked:
        return  # it was answered
    told = (report["found"], report["turns"], report["steps"], report["keys_deleted"], report["unanswered"])
    if after == 7 and not asked:
        assert told[1] in (0, 3)
        return
    assert told == (True, 3, [1, 2, 3], 1, 3)
    assert all(rows(ledger, table) == 0 for table in ("hints", "evidence", "feedback"))


def test_the_same_call_twice_is_one_and_another_one_finds_nothing(state: Path) -> None:
    ledger = opened(state)
    three_steps(ledger)
    first = run_steps(ledger, forget(Wanted(owner="ann", asked="a")))
    assert first["turns"] == 3
    one_more(ledger, "back again")
    assert run_steps(ledger, forget(Wanted(owner="ann", asked="a"))) == first
    assert ledger.turn(TurnId("back again")).response_text == "indeed"  # type: ignore[union-attr]
    assert run_steps(ledger, forget(Wanted(owner="ann", asked="b")))["turns"] == 1
    assert not run_steps(ledger, forget(Wanted(owner="ann", asked="c")))["found"]


def test_what_was_found_names_nobody(state: Path) -> None:
    ledger = opened(state)
    one_more(ledger, "old", session="harbour")
    run_steps(ledger, forget(Wanted(owner="ann", session="harbour-old", asked="x")))
    run_steps(ledger, forget(Wanted(owner="ann")))
    for row in ledger._db.rows("SELECT * FROM forgettings"):
        assert row["owner"] is None and row["session"] is None
        assert not any("ann" in str(value) or "harbour" in str(value) for value in tuple(row))


# One row an interval.


def test_what_was_said_between_two_forgotten_turns_of_a_session_stays(state: Path) -> None:
    ledger = opened(state)
    ledger.record(said("first", user("x"), "r", session="s", at=now(ledger)))
    assert run_steps(ledger, forget(Wanted(turn_id=TurnId("first"))))["turns"] == 1
    between = said("between", user("unrelated"), "answer", session="s", at=now(ledger))
    ledger.record(said("second", user("z"), "r", session="s", at=now(ledger)))
    assert run_steps(ledger, forget(Wanted(turn_id=TurnId("second"))))["turns"] == 1
    ledger.record(between)  # out of a journal
    assert ledger.turn(TurnId("between")).response_text == "answer"  # type: ignore[union-attr]
    early = said("early", user("z"), "r", session="s", at=between.arrival.arrived_at - 3600.0)
    ledger.record(early)
    assert ledger.turn(TurnId("early")).response_text == "r", "before the first"  # type: ignore[union-attr]


def test_a_crash_in_the_second_forgetting_does_not_widen_the_first(state: Path) -> None:
    ledger = opened(state)
    at = now(ledger)
    for number, name in enumerate(("a", "b", "c")):
        ledger.record(said(name, user(name), "r", session="s", at=at - 100.0 + number))
    run_steps(ledger, forget(Wanted(turn_id=TurnId("c"))))
    for name in ("d", "e"):
        ledger.record(said(name, user(name), "r", session="s", at=now(ledger)))
    ledger.begin_forgetting(turn_id=TurnId("e"))
    run_steps(ledger, resume())
    kept = {row.turn_id for row in ledger.turns() if row.owner == "ann"}
    assert kept == {"a", "b", "d"}


def test_a_session_of_a_user_that_is_only_in_a_journal_is_forgotten(state: Path) -> None:
    ledger = opened(state)
    late = said("late", user(SECRET), SECRET, session="s", at=now(ledger))
    other = said("other", user("hello"), "hi", session="t", at=now(ledger))
    assert not run_steps(ledger, forget(Wanted(owner="ann", session="s")))["found"]
    ledger.record(late)
    ledger.record(other)
    by_id = {row.turn_id: row.drop_reason for row in ledger.turns()}
    assert by_id == {"late": DropReason.FORGOTTEN, "other": None}


def test_a_ledger_of_an_early_format_4_keeps_what_it_remembers(state: Path) -> None:
    ledger = opened(state)
    who = ledger._db.codec.pseudonym("owner", "ann")
    for statement in (
        "DROP TABLE forgettings",
        "CREATE TABLE forgotten (who TEXT PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL, owner TEXT,"
        " session TEXT) WITHOUT ROWID",
        f"INSERT INTO forgotten VALUES ('{who}', 0, {now(ledger)}, NULL, NULL), ('x', 0, {now(ledger)}, 'bob', NULL)",
    ):
        ledger._db.execute(statement)
    ledger.close()
    ledger = opened(state)
    ledger.record(said("late", user(SECRET), SECRET, at=1_000.0))
    assert ledger.turns(1)[0].drop_reason is DropReason.FORGOTTEN
    assert [scope.owner for scope in ledger.forgetting_under_way()] == ["bob"]
    run_steps(ledger, resume())
    opened(state).close()


# Schedules that nobody thought of.

MOVES = ("step", "step", "step", "arrive", "record", "record", "judge", "lease", "crash", "begin", "look")
FIRST = [(move, who, False) for who in ("ann", "bob") for move in ("arrive", "record", "arrive", "record", "judge")]
WHO = ("ann", "bob")


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

    def _talk(self, name: str):  # type: ignore[no-untyped-def]
        return user(f"question {name}")

    def _asked(self, name: str, who: str, ahead: bool):  # type: ignore[no-untyped-def]
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


moves = st.tuples(st.sampled_from(MOVES), st.sampled_from(WHO), st.booleans())
bounded = {"suppress_health_check": list(HealthCheck), "deadline": None, "database": None}


@settings(max_examples=30, derandomize=True, **bounded)  # type: ignore[arg-type]
@given(schedule=st.lists(moves, min_size=10, max_size=60))
def test_in_any_order_nothing_raises_counts_add_up_and_what_is_said_later_is_whole(
    schedule: list[tuple[str, str, bool]],
) -> None:
    party([*FIRST, ("begin", "ann", False), *schedule])


@pytest.mark.nightly
@settings(max_examples=300, **bounded)  # type: ignore[arg-type]
@given(schedule=st.lists(moves, min_size=30, max_size=200))
def test_in_many_long_schedules_nobody_who_talks_while_somebody_is_forgotten_loses_a_turn(
    schedule: list[tuple[str, str, bool]],
) -> None:
    party(schedule)


def test_one_schedule_goes_where_the_others_are_meant_to_go() -> None:
    talking = [("arrive", "ann", False), ("record", "ann", False), ("judge", "bob", False), ("lease", "bob", True)]
    bob = [("arrive", "bob", True), ("record", "bob", True)]
    held = party([*talking, *bob, ("begin", "ann", False), *(4 * [("step", "ann", False), *talking]), *talking])
    assert held.before and held.said["ann"] and held.said["bob"] and not held.whose
