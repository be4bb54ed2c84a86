"""Forgetting a user, a session or a turn: through a running server, or in the state folder of a stopped deployment."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clawrl.client import ApiClient
from clawrl.config import Deployment
from clawrl.ledger import Ledger, LedgerFileError
from clawrl.ledger.codec import Codec
from clawrl.ledger.peek import peek
from clawrl.messages import Turn
from clawrl.on_disk import deployment_of, held, keys_of, ledger_file_of
from clawrl.privacy.forgetting import forget, resume, run_steps
from clawrl.privacy.keys import JOURNAL, KeyStore, KeyStoreError, StoredKeys
from clawrl.privacy.opening import open_ledger
from clawrl.privacy.redactor import Redactor, finders_of
from clawrl.privacy.vault import SealingVault
from clawrl.serving.forgetting import wanted

_TIMEOUT_S = 600.0


class ForgetError(RuntimeError):
    """Nothing was forgotten; the text says why, and what to do."""


def forget_by_server(url: str, api_key: str | None, named: Mapping[str, str]) -> dict[str, Any]:
    """``named`` is a body of ``POST /clawrl/forget``. Raises `ApiProblem`."""
    with ApiClient(url, api_key, timeout_s=_TIMEOUT_S) as client:
        return client.forget(named)


def forget_by_file(deployment_file: Path, named: Mapping[str, str], *, lost_keys: bool = False) -> dict[str, Any]:
    """In the ledger of a deployment that does not run. Raises `ForgetError`.

    Also what lies in journals here, which is taken in before. With ``lost_keys`` what its keys do not open is deleted,
    and nothing need be named.
    """
    deployment = deployment_of(deployment_file, ForgetError)
    state = deployment.state_path
    file = ledger_file_of(deployment, ForgetError)
    what = wanted(user=named.get("user"), session=named.get("session"), turn_id=named.get("turn_id"))
    privacy = deployment.privacy
    with held(deployment, "forget", ForgetError):
        try:
            # New keys only for a ledger that was never written with any: it is brought up to date.
            keys = keys_of(deployment, ForgetError, made=peek(file).keyring is None)
            redactor = Redactor(finders_of(privacy.redaction))
            with open_ledger(
                state, deployment.ledger, privacy, keys=keys, redactor=redactor, accept_loss=lost_keys
            ) as ledger:
                take_in_journals(deployment, keys, ledger)
                run_steps(ledger, resume())
                return run_steps(ledger, forget(what))
        except (LedgerFileError, KeyStoreError, ValueError, sqlite3.Error) as error:
            raise ForgetError(f"the ledger in {state} cannot be used: {error}") from error


def take_in_journals(deployment: Deployment, keys: KeyStore, ledger: Ledger) -> None:
    """What replicas left behind, as a coordinator would. Raises `ForgetError` where that cannot be done."""
    folder = deployment.state_path / "journal"
    if not any(folder.glob("*.journal")):
        return
    from clawrl.actors.admission import Admission
    from clawrl.actors.recording import take_in_orphans

    admission = Admission(deployment)

    async def record(turn: Turn) -> None:
        against = await admission.reason_against(turn)
        ledger.record(turn, *(against or admission.seen(ledger, turn) or ()))

    vault = SealingVault(StoredKeys.of(keys, JOURNAL), encrypts=deployment.privacy.encrypt)
    asyncio.run(take_in_orphans(folder, Codec(vault), record))
    if left := sorted(folder.glob("*.journal")):
        raise ForgetError(
            f"{left[0]} holds turns that could not be taken in: a replica still runs here, or the log above says why; "
            "nothing was forgotten"
        )


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
