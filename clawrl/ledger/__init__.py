"""The ledger of turns: `Ledger` and what it answers with. See `clawrl.ledger.store` for its promises."""

from clawrl.ledger.checkpoint_standing import ForeignCheckpoint
from clawrl.ledger.database import LedgerFileError
from clawrl.ledger.leases import StepTaken
from clawrl.ledger.runs import FencedRun
from clawrl.ledger.states import IllegalMove
from clawrl.ledger.store import Ledger
from clawrl.ledger.versions import VersionRefused
from clawrl.ledger.views import (
    Counts,
    FeedbackOutcome,
    FeedbackTaken,
    JudgedTurn,
    JudgeStats,
    LeasedTurns,
    Linked,
    Pause,
    Recorded,
    Restored,
    StepRow,
    StepState,
    Swept,
    Transition,
    TurnRow,
)

__all__ = [
    "Counts",
    "FeedbackOutcome",
    "FeedbackTaken",
    "FencedRun",
    "ForeignCheckpoint",
    "IllegalMove",
    "JudgeStats",
    "JudgedTurn",
    "LeasedTurns",
    "Ledger",
    "LedgerFileError",
    "Linked",
    "Pause",
    "Recorded",
    "Restored",
    "StepRow",
    "StepState",
    "StepTaken",
    "Swept",
    "Transition",
    "TurnRow",
    "VersionRefused",
]
