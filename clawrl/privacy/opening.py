"""How a deployment's ledger and its keys are opened: in one way, whoever does it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.store import Ledger
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.keys import KeyStore, KeyStoreError
from clawrl.privacy.redactor import Redactor
from clawrl.privacy.vault import LedgerVault


def open_keys(state: Path, privacy: PrivacyConfig, environ: Mapping[str, str] = os.environ) -> KeyStore:
    """Made if they are not there. Raises `KeyStoreError`, or `ValueError` for a master key that cannot be had."""
    return KeyStore(privacy.keys_path(state), privacy.master(environ))


def look_at_keys(state: Path, privacy: PrivacyConfig, environ: Mapping[str, str] = os.environ) -> KeyStore:
    """To read with, also while a coordinator has them. Raises as `open_keys` does, and where there are none."""
    folder = privacy.keys_path(state)
    if not (folder / "keyring.json").is_file():
        raise KeyStoreError(f"{folder} holds no keys; put them back, or name the deployment that they belong to")
    return open_keys(state, privacy, environ)


def open_ledger(
    state: Path,
    ledger: LedgerConfig,
    privacy: PrivacyConfig,
    *,
    keys: KeyStore | None = None,
    redactor: Redactor | None = None,
    accept_loss: bool = False,
) -> Ledger:
    """The ledger in the state folder ``state``, with its keys; who only reads needs no redactor.

    With ``accept_loss`` what these keys do not open is deleted, also where they are older than the ledger.
    """
    store = keys or open_keys(state, privacy)
    return Ledger(
        state / "ledger.sqlite",
        ledger,
        vault=LedgerVault(store, encrypts=privacy.encrypt),
        screen=redactor,
        keeps_untrainable=privacy.record_untrainable,
        accept_loss=accept_loss,
    )
