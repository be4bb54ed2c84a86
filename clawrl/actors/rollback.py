"""Going back to an earlier version, as steps on the ledger that may be repeated after any crash.

An alarm commits the weights of the newest healthy version under a new number (`roll_back`), an operator those of any
version that is kept (`to_version`). The trainer still holds
what came after it: until its *checkpoint* says that it went back, too, it is told to at every lease (`pending_rewind`),
and nothing of its own is published. A checkpoint is what a restart finds, so one from before the rollback undoes the
trainer's word (`restored_from`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clawrl.guards.alarms import Alarm
from clawrl.ledger.staleness import REWOUND_AT
from clawrl.ledger.store import Ledger
from clawrl.ledger.versions import VersionRefused
from clawrl.messages import PolicyVersion
from clawrl.weights.kept import is_kept

_REWOUND = "trainer_rewound"


def roll_back(ledger: Ledger, alarm: Alarm, healthy: Sequence[int]) -> PolicyVersion | None:
    """The newest healthy version older than the alarm's whose snapshot is on disk, else the start, serves again.

    ``None`` if there is none, or nothing newer than it serves.
    """
    current = ledger.current_version()
    for number in (*sorted((v for v in healthy if 0 < v < alarm.version), reverse=True), 0):
        wanted = ledger.version(number)
        if wanted is not None and current is not None and Path(wanted.snapshot).exists():
            return _by("guard", ledger, ledger.roll_back(number)) if number < current.version else None
    return None


def to_version(ledger: Ledger, number: int) -> PolicyVersion:
    """The weights of version ``number`` serve again, healthy or not. Raises `VersionRefused` if they are not kept.

    Looked for and committed in one transaction: the trainer asks within another one, after it has put a snapshot
    aside and before it deletes it, what is in use (`clawrl.weights.snapshot.prune`).
    """
    wanted = ledger.version(number)
    if wanted is None or not is_kept(Path(wanted.snapshot)):
        raise VersionRefused(f"version {number} is not kept")
    return _by("operator", ledger, ledger.roll_back(number))


def _by(who: str, ledger: Ledger, version: PolicyVersion) -> PolicyVersion:
    """Who asked first for a rollback is written down with it."""
    if "by" not in version.stats:
        ledger.annotate_version(version.version, {**version.stats, "by": who})
    return ledger.version(version.version) or version


def pending_rewind(ledger: Ledger) -> PolicyVersion | None:
    """The version that the trainer must go back to before it does anything else."""
    newest = ledger.newest_rollback()
    return None if newest is None or newest.stats.get(_REWOUND) else newest


def rewound(ledger: Ledger, run_id: str, version: int) -> None:
    """The trainer of this run has gone back to ``version`` and written its checkpoint."""
    pending = pending_rewind(ledger)
    if pending is not None and pending.version == version and ledger.is_current(run_id):
        ledger.annotate_version(version, {**pending.stats, _REWOUND: True, REWOUND_AT: ledger.taken_step()})


def restored_from(ledger: Ledger, rewound_to: int) -> None:
    """A run starts from a checkpoint that had gone back to version ``rewound_to`` (0: never)."""
    newest = ledger.newest_rollback()
    if newest is not None and newest.version > rewound_to and newest.stats.get(_REWOUND):
        ledger.annotate_version(newest.version, {**newest.stats, _REWOUND: False})


def why_not_publish(ledger: Ledger) -> str | None:
    """Why nothing of the trainer's may be published now."""
    rewind = pending_rewind(ledger)
    if rewind is not None:
        return f"version {rewind.version} was rolled back to, and the trainer must rewind first"
    pause = ledger.paused()
    return f"the guard froze learning: {pause.reason}" if pause is not None and pause.by == "guard" else None
