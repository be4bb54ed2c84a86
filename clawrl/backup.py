"""A copy of a deployment's state folder that can take its place, made while the deployment runs or after it stopped.

In: a deployment, on the machine where its coordinator runs. Out: a folder with what a start reads (`ledger.sqlite`,
complete checkpoints, the snapshots of the versions that are kept, journals, the guards' baseline) and
``backup.json``, which says of what and when. It appears whole, or not at all, and never in the place of another.

The parts are copied in an order that makes them agree, whatever happens between them:

1. journals before the ledger: a turn that is handed in meanwhile is in both, and is recorded once;
2. checkpoints before the ledger, which then knows the steps of each: a ledger that is newer than its checkpoint has
   turns trained again that the checkpoint lacks, while one that is older would have to refuse it;
3. the ledger by SQLite's online backup: one moment of it, over a connection that only reads, from a process of its own
   (one in the coordinator's would take that one's locks away);
4. the snapshots that this copy of the ledger names. One that was pruned meanwhile means that a newer version serves,
   and parts 3 and 4 are done again.

Keys and models are not part of it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import clawrl
from clawrl.config import Deployment
from clawrl.durable import sync_path
from clawrl.ledger import Ledger, LedgerFileError
from clawrl.ledger.folder import holder
from clawrl.on_disk import deployment_of, ledger_file_of
from clawrl.training.checkpoint import read_step
from clawrl.weights.snapshot import base_of

_TRIES = 5
_PAUSE_S = 0.2
T = TypeVar("T")


class BackupError(RuntimeError):
    """There is nothing to copy, or no place for it; the text names the remedy."""


class _Gone(Exception):
    """What was being copied has been pruned meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What is in the copy. ``folder`` is the state folder that it was made of, and where it has to be put back.

    ``step`` is that of the newest checkpoint and ``version`` the one that served; ``None`` where there was none yet.
    """

    deployment: str
    folder: str
    host: str
    release: str
    made_at: float
    turns: int
    step: int | None
    version: int | None


def back_up_file(file: Path, target: Path) -> Backup:
    """`back_up` for the deployment that a file describes. Raises `BackupError`."""
    return back_up(deployment_of(file, BackupError), target)


def back_up(deployment: Deployment, target: Path) -> Backup:
    """Copies the state folder to ``target``, which must not be there or be empty. Raises `BackupError`, `OSError`."""
    folder = deployment.state_path
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(f"{target} is there already and is not overwritten; name another folder, or remove it")
    if target.absolute().is_relative_to(folder):
        raise BackupError(
            f"{target} is inside the state folder {folder}; name a folder elsewhere, best on another disk"
        )
    ledger_file_of(deployment, BackupError)
    if (now := holder(folder)) is not None and now.host != socket.gethostname():
        raise BackupError(
            f"{folder} is in use by {now}: SQLite's locks do not reach from one machine to another; run this on "
            f"{now.host}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        aside = Path(scratch) / "state"
        # As in the original: conversations lie in here.
        aside.mkdir(mode=0o700)
        made = _copy(deployment, folder, aside)
        (aside / "backup.json").write_text(json.dumps(asdict(made), indent=2) + "\n")
        for path in aside.rglob("*"):
            sync_path(path)
        aside.rename(target)
        sync_path(target.parent)
    return made


def _copy(deployment: Deployment, folder: Path, aside: Path) -> Backup:
    made_at = time.time()
    if (folder / "journal").is_dir():
        shutil.copytree(folder / "journal", aside / "journal", copy_function=_copy_if_there)
    step = _again(lambda: _copy_checkpoints(folder / "checkpoints", aside / "checkpoints"), "checkpoints")
    turns, version = _again(lambda: _copy_ledger_and_snapshots(deployment, folder, aside), "snapshots")
    _copy_if_there(folder / "guards.json", aside / "guards.json")
    return Backup(
        deployment=deployment.name,
        folder=str(folder),
        host=socket.gethostname(),
        release=clawrl.__version__,
        made_at=made_at,
        turns=turns,
        step=step,
        version=version,
    )


def _again(copy: Callable[[], T], what: str) -> T:
    for _ in range(_TRIES):
        try:
            return copy()
        except _Gone:
            time.sleep(_PAUSE_S)
    raise BackupError(f"{what} went away {_TRIES} times while they were copied; `clawrl pause` first, then try again")


def _copy_checkpoints(source: Path, target: Path) -> int | None:
    """Complete ones; the step of the newest. What else lies there is Ray Train's, which a start does not need."""
    shutil.rmtree(target, ignore_errors=True)
    steps = []
    for found in sorted(source.iterdir()) if source.is_dir() else ():
        if found.is_dir() and read_step(found) is not None:
            _copy_folder(found, target / found.name)
            # One that goes loses its index first: what has it still was whole while it was copied.
            if (step := read_step(found)) is None:
                raise _Gone
            steps.append(step)
    return max(steps, default=None)


def _copy_ledger_and_snapshots(deployment: Deployment, folder: Path, aside: Path) -> tuple[int, int | None]:
    """How many turns the copy of the ledger holds, and which version serves by it."""
    copy = aside / "ledger.sqlite"
    copy_ledger(folder / "ledger.sqlite", copy)
    try:
        with Ledger(copy, deployment.ledger) as ledger:
            turns, current = ledger.counts().recorded, ledger.current_version()
            needed = set(_snapshots(ledger))
    except LedgerFileError as error:
        raise BackupError(f"{folder / 'ledger.sqlite'} cannot be read: {error}") from error
    # Adapters are worth nothing without the weights that they are added to.
    needed |= {base for snapshot in needed if (base := base_of(snapshot)) is not None}
    for snapshot in sorted(needed):
        kept = aside / "snapshots" / snapshot.name
        if not kept.is_dir():
            _copy_folder(snapshot, kept)
    return turns, None if current is None else current.version


def _snapshots(ledger: Ledger) -> Iterator[Path]:
    """That of the version that serves, which has to be there, and those of all older ones that still are."""
    current = ledger.current_version()
    for version in ledger.versions(limit=2**31):
        if version == current or Path(version.snapshot).is_dir():
            yield Path(version.snapshot)


def copy_ledger(source: Path, target: Path) -> None:
    """One moment of a ledger that may be written to meanwhile. Raises `BackupError`."""
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=10.0)) as theirs,
            closing(sqlite3.connect(target)) as ours,
        ):
            # In one piece: between pieces a writer would make it begin anew, for ever where turns keep coming.
            theirs.backup(ours)
            (verdict,) = ours.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied: {error}") from error
    if verdict != "ok":
        raise BackupError(f"{source} is damaged ({verdict}); keep older backups and put one of them back")


def _copy_folder(source: Path, target: Path) -> None:
    """Raises `_Gone` where it is being removed."""
    shutil.rmtree(target, ignore_errors=True)
    try:
        before = sorted(path.name for path in source.iterdir())
        shutil.copytree(source, target)
        after = sorted(path.name for path in source.iterdir())
    except (FileNotFoundError, NotADirectoryError, shutil.Error) as error:
        if source.is_dir() and isinstance(error, shutil.Error) and not _of_missing_files(error):
            raise
        raise _Gone from error
    if before != after or before != sorted(path.name for path in target.iterdir()):
        raise _Gone


def _of_missing_files(error: shutil.Error) -> bool:
    return all(not Path(source).exists() for source, _, _ in error.args[0])


def _copy_if_there(source: str | Path, target: str | Path) -> None:
    """A journal goes when its turns have been handed in."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        Path(target).unlink(missing_ok=True)
