"""The proof that no turn is in the weights of two steps: the log of its moves, replayed."""

from __future__ import annotations

from collections import Counter

from clawrl.ledger.states import check_move
from clawrl.ledger.store import Ledger
from clawrl.messages import TurnState


def nothing_is_trained_twice(ledger: Ledger) -> int:
    """Each move of each turn is legal, and no turn was applied again before its step was undone. Returns how many were
    applied. The coordinator may go on writing meanwhile."""
    applied = 0
    for row in ledger.turns(100_000):
        log, state = ledger.transitions(row.turn_id), ledger.state(row.turn_id)
        for move in log:
            check_move(row.turn_id, move.source, move.target)
        moves = Counter(move.target for move in log)
        undone = sum(
            move.target is TurnState.QUEUED and move.source in (TurnState.APPLIED, TurnState.TRAINED) for move in log
        )
        assert moves[TurnState.APPLIED] - undone <= 1, log
        applied += moves[TurnState.APPLIED] > 0
        if ledger.transitions(row.turn_id) == log:
            assert log[-1].target is state
    return applied
