"""What everything passes on its way into the ledger: text is redacted, hashes over text are keyed, names are checked.

The ledger matches requests to turns by hashes over what was said before anything was redacted. Unkeyed, those of a
short text could be found by trying; keyed with the owner's key they say nothing without it, and nothing at all after it
is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeVar

from clawrl.ledger.blanks import blank_turn
from clawrl.ledger.codec import NOBODY, Codec
from clawrl.messages import Arrival, Feedback, Judgement, TeacherTargets, Turn

_Name = TypeVar("_Name", str, str | None)


class Screen(Protocol):
    """Takes out what must not be kept. A turn in which something was found comes back without its ids, and says so."""

    def arrival(self, arrival: Arrival) -> Arrival: ...

    def turn(self, turn: Turn) -> Turn: ...

    def judgement(self, judgement: Judgement) -> Judgement: ...

    def targets(self, targets: TeacherTargets) -> TeacherTargets: ...

    def feedback(self, feedback: Feedback) -> Feedback: ...

    def is_clean(self, text: str) -> bool: ...


class AsItIs:
    """Finds nothing."""

    def arrival(self, arrival: Arrival) -> Arrival:
        return arrival

    def turn(self, turn: Turn) -> Turn:
        return turn

    def judgement(self, judgement: Judgement) -> Judgement:
        return judgement

    def targets(self, targets: TeacherTargets) -> TeacherTargets:
        return targets

    def feedback(self, feedback: Feedback) -> Feedback:
        return feedback

    def is_clean(self, text: str) -> bool:
        return True


class Gate:
    """What is ``late``, of somebody who was forgotten, is keyed with nobody's key, and none is made for it."""

    def __init__(self, screen: Screen, codec: Codec) -> None:
        self.screen = screen
        self._codec = codec

    def arrival(self, arrival: Arrival, *, late: bool = False) -> Arrival:
        return self._keyed_arrival(self.screen.arrival(arrival), late)

    def turn(self, turn: Turn, *, late: bool = False) -> Turn:
        screened = self.keyed(self.screen.turn(turn), late=late)
        return replace(screened, arrival=self._keyed_arrival(screened.arrival, late))

    def keyed(self, turn: Turn, *, late: bool = False) -> Turn:
        """With the turn's own hashes as they are stored; its arrival is as it was."""
        owner, digest = NOBODY if late else turn.arrival.owner, self._codec.digest
        return replace(
            turn,
            reply_hash=digest(owner, turn.reply_hash) or "",
            answer_hash=digest(owner, turn.answer_hash) or "",
        )

    def named(self, arrival: Arrival) -> Arrival:
        """With its names as they are stored."""
        session, group = self.name(arrival.owner, arrival.session), self.name(arrival.owner, arrival.group)
        return replace(arrival, session=session, group=group)

    def name(self, owner: str, name: _Name) -> _Name:
        """A session's or a group's name; one that must not be kept has another in its place, always the same."""
        if name is None or self.screen.is_clean(name):
            return name
        return self._other_name(owner, name)

    def names(self, owner: str, name: str) -> set[str]:
        """What it may be called here: rules come and go."""
        return {name, self._other_name(owner, name)}

    def _other_name(self, owner: str, name: str) -> str:
        return f"private-{self._codec.pseudonym(owner, name)[:16]}"

    def _keyed_arrival(self, arrival: Arrival, late: bool) -> Arrival:
        owner, digest = NOBODY if late else arrival.owner, self._codec.digest
        return replace(
            self.named(arrival),
            prefix_hash=digest(owner, arrival.prefix_hash),
            messages_hash=digest(owner, arrival.messages_hash) or "",
            answer_hash=digest(owner, arrival.answer_hash),
            segment=digest(owner, arrival.segment) or "",
        )


def for_a_journal(turn: Turn, screen: Screen, *, keeps_untrainable: bool) -> Turn:
    """The turn as it may lie on a replica's disk. The ledger keys its hashes, so that they are as they were."""
    if not turn.arrival.may_train and not keeps_untrainable:
        return blank_turn(turn)
    return screen.turn(turn)
