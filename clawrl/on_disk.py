"""From a deployment's file to what it left on disk, for commands that read that without asking a server.

What cannot be had ends in an error of the class that the command names, ``refusal``; its text says what to do.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from clawrl.config import Deployment, read_deployment
from clawrl.privacy.keys import KeyStore, KeyStoreError
from clawrl.privacy.opening import open_keys


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


def keys_of(deployment: Deployment, refusal: type[Exception]) -> KeyStore:
    """What its texts were sealed with."""
    try:
        return open_keys(deployment.state_path, deployment.privacy)
    except (KeyStoreError, ValueError) as error:
        raise refusal(f"the keys of {deployment.name!r} cannot be had: {error}") from error
