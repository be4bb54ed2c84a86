"""Which metrics are kept, and where training is logged beside them."""

import importlib.util
import netrc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from clawrl.strict import StrictConfig

_WANDB = "https://api.wandb.ai"


class WandbConfig(StrictConfig):
    """One run of Weights & Biases a deployment, which goes on after a restart."""

    project: str = Field(min_length=1, description="which the run belongs to")
    entity: str | None = Field(None, description="user or team of the project; null is the key's own")
    name: str | None = Field(None, description="of the run; default: the deployment's name")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: files in the state folder, for `wandb sync`"
    )


class MetricsConfig(StrictConfig):
    """``enabled`` is about Prometheus, by way of Ray; ``tensorboard`` and ``wandb`` do not depend on it."""

    enabled: bool = Field(True, description="count and measure, for Prometheus by way of Ray")
    flush_s: float = Field(1.0, gt=0.0, le=10.0, description="how often a process hands what it counted to Ray")
    ledger_s: float = Field(
        5.0, gt=0.0, le=10.0, description="how often the ledger is looked at; a level stands for fifteen seconds"
    )
    tensorboard: str | None = Field(
        None, min_length=1, description="folder of the event files; a relative one is below the state folder"
    )
    wandb: WandbConfig | None = Field(None, description="log training to Weights & Biases; null does not")

    @property
    def tracks(self) -> bool:
        return self.tensorboard is not None or self.wandb is not None

    def tensorboard_folder(self, state: Path) -> Path:
        return state / Path(self.tensorboard or "").expanduser()

    def problems(self, env: Mapping[str, str], find: Callable[[str], Any] = importlib.util.find_spec) -> list[str]:
        """What is wrong though every value has the right form: a package, or a key, that is missing here."""
        found = []
        wanted = {"tensorboard": "tensorboardX"} if self.tensorboard is not None else {}
        wanted |= {"wandb": "wandb"} if self.wandb is not None else {}
        for field, package in wanted.items():
            if find(package) is None:
                found.append(
                    f"metrics.{field}: the package {package} is not installed; install clawrl[{field}], or leave "
                    f"metrics.{field} out"
                )
        if self.wandb is not None and self.wandb.mode == "online" and not _has_key(env):
            found.append(
                "metrics.wandb.mode: online, but there is no key; set WANDB_API_KEY (or call `wandb login`), or set "
                "mode: offline"
            )
        return found


def _has_key(env: Mapping[str, str]) -> bool:
    """Where `wandb` itself would look, interactive ways apart."""
    if env.get("WANDB_API_KEY"):
        return True
    host = urlsplit(env.get("WANDB_BASE_URL", _WANDB)).hostname
    file = Path(env.get("NETRC") or Path(env.get("HOME", "~")).expanduser() / ".netrc")
    try:
        return host is not None and netrc.netrc(str(file)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
