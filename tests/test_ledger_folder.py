"""A state folder has one holder: the second is refused by name, and a holder that died is none."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from clawrl.ledger.folder import FolderInUse, Holder, hold, holder

ROOT = Path(__file__).parents[1]
CHILD = """
import sys, time
from pathlib import Path
from clawrl.ledger.folder import hold
held = hold(Path(sys.argv[1]), "child")
sys.stdout.write("held\\n")
sys.stdout.flush()
time.sleep(float(sys.argv[2]))
held.release()
"""


def child(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """Another process that holds the folder for so long."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(seconds)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_the_folder_is_made_and_tells_who_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    assert holder(folder) is None and not folder.exists()
    held = hold(folder, "one")
    found = holder(folder)
    assert found is not None
    assert (found.name, found.pid, found.host) == ("one", os.getpid(), socket.gethostname())
    held.release()
    assert holder(folder) is None


def test_a_second_deployment_is_refused_with_both_names_and_the_first_keeps_the_folder(tmp_path: Path) -> None:
    held = hold(tmp_path, "one")
    with pytest.raises(FolderInUse, match=rf"'two' cannot have it while deployment 'one' \(process {os.getpid()} on"):
        hold(tmp_path, "two", patience_s=0.0)
    found = holder(tmp_path)
    assert found is not None and found.name == "one"
    held.release()
    hold(tmp_path, "two", patience_s=0.0).release()


def test_a_shorter_name_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    hold(tmp_path, "a-name-that-is-rather-long").release()
    held = hold(tmp_path, "x")
    found = holder(tmp_path)
    assert found is not None and found.name == "x" and (tmp_path / "holder.json").read_text().endswith("}")
    held.release()


def test_a_holder_in_another_process_counts_until_it_is_killed(tmp_path: Path) -> None:
    process = child(tmp_path, 600.0)
    found = holder(tmp_path)
    assert found is not None and (found.name, found.pid) == ("child", process.pid)
    with pytest.raises(FolderInUse, match=f"process {process.pid} "):
        hold(tmp_path, "one", patience_s=0.0)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert holder(tmp_path) is None
    hold(tmp_path, "one", patience_s=0.0).release()


def test_a_holder_that_is_just_ending_is_waited_for(tmp_path: Path) -> None:
    process = child(tmp_path, 0.3)
    held = hold(tmp_path, "one", patience_s=120.0)
    assert process.wait() == 0
    held.release()


def test_a_lock_that_nobody_signed_is_still_a_holder(tmp_path: Path) -> None:
    held = hold(tmp_path, "one")
    (tmp_path / "holder.json").write_text("{")
    found = holder(tmp_path)
    assert isinstance(found, Holder) and found.name == "unknown"
    with pytest.raises(FolderInUse, match="another deployment lives"):
        hold(tmp_path, "two", patience_s=0.0)
    held.release()


def test_a_second_coordinator_on_the_folder_is_refused_until_the_first_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.office import Office

    monkeypatch.setattr("clawrl.actors.coordinator.hold", partial(hold, patience_s=0.0))

    async def run() -> None:
        first = Office(tmp_path, name="one").open()
        with pytest.raises(FolderInUse, match="'two' cannot have it while deployment 'one'"):
            Office(tmp_path, name="two").open()
        assert (await first.status())["name"] == "one"
        await first.close()
        second = Office(tmp_path, name="two").open()
        await second.close()

    asyncio.run(run())
