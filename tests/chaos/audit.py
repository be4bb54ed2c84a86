"""Whether the graph kept its promises: what the ledger, the trainer and the users say must agree.

Each check is a function that returns complaints, a line for each thing that is wrong. All of them read values only, so
that made-up histories can show what they catch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from clawrl.ledger.states import TERMINAL, IllegalMove, check_move
from clawrl.ledger.views import StepState
from clawrl.messages import DropReason, TurnState
from clawrl.training.weights_lineage import UNTRAINED, follow
from tests.chaos.history import History, TurnFacts
from tests.chaos.notes import DeathNote, Outcome, RequestNote

_IN_WEIGHTS = frozenset({TurnState.APPLIED, TurnState.TRAINED})
_MAY_WAIT = frozenset({TurnState.AWAITING_NEXT, TurnState.QUEUED})
# The news of a death takes a moment to whoever waits for the dead.
_NEWS_S = 30.0


def audit(
    history: History,
    notes: Sequence[RequestNote],
    deaths: Sequence[DeathNote],
    *,
    batch_size: int,
    floor_grace_s: float,
) -> list[str]:
    """Every complaint of every check."""
    return [
        *adds_up(history),
        *is_settled(history, batch_size),
        *trains_once_or_drops(history),
        *steps_follow_each_other(history),
        *weights_and_ledger_agree(history),
        *versions_only_grow(history),
        *replicas_never_go_back(history),
        *answers_are_fresh(history, floor_grace_s),
        *answers_are_on_record(history, notes),
        *failures_have_a_death(notes, deaths),
    ]


# -- turns ------------------------------------------------------------------------------------------


def adds_up(history: History) -> list[str]:
    if history.recorded == len(history.turns):
        return []
    return [f"the ledger counted {history.recorded} turns and holds {len(history.turns)}"]


def is_settled(history: History, batch_size: int) -> list[str]:
    """After a quiet end nothing is under way: what waits, waits for its user or for a full batch."""
    wrong = [
        f"turn {turn.turn_id} is still {turn.state}"
        for turn in history.turns
        if turn.state not in _MAY_WAIT and turn.state not in TERMINAL
    ]
    queued = sum(turn.state is TurnState.QUEUED for turn in history.turns)
    return [*wrong, *([f"{queued} turns wait in the queue, a batch has {batch_size}"] if queued >= batch_size else [])]


def trains_once_or_drops(history: History) -> list[str]:
    """Replays each turn's log: legal moves, in the weights of one step at a time, ending where the turn is."""
    return [complaint for turn in history.turns for complaint in _life(turn)]


def _life(turn: TurnFacts) -> Iterator[str]:
    reason: DropReason | None = None
    for move in turn.moves:
        try:
            check_move(move.turn_id, move.source, move.target, reason)
        except IllegalMove as error:
            yield str(error)
        reason = DropReason(move.detail.split()[0]) if move.target is TurnState.DROPPED else None
    learned = sum(move.target is TurnState.APPLIED for move in turn.moves)
    undone = sum(move.target is TurnState.QUEUED and move.source in _IN_WEIGHTS for move in turn.moves)
    if learned - undone > 1:
        yield f"turn {turn.turn_id} was applied {learned} times and undone {undone} times"
    if (learned - undone == 1) != (turn.state in _IN_WEIGHTS):
        yield f"turn {turn.turn_id} is {turn.state}, but was applied {learned} times and undone {undone} times"
    if not turn.moves or turn.moves[-1].target is not turn.state:
        yield f"turn {turn.turn_id} is {turn.state}, which is not where its log ends"
    if (turn.state is TurnState.DROPPED) != (turn.reason is not None):
        yield f"turn {turn.turn_id} is {turn.state} with reason {turn.reason}"


# -- weights ----------------------------------------------------------------------------------------


def steps_follow_each_other(history: History) -> list[str]:
    """Of each number one step survives, and none is missing."""
    alive = sorted(step.step for step in history.steps if step.state is not StepState.UNDONE)
    wrong = [f"step {step} stands {n} times" for step, n in Counter(alive).items() if n > 1]
    missing = set(range(1, max(alive, default=0) + 1)) - set(alive)
    return wrong + [f"step {step} is missing" for step in sorted(missing)]


