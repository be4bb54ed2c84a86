"""A version being received beside the one that serves.

`Staging` owns the half-received tensors of at most one manifest. Nothing here touches a live model:
`begin` checks that the manifest describes exactly the tensors the engine holds; the last bucket's
`receive` checks the digest over all bytes, once, which is this engine's vote on the publish, and moves what it
verified to the engine's device, so that a commit copies nothing; `take` gives the tensors away. Anything else
raises `WeightsRefused` and the version that serves goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from clawrl.engine.errors import WeightsRefused
from clawrl.messages import AdapterShape, TensorSpec, WeightManifest
from clawrl.weights.manifest import as_bytes, digest_of, unpack_bucket


def check_shape(manifest: WeightManifest, shape: AdapterShape | None) -> None:
    """Raises `WeightsRefused` for adapters that an engine started for ``shape`` cannot take."""
    offered = manifest.addition and manifest.addition.shape
    if offered is not None and offered != shape:
        what = f"adapters of {shape}" if shape else "full weights alone, no adapter"
        raise WeightsRefused(f"version {manifest.version}: offered {offered}, but this engine was started for {what}")


class Staging:
    """``expected`` maps tensor names to what the engine holds, in order; ``device`` is where it holds them.

    ``adapters`` does so for the adapters of ``shape``, if the engine takes any.
    """

    def __init__(
        self,
        expected: Mapping[str, TensorSpec],
        device: torch.device | None = None,
        *,
        adapters: Mapping[str, TensorSpec] | None = None,
        shape: AdapterShape | None = None,
    ) -> None:
        self._expected = dict(expected)
        self._adapters = dict(adapters or {})
        self._shape = shape
        self._device = device or torch.device("cpu")
        self._manifest: WeightManifest | None = None
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrived: set[int] = set()

    @property
    def version(self) -> int | None:
        return self._manifest.version if self._manifest else None

    @property
    def manifest(self) -> WeightManifest:
        return self._open("receive")

    def begin(self, manifest: WeightManifest) -> None:
        self.drop()
        expected = self._expected
        if manifest.addition is not None:
            check_shape(manifest, self._shape)
            expected = self._adapters
        offered = {spec.name: spec for spec in manifest.tensors}
        if len(offered) != len(manifest.tensors):
            raise WeightsRefused(f"version {manifest.version}: a tensor is listed twice")
        wrong = sorted(name for name in offered.keys() | expected.keys() if offered.get(name) != expected.get(name))
        if wrong:
            first = wrong[0]
            raise WeightsRefused(
                f"version {manifest.version}: {len(wrong)} tensors do not fit; {first}: "
                f"offered {offered.get(first)}, held {expected.get(first)}"
            )
        self._manifest = manifest

    def receive(self, bucket: int, data: torch.Tensor) -> None:
        manifest = self._open("receive")
        if not 0 <= bucket < len(manifest.buckets):
            raise WeightsRefused(f"version {manifest.version} has no bucket {bucket}")
        if bucket in self._arrived:
            raise WeightsRefused(f"version {manifest.version}: bucket {bucket} arrived twice")
        try:
            for spec, tensor in unpack_bucket(manifest, bucket, data):
                self._tensors[spec.name] = tensor
        except ValueError as error:
            raise WeightsRefused(str(error)) from error
        self._arrived.add(bucket)
        if len(self._arrived) == len(manifest.buckets):
            found = digest_of(manifest.tensors, (as_bytes(self._tensors[spec.name]) for spec in manifest.tensors))
            if found != manifest.digest:
                self.drop()
                raise WeightsRefused(
                    f"version {manifest.version}: digest {found[:12]} differs from {manifest.digest[:12]}"
                )
            for name, tensor in self._tensors.items():
                self._tensors[name] = tensor.to(self._device)
            if self._device.type == "cuda":
                # Sampling reads the weights on a stream of its own, which does not wait for this thread's copies.
                torch.cuda.synchronize(self._device)

    def take(self, version: int) -> dict[str, torch.Tensor]:
        """The complete, verified tensors of ``version``; the staging area is empty afterwards."""
        manifest = self._open("commit")
        if manifest.version != version:
            raise WeightsRefused(f"asked to commit version {version}, but version {manifest.version} was received")
        missing = len(manifest.buckets) - len(self._arrived)
        if missing:
            raise WeightsRefused(f"version {version}: {missing} of {len(manifest.buckets)} buckets are missing")
        tensors = self._tensors
        self.drop()
        return tensors

    def drop(self) -> None:
        self._manifest = None
        self._tensors = {}
        self._arrived = set()

    def _open(self, call: str) -> WeightManifest:
        if self._manifest is None:
            raise WeightsRefused(f"{call} without a prepared version")
        return self._manifest
