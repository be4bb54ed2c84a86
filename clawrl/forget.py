"""Forgetting a user, a session or a turn: through a running server, or in the state folder of a stopped deployment."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clawrl.client import ApiClient
from clawrl.ledger import LedgerFileError
from clawrl.ledger.folder import FolderInUse, hold
from clawrl.on_disk import deployment_of, keys_of, ledger_file_of
from clawrl.privacy.forgetting import forget, resume, run_steps
from clawrl.privacy.keys import KeyStoreError
from clawrl.privacy.opening import open_ledger
from clawrl.serving.forgetting import wanted

_TIMEOUT_S = 600.0
_PATIENCE_S = 1.0


class ForgetError(RuntimeError):
    """Nothing was forgotten; the text says why, and what to do."""


def forget_by_server(url: str, api_key: str | None, named: Mapping[str, str]) -> dict[str, Any]:
    """``named`` is a body of ``POST /clawrl/forget``. Raises `ApiProblem`."""
    with ApiClient(url, api_key, timeout_s=_TIMEOUT_S) as client:
        return client.forget(named)


def forget_by_file(file: Path, named: Mapping[str, str]) -> dict[str, Any]:
    """In the ledger of a deployment that does not run. Raises `ForgetError`."""
    deployment = deployment_of(file, ForgetError)
    state = deployment.state_path
    ledger_file_of(deployment, ForgetError)
    try:
        held = hold(state, f"{deployment.name} (forget)", patience_s=_PATIENCE_S)
    except FolderInUse as error:
        raise ForgetError(f"{error}; or ask the running one: leave --deployment out and name its --url") from error
    what = wanted(user=named.get("user"), session=named.get("session"), turn_id=named.get("turn_id"))
    try:
        keys = keys_of(deployment, ForgetError)
        with open_ledger(state, deployment.ledger, deployment.privacy, keys=keys) as ledger:
            run_steps(ledger, resume())
            return run_steps(ledger, forget(what))
    except (LedgerFileError, KeyStoreError, ValueError, sqlite3.Error) as error:
        raise ForgetError(f"the ledger in {state} cannot be used: {error}") from error
    finally:
        held.release()


def told(report: Mapping[str, Any]) -> Iterator[str]:
    """The report in sentences."""
    if not report["found"]:
        yield "there is nothing of that here"
        return
    yield f"deleted: {report['turns']} turns" + (
        f", {report['dropped']} of them before anything was learned from them" if report["dropped"] else ""
    )
    if report["unanswered"]:
        yield f"{report['unanswered']} requests are being answered; their turns will leave nothing but their count"
    if report["leases_voided"]:
        yield f"{report['leases_voided']} batches of the trainer's are void and will be made anew"
    if report["evidence_of"]:
        yield f"{report['evidence_of']} earlier answers lost what they were judged by and train no more"
    if report["keys_deleted"]:
        yield "their key is deleted: copies of the ledger and of journals made with it cannot be read any more"
    if not report["log_emptied"]:
        yield "another process reads the ledger: its write-ahead log is not emptied yet; run this again"
    if steps := sorted({*report["steps"], *report["evidence_steps"]}):
        yield f"the weights have learned from it in the steps {_list(steps)}, and that cannot be taken out of them"
        yield f"versions with one of these steps: {_list(report['versions']) or 'none that is known'}"
    else:
        yield "no training step had used it"


def _list(numbers: Any) -> str:
    return ", ".join(map(str, numbers))