def weights_and_ledger_agree(history: History) -> list[str]:
    """The ledger's turns, step by step, are what the trainer says that its weights were made of."""
    learned: dict[int, list[str]] = defaultdict(list)
    for turn in history.turns:
        if turn.state in _IN_WEIGHTS:
            learned[turn.step or 0].append(turn.turn_id)
    last = max(learned, default=0)
    if history.trained is None:
        return [f"the ledger has {last} steps, and there is no checkpoint"] if last else []
    if history.trained.step != last:
        return [f"the ledger ends with step {last}, the last checkpoint with step {history.trained.step}"]
    lineage = UNTRAINED
    for step in range(1, last + 1):
        lineage = follow(lineage, step, learned[step])
    if lineage != history.trained.lineage:
        return [f"the weights after step {last} were not made of the turns that the ledger names"]
    return []


# -- versions ---------------------------------------------------------------------------------------


def versions_only_grow(history: History) -> list[str]:
    """``versions`` are in the order in which they were published."""
    numbers = [version.version for version in history.versions]
    return [
        f"version {later} was published after version {earlier}"
        for earlier, later in itertools.pairwise(numbers)
        if later <= earlier
    ]


def replicas_never_go_back(history: History) -> list[str]:
    """What begins on a replica after something ended there is not sampled by anything older."""
    wrong = []
    newest: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for turn in sorted(history.turns, key=lambda turn: turn.finished_at):
        if turn.newest is not None:
            seen = newest[turn.replica]
            seen.append((turn.finished_at, max(turn.newest, seen[-1][1] if seen else 0)))
    for turn in history.turns:
        seen = newest[turn.replica]
        before = bisect_right(seen, (turn.started_at, -1))
        if turn.oldest is not None and before and turn.oldest < seen[before - 1][1]:
            wrong.append(
                f"turn {turn.turn_id} was sampled by version {turn.oldest} on a replica that had served "
                f"version {seen[before - 1][1]}"
            )
    return wrong


def answers_are_fresh(history: History, grace_s: float) -> list[str]:
    """No answer is older than what had been current for ``grace_s`` when it began."""
    moments = [version.published_at for version in history.versions]
    wrong = []
    for turn in history.turns:
        current = bisect_right(moments, turn.started_at - grace_s)
        if turn.oldest is not None and current and turn.oldest < history.versions[current - 1].version:
            wrong.append(
                f"turn {turn.turn_id} was sampled by version {turn.oldest}, {grace_s:g} s after "
                f"version {history.versions[current - 1].version} had come"
            )
    return wrong


# -- requests ---------------------------------------------------------------------------------------


def answers_are_on_record(history: History, notes: Sequence[RequestNote]) -> list[str]:
    """What a user got whole is in the ledger, as it was read."""
    known = {turn.turn_id: turn for turn in history.turns}
    wrong = []
    for note in notes:
        if note.outcome is not Outcome.WHOLE:
            continue
        turn = known.get(note.turn_id or "")
        if turn is None:
            wrong.append(f"turn {note.turn_id} was answered at {note.ended_at:.1f} and is not in the ledger")
        elif (turn.text, turn.finish_reason) != (note.text, note.finish_reason):
            wrong.append(f"turn {note.turn_id} reads otherwise in the ledger than its user read it")
        elif note.version != turn.newest:
            wrong.append(f"turn {note.turn_id} said version {note.version} and is recorded with version {turn.newest}")
    return wrong


def failures_have_a_death(notes: Sequence[RequestNote], deaths: Sequence[DeathNote]) -> list[str]:
    """Only a stream that had begun may fail, and only when a policy replica died under it."""
    return [
        f"a request of {note.session} failed at {note.ended_at:.1f}, {_stage(note)}: {note.problem}"
        for note in notes
        if note.outcome is Outcome.FAILED and cause_of(note, deaths) is None
    ]


def cause_of(note: RequestNote, deaths: Sequence[DeathNote]) -> DeathNote | None:
    """The newest death of a replica that a failed request is excused by."""
    if note.first_at is None:
        return None
    under_it = [
        death
        for death in deaths
        if death.replicas
        and note.asked_at - 1.0 <= death.at <= note.ended_at + 1.0
        and note.ended_at - death.at <= _NEWS_S
    ]
    return max(under_it, key=lambda death: death.at, default=None)


def _stage(note: RequestNote) -> str:
    if note.first_at is None:
        return "before its first byte" if note.stream else "unstreamed"
    return "in the middle of its stream, under which no replica died"
