"""Which moves a turn may make, as data.

``MOVES`` is the whole truth but for one clause: a dropped turn is judged again only if its reason is in
``REVIVABLE``. Nothing else in the ledger decides legality. `Place` is a state together with exactly the
facts that belong to it, so that a dropped turn without a reason or a leased one without a step cannot be
written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from clawrl.messages import DropReason, TurnId, TurnState

_FORWARD: Mapping[TurnState, frozenset[TurnState]] = {
    TurnState.SERVED: frozenset({TurnState.AWAITING_NEXT}),
    TurnState.AWAITING_NEXT: frozenset({TurnState.JUDGING}),
    TurnState.JUDGING: frozenset({TurnState.JUDGED}),
    TurnState.JUDGED: frozenset({TurnState.QUEUED}),
    TurnState.QUEUED: frozenset({TurnState.LEASED}),
    TurnState.LEASED: frozenset({TurnState.APPLIED}),
    TurnState.APPLIED: frozenset({TurnState.TRAINED}),
}

# A lease that expired or whose run was replaced; a trainer that restored an older checkpoint.
_BACK: frozenset[TurnState] = frozenset({TurnState.LEASED, TurnState.APPLIED, TurnState.TRAINED})

# A person gave feedback before the turn was lent: it is judged again, with that.
_AGAIN: frozenset[TurnState] = frozenset({TurnState.JUDGED, TurnState.QUEUED, TurnState.DROPPED})

REVIVABLE: frozenset[DropReason] = frozenset(
    {
        DropReason.NO_EVIDENCE,
        DropReason.SESSION_ENDED,
        DropReason.JUDGE_ABSTAINED,
        DropReason.NEUTRAL,
        DropReason.NO_HINT,
        DropReason.TEACHER_FAILED,
    }
)
"""Drops for want of an opinion or of something to teach, which feedback may bring."""

TERMINAL: frozenset[TurnState] = frozenset({TurnState.TRAINED, TurnState.DROPPED})
"""States that a turn rests in. ``trained`` is left only when a checkpoint without its step is restored, ``dropped``
only when feedback comes for a revivable turn."""

HELD: frozenset[TurnState] = frozenset({TurnState.LEASED, TurnState.APPLIED, TurnState.TRAINED})
"""States that belong to one optimizer step of one lease."""


def _moves_from(state: TurnState) -> frozenset[TurnState]:
    moves = _FORWARD.get(state, frozenset())
    if state in _BACK:
        moves |= {TurnState.QUEUED}
    if state in _AGAIN:
        moves |= {TurnState.JUDGING}
    if state not in TERMINAL:
        moves |= {TurnState.DROPPED}
    return moves


MOVES: Mapping[TurnState, frozenset[TurnState]] = MappingProxyType({s: _moves_from(s) for s in TurnState})


class IllegalMove(ValueError):
    """Somebody asked for a move that is not legal."""


def is_legal(source: TurnState | None, target: TurnState, reason: DropReason | None = None) -> bool:
    """``source`` ``None`` is a turn that is not recorded yet; ``reason`` is why the source is dropped, if it is."""
    if source is None:
        return target is TurnState.SERVED
    return target in MOVES[source] and (source is not TurnState.DROPPED or reason in REVIVABLE)


def check_move(turn_id: TurnId, source: TurnState | None, target: TurnState, reason: DropReason | None = None) -> None:
    """Refuses a move that is not legal."""
    if not is_legal(source, target, reason):
        why = "" if reason is None else f" ({reason})"
        raise IllegalMove(f"turn {turn_id}: {source or 'nothing'}{why} -> {target} is not a legal move")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A state with its facts: the reason of a drop, the step and lease of a held turn."""

    state: TurnState
    reason: DropReason | None = None
    step: int | None = None
    lease_id: str | None = None

    def __post_init__(self) -> None:
        if (self.state is TurnState.DROPPED) != (self.reason is not None):
            raise ValueError(
                f"{self.state} with reason {self.reason}: a reason belongs to dropped turns and only to them"
            )
        held = self.state in HELD
        if held != (self.step is not None) or held != (self.lease_id is not None):
            raise ValueError(
                f"{self.state} with step {self.step}, lease {self.lease_id}: both belong to {sorted(HELD)}"
            )

    @property
    def detail(self) -> str:
        if self.reason is not None:
            return str(self.reason)
        return "" if self.step is None else f"step {self.step}"


SERVED = Place(state=TurnState.SERVED)
AWAITING_NEXT = Place(state=TurnState.AWAITING_NEXT)
JUDGING = Place(state=TurnState.JUDGING)
JUDGED = Place(state=TurnState.JUDGED)
QUEUED = Place(state=TurnState.QUEUED)


def dropped(reason: DropReason) -> Place:
    return Place(state=TurnState.DROPPED, reason=reason)


def held(state: TurnState, step: int, lease_id: str) -> Place:
    return Place(state=state, step=step, lease_id=lease_id)
