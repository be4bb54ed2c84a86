"""Whether this machine sees the state folder that the coordinator has.

Ranks write checkpoints and snapshots there: on a disk of their own node these would be lost with the node, and nobody
else could read them. So a rank that sees another folder does not begin.
"""

from __future__ import annotations

import time

import ray.util

from clawrl.actors.calls import Coordinator
from clawrl.config import Deployment
from clawrl.ledger.folder import last_holder

_PATIENCE_S = 300.0
# A coordinator that is just being restarted, and file systems that tell others of a change a little later.
_LOOKS, _PAUSE_S = 5, 2.0


class StateFolderNotShared(RuntimeError):
    """This machine has another folder at the place of the state folder, or none."""


def check_state_folder(deployment: Deployment, coordinator: Coordinator) -> None:
    folder = deployment.state_path
    for look in range(_LOOKS):
        pid = coordinator.ask_now("ping", timeout_s=_PATIENCE_S)
        found = last_holder(folder)
        if found is not None and found.pid == pid:
            return
        if look < _LOOKS - 1:
            time.sleep(_PAUSE_S)
    raise StateFolderNotShared(
        f"state_dir: the trainer runs on {ray.util.get_node_ip_address()}, where {folder} is not the folder that the "
        "coordinator has on the head node; put CLAWRL_HOME on a file system that both see, or keep the trainer on the "
        "head node with trainer.resources.custom"
    )
