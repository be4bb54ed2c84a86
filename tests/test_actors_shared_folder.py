"""A rank of the trainer begins only where it sees the coordinator's own state folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clawrl.actors import shared_folder
from clawrl.actors.shared_folder import StateFolderNotShared, check_state_folder
from clawrl.config import read_deployment
from clawrl.ledger.folder import hold
from tests.live import REPOSITORY


class Pinged:
    def __init__(self, *pids: int) -> None:
        self.pids = list(pids)

    def ask_now(self, method: str, *, timeout_s: float) -> int:
        assert method == "ping"
        return self.pids.pop(0) if len(self.pids) > 1 else self.pids[0]


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(shared_folder, "_PAUSE_S", 0.0)
    laptop = read_deployment(REPOSITORY / "deployments" / "laptop.yaml")
    return laptop.model_copy(update={"state_dir": str(tmp_path / "state")})


def test_the_coordinators_own_folder_is_fine_also_when_it_has_just_been_restarted(deployment: Any) -> None:
    held = hold(deployment.state_path, "laptop")
    check_state_folder(deployment, Pinged(os.getpid()))  # type: ignore[arg-type]
    check_state_folder(deployment, Pinged(1, os.getpid()))  # type: ignore[arg-type]
    held.release()


def test_a_folder_of_the_ranks_own_machine_is_refused_with_a_remedy(deployment: Any) -> None:
    with pytest.raises(
        StateFolderNotShared, match=r"state_dir: the trainer runs on .*put CLAWRL_HOME on a file system"
    ):
        check_state_folder(deployment, Pinged(os.getpid()))  # type: ignore[arg-type]
    # Left behind by another coordinator, once.
    hold(deployment.state_path, "laptop").release()
    with pytest.raises(StateFolderNotShared, match="is not the folder that the coordinator has"):
        check_state_folder(deployment, Pinged(os.getpid() + 1))  # type: ignore[arg-type]
