"""A judge without an opinion: nothing trains, so that a model goes on doing what it was made to do."""

from __future__ import annotations

from clawrl.messages import Judgement, Message, Turn


def abstains(turn: Turn, evidence: tuple[Message, ...]) -> Judgement:
    return Judgement(turn_id=turn.turn_id, verdict=None, score=None, votes=(), judge="silent", seconds=0.0)
