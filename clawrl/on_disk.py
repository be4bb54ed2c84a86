"""From a deployment's file to what it left on disk, for commands that read that without asking a server.

What cannot be had ends in an error of the class that the command names, ``refusal``; its text says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from clawrl.config import Deployment, read_deployment
from clawrl.ledger.folder import FolderInUse, hold
from clawrl.privacy.keys import KeyStore, KeyStoreError
from clawrl.privacy.opening import look_at_keys, open_keys

_PATIENCE_S = 1.0


def deployment_of(file: Path, refusal: type[Exception]) -> Deployment:
    try:
        return read_deployment(file)
    except (OSError, ValueError, LookupError, TypeError, StopIteration, yaml.YAMLError) as error:
        raise refusal(f"{file} is not a deployment file that `clawrl check` accepts: {error}") from error


def ledger_file_of(deployment: Deployment, refusal: type[Exception]) -> Path:
    file = deployment.state_path / "ledger.sqlite"
    if not file.is_file():
        raise refusal(f"{deployment.state_path} holds no ledger: has {deployment.name!r} ever run here?")
    return file


@contextmanager
def held(deployment: Deployment, purpose: str, refusal: type[Exception]) -> Iterator[None]:
    """Its state folder, which nobody else has meanwhile; refused while the deployment runs."""
    try:
        ours = hold(deployment.state_path, f"{deployment.name} ({purpose})", patience_s=_PATIENCE_S)
    except FolderInUse as error:
        raise refusal(f"{error}; or ask the running one: leave --deployment out and name its --url") from error
    except OSError as error:
        raise refusal(f"{deployment.state_path} cannot be held while it is read: {error}") from error
    try:
        yield
    finally:
        ours.release()


def keys_of(deployment: Deployment, refusal: type[Exception], *, made: bool = False) -> KeyStore:
    """What its texts are sealed with; with ``made`` new ones where there are none."""
    try:
        return (open_keys if made else look_at_keys)(deployment.state_path, deployment.privacy)
    except (KeyStoreError, ValueError, OSError) as error:
        raise refusal(f"the keys of {deployment.name!r} cannot be had: {error}") from error
