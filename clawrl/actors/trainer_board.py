"""What the status says of the trainer, as far as the coordinator knows.

The step that the run began from and the figures of its last step are in the ledger. Its state is hearsay: the driver
says that training failed or stopped, and repeats that; a run says that it begins, and whatever it asks for later says
that it goes on. So a coordinator that was restarted knows within moments, and until then it says that it does not.
"""

from __future__ import annotations

from typing import Any

from clawrl.ledger.writer import LedgerThread

STARTING = "starting"
RUNNING = "running"
NOT_HEARD_OF = "not heard of since the coordinator started"


class TrainerBoard:
    def __init__(self, db: LedgerThread) -> None:
        self._db = db
        self._state: str | None = None
        self._checkpoint_error: str | None = None

    def tell(self, state: str) -> None:
        self._state = state

    def goes_on(self) -> None:
        """The current run asked for something."""
        self._state = RUNNING

    def begins(self) -> None:
        self._state, self._checkpoint_error = RUNNING, None

    def checkpoint_failed(self, why: str | None) -> None:
        """``None``: the last one did not."""
        self._checkpoint_error = why

    async def describe(self) -> dict[str, Any]:
        run = await self._db.run(lambda ledger: ledger.run())
        said: dict[str, Any] = {"state": self._state or (STARTING if run is None else NOT_HEARD_OF)}
        if run is not None:
            said["step"] = run.restored_step
            if run.stats is not None:
                said["last_metrics"] = dict(run.stats)
        if self._checkpoint_error is not None:
            said["checkpoint_error"] = self._checkpoint_error
        return said
