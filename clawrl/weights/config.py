"""How a trained version reaches the replicas."""

from typing import Literal

from pydantic import Field

from clawrl.messages import WeightKind
from clawrl.strict import StrictConfig


class PublishConfig(StrictConfig):
    """``gloo`` and ``nccl`` broadcast from the trainer; with ``disk`` each replica reads the version's snapshot.

    ``snapshot_access``: a replica reads snapshots in the state folder where its machine sees that, else they are copied
    from the head node through Ray; with ``network`` always.
    """

    transport: Literal["gloo", "nccl", "disk"] = Field(
        "gloo", description="gloo, nccl: broadcast from the trainer; disk: each replica reads the version's snapshot"
    )
    snapshot_access: Literal["auto", "network"] = Field(
        "auto",
        description="auto: read in the state folder where a replica's machine sees it, else copied through Ray; "
        "network: always copied",
    )
    bucket_mb: float = Field(64.0, gt=0.0, description="tensors that travel together; a larger one travels alone")
    adapters: Literal["auto", "alone", "merged"] = Field(
        "auto",
        description="what is sent where trainer.training.lora is set: the adapters alone, or whole weights with the "
        "adapters merged in; auto is alone, but merged for SGLang on GPUs, where it has not been run",
    )
    fetch_timeout_s: float = Field(
        600.0,
        gt=0.0,
        description="a publish waits so long for replicas that copy its snapshot from the head node, since their "
        "machines do not see the state folder and files are read: by SGLang, and with transport disk",
    )
    prepare_timeout_s: float = Field(
        20.0,
        gt=0.0,
        description="seconds that a replica may take to get ready; then it is left out and catches up later",
    )
    transfer_timeout_s: float = Field(60.0, gt=0.0, description="seconds that all bytes may take")
    commit_timeout_s: float = Field(30.0, gt=0.0, description="seconds that a replica may take to serve the version")
    go_back_timeout_s: float = Field(
        30.0, gt=0.0, description="a replica whose transfer failed loads the version before"
    )
    keep_snapshots: int = Field(3, ge=2, description="a replica that missed one still holds the one before")

    def transport_of(self, kind: WeightKind) -> Literal["gloo", "nccl", "disk"]:
        """Adapters are small, and an engine's own process takes them in: it has no GPU to receive them with."""
        return "gloo" if self.transport == "nccl" and kind is WeightKind.ADAPTER else self.transport

    @property
    def receive_timeout_s(self) -> float:
        """How long a replica may take to say whether it has every byte: the transfer, and going back after it."""
        return self.transfer_timeout_s + self.go_back_timeout_s

    @property
    def whole_s(self) -> float:
        """A publish from the first word to the last takes at most this long, if the coordinator answers at once.

        A sender gives up before the transfer's time limit, but for the bucket that it has begun.
        """
        sending_s = max(2 * self.transfer_timeout_s, self.receive_timeout_s)
        return self.begin_s + sending_s + self.commit_timeout_s

    @property
    def begin_s(self) -> float:
        """Until replicas are prepared. While they copy they have to answer, as they have to the call to prepare."""
        return self.fetch_timeout_s + 2 * self.prepare_timeout_s

    @property
    def longest_s(self) -> float:
        """From a replica's first byte to the word that decides, at most: the slowest replica is waited for."""
        return self.receive_timeout_s + self.commit_timeout_s
