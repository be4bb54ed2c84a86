"""Turn a model's tensors into a manifest and byte buckets, and back.

Pure functions over torch tensors; what is unpacked is on its bucket's device. The byte order is the tensor order; a
bucket is the concatenated bytes of whole tensors, so that no dtype is ever cut in half, and a tensor larger than the
bucket size travels alone. The digest is over every byte in order together with names, dtypes and shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from clawrl.messages import Addition, TensorSpec, WeightKind, WeightManifest


def build_manifest(
    version: int, tensors: Mapping[str, torch.Tensor], *, bucket_bytes: int, addition: Addition | None = None
) -> WeightManifest:
    """Describe ``tensors`` (in mapping order) as policy ``version``; adapters have an ``addition``."""
    specs = tuple(spec_of(name, tensor) for name, tensor in tensors.items())
    return WeightManifest(
        version=version,
        kind=WeightKind.FULL if addition is None else WeightKind.ADAPTER,
        tensors=specs,
        buckets=cut_buckets([byte_size(spec) for spec in specs], bucket_bytes),
        digest=digest_of(specs, (as_bytes(tensor) for tensor in tensors.values())),
        addition=addition,
    )


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))


def byte_size(spec: TensorSpec) -> int:
    size = dtype_of(spec).itemsize
    for dim in spec.shape:
        size *= dim
    return size


def dtype_of(spec: TensorSpec) -> torch.dtype:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"tensor {spec.name}: unknown dtype {spec.dtype!r}")
    return dtype


def cut_buckets(sizes: Sequence[int], bucket_bytes: int) -> tuple[tuple[int, int], ...]:
    """Greedy half-open ranges of tensor indices, each at most ``bucket_bytes`` unless one tensor is larger."""
    if bucket_bytes <= 0:
        raise ValueError("bucket_bytes must be positive")
    buckets: list[tuple[int, int]] = []
    start, filled = 0, 0
    for index, size in enumerate(sizes):
        if index > start and filled + size > bucket_bytes:
            buckets.append((start, index))
            start, filled = index, 0
        filled += size
    if sizes:
        buckets.append((start, len(sizes)))
    return tuple(buckets)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as flat uint8 without copying when it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def pack_bucket(manifest: WeightManifest, bucket: int, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The bytes of one bucket, uint8[N], in manifest order."""
    start, end = manifest.buckets[bucket]
    parts = [as_bytes(tensors[spec.name]) for spec in manifest.tensors[start:end]]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def bucket_size(manifest: WeightManifest, bucket: int) -> int:
    start, end = manifest.buckets[bucket]
    return sum(byte_size(spec) for spec in manifest.tensors[start:end])


def unpack_bucket(
    manifest: WeightManifest, bucket: int, data: torch.Tensor
) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
    """Each tensor of a bucket as a fresh, aligned tensor. Raises ``ValueError`` on a wrong byte count."""
    expected = bucket_size(manifest, bucket)
    if data.dtype != torch.uint8 or data.numel() != expected:
        raise ValueError(f"bucket {bucket} of version {manifest.version} has {data.numel()} bytes, expected {expected}")
    start, end = manifest.buckets[bucket]
    offset = 0
    for spec in manifest.tensors[start:end]:
        size = byte_size(spec)
        tensor = torch.empty(spec.shape, dtype=dtype_of(spec), device=data.device)
        as_bytes(tensor).copy_(data[offset : offset + size])
        offset += size
        yield spec, tensor


def digest_of(specs: Sequence[TensorSpec], payloads: Iterator[torch.Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in order."""
    digest = hashlib.sha256()
    for spec, payload in zip(specs, payloads, strict=True):
        digest.update(f"{spec.name}|{spec.dtype}|{spec.shape}|".encode())
        digest.update(payload.cpu().numpy().data)
    return digest.hexdigest()
