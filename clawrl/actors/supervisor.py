"""The supervisor: creates the coordinator and the trainer's driver, watches them, and takes them down.

Both are detached, so a crash of this replica leaves them alone and its successor adopts them; only a graceful
stop of the deployment ends them: training checkpoints, the ledger closes, nothing stays behind. An adopted
coordinator that was made for other settings is replaced by one for these; its state is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError

from clawrl.actors.calls import NAMESPACE, coordinator_name, driver_name
from clawrl.actors.coordinator_actor import CoordinatorActor
from clawrl.actors.trainer_driver import TrainerDriver
from clawrl.config import Deployment
from clawrl.privacy.logs import redact_logs_by

log = logging.getLogger(__name__)
_CALL_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 45.0


class Supervisor:
    async def __init__(self, deployment: Deployment) -> None:  # type: ignore[misc]  # Serve awaits it
        await asyncio.to_thread(redact_logs_by, deployment.privacy.redaction)
        self._deployment = deployment
        self._app_name = serve.get_replica_context().app_name
        self._stopping = False
        await self._adopt_or_replace()
        # Whatever keeps it from starting (a state folder in use, say) is this deployment's own error.
        await self._coordinator().ping.remote()
        await self.check_health()

    async def check_health(self) -> None:
        """Both answer, or are being brought back by Ray; one that is gone for good is made anew."""
        if self._stopping:
            return
        await asyncio.gather(*(self._ping(make) for make in (self._coordinator, self._driver)))

    async def __del__(self) -> None:
        self._stopping = True
        driver, coordinator = self._driver(), self._coordinator()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await driver.stop.remote(_STOP_TIMEOUT_S - 5.0)
                await coordinator.close.remote()
        except Exception:
            log.exception("the trainer or the coordinator did not stop by themselves")
        for actor in (driver, coordinator):
            ray.kill(actor, no_restart=True)

    async def _ping(self, make: Any) -> None:
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                await make().ping.remote()
        except RayTaskError as error:
            log.error("%s is broken and is restarted: %s", make.__name__, error)
            ray.kill(make(), no_restart=False)
        except (RayActorError, TimeoutError) as error:
            # Ray is restarting it, or the machine is busy: no reason to restart this replica, too.
            log.warning("%s does not answer: %s", make.__name__, error)

    async def _adopt_or_replace(self) -> None:
        wanted = self._deployment.model_dump_json()
        for make, name in ((self._driver, driver_name), (self._coordinator, coordinator_name)):
            try:
                found = ray.get_actor(name(self._deployment.name), namespace=NAMESPACE)
                async with asyncio.timeout(_CALL_TIMEOUT_S):
                    same = await found.settings.remote() == wanted
            except (ValueError, RayActorError, TimeoutError):
                continue
            if not same:
                log.info("%s runs with other settings and is replaced", make.__name__)
                ray.kill(found, no_restart=True)

    def _coordinator(self) -> Any:
        name = coordinator_name(self._deployment.name)
        return _detached(CoordinatorActor, name, max_concurrency=1000).remote(self._deployment, self._app_name)

    def _driver(self) -> Any:
        return _detached(TrainerDriver, driver_name(self._deployment.name)).remote(self._deployment)


def _detached(cls: type, name: str, **options: Any) -> Any:
    return ray.remote(cls).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        # Otherwise an actor that is made inside a replica is captured into the replica's placement group.
        scheduling_strategy="DEFAULT",
        # The state is on the head node's disk.
        resources={"node:__internal_head__": 0.001},
        **options,
    )
