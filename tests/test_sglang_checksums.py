"""How SGLang's parameters are made of tensors is learned from their hashes. SGLang here is a function that slices and
joins as its tensor-parallel layers do; its hash for GPUs is compared with its own kernels where they can be run.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clawrl.engine import sglang_checksums
from clawrl.engine.sglang_checksums import Checksums, cpu_hash, differing, gpu_hash, learn

HIDDEN, HEAD, HEADS, INNER, VOCABULARY = 32, 8, 4, 48, 100
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"


class Checkpoint(dict[str, torch.Tensor]):
    def tensor(self, name: str) -> torch.Tensor:
        return self[name]


def checkpoint(
    seed: int, *, kv_heads: int = 2, tied: bool = False, biases: bool = False, dtype: torch.dtype = torch.float32
) -> Checkpoint:
    """A model like Llama (with ``biases``: Qwen2) with the per-head norms of Qwen3."""
    torch.manual_seed(seed)
    made = {EMBED: torch.randn(VOCABULARY, HIDDEN), NORM: torch.randn(HIDDEN)}
    for layer in range(2):
        base = f"model.layers.{layer}"
        made |= {f"{base}.{name}.weight": torch.randn(HIDDEN) for name in ("input_layernorm", "mlp_norm")}
        for name, heads in (("q_proj", HEADS), ("k_proj", kv_heads), ("v_proj", kv_heads)):
            made[f"{base}.self_attn.{name}.weight"] = torch.randn(heads * HEAD, HIDDEN)
            if biases:
                made[f"{base}.self_attn.{name}.bias"] = torch.randn(heads * HEAD)
        made |= {f"{base}.self_attn.{name}.weight": torch.randn(HEAD) for name in ("q_norm", "k_norm")}
        made[f"{base}.self_attn.o_proj.weight"] = torch.randn(HIDDEN, HEADS * HEAD)
        made |= {f"{base}.mlp.{name}.weight": torch.randn(INNER, HIDDEN) for name in ("gate_proj", "up_proj")}
        made[f"{base}.mlp.down_proj.weight"] = torch.randn(HIDDEN, INNER)
    if not tied:
        made["lm_head.weight"] = torch.randn(VOCABULARY, HIDDEN)
    return Checkpoint({name: tensor.to(dtype) for name, tensor in made.items()})


def parameters(of: Checkpoint, rank: int, ranks: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What rank ``rank`` of an SGLang with ``ranks`` holds, named and made as its layers do it."""

    def part(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.chunk(ranks, axis)[rank]

    def heads(tensor: torch.Tensor) -> torch.Tensor:
        kv_heads = len(tensor) // HEAD
        held = tensor.reshape(kv_heads, HEAD, *tensor.shape[1:])
        mine = held.chunk(ranks)[rank] if ranks <= kv_heads else held[rank * kv_heads // ranks].unsqueeze(0)
        return mine.flatten(0, 1)

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor.new_zeros(-len(tensor) % 64, tensor.shape[1])])

    made = {}
    for name, tensor in of.items():
        if name in (EMBED, "lm_head.weight"):
            made[name] = part(padded(tensor), 0)
        elif "q_proj" in name:
            others = [of[name.replace("q_proj", other)] for other in ("k_proj", "v_proj")]
            made[name.replace("q_proj", "qkv_proj")] = torch.cat([part(tensor, 0), *map(heads, others)])
        elif "gate_proj" in name:
            up = of[name.replace("gate_proj", "up_proj")]
            made[name.replace("gate_proj", "gate_up_proj")] = torch.cat([part(tensor, 0), part(up, 0)])
        elif "o_proj" in name or "down_proj" in name:
            made[name] = part(tensor, 1)
        elif "norm" in name:
            made[name] = tensor
    return {name: tensor.to(dtype).contiguous() for name, tensor in made.items()}


def sglang(
    of: Checkpoint, ranks: int = 1, dtype: torch.dtype = torch.float32, hash_of: Callable[..., str] = cpu_hash
) -> list[dict[str, str]]:
    """The hashes that SGLang names, rank by rank."""
    return [{n: hash_of(t) for n, t in parameters(of, rank, ranks, dtype).items()} for rank in range(ranks)]


SHAPES = [
    {},
    {"ranks": 2},
    {"ranks": 4},
    {"ranks": 2, "kv_heads": 1},
    {"ranks": 4, "kv_heads": 1},
    {"ranks": 2, "tied": True},
    {"ranks": 2, "biases": True},
    {"ranks": 4, "biases": True},
    {"engine": torch.bfloat16},
    {"engine": torch.bfloat16, "ranks": 2},
    {"engine": torch.bfloat16, "stored": torch.bfloat16, "ranks": 2},
    {"hash_of": gpu_hash},
    {"hash_of": gpu_hash, "ranks": 2, "engine": torch.bfloat16},
]


def _word(value: object) -> str:
    """The same in every process that collects these tests: the text of a function has its address."""
    return str(getattr(value, "__name__", value))


@pytest.mark.parametrize("shape", SHAPES, ids=[",".join(map(_word, shape.values())) or "plain" for shape in SHAPES])
def test_what_was_learned_from_the_first_weights_foretells_the_hashes_of_any_others(shape: dict) -> None:  # type: ignore[type-arg]
    engine, ranks = shape.get("engine", torch.float32), shape.get("ranks", 1)
    kind = {key: shape[key] for key in ("kv_heads", "tied", "biases") if key in shape}
    stored, hash_of = shape.get("stored", torch.float32), shape.get("hash_of", cpu_hash)
    start, other = checkpoint(0, dtype=stored, **kind), checkpoint(1, dtype=stored, **kind)
    layout = learn(sglang(start, ranks, engine, hash_of), start, engine)
    assert layout.unexplained == () and layout.hash_of is hash_of
    assert layout.sources == set(start)
    wanted = sglang(other, ranks, engine, hash_of)
    assert layout.expected(other) == wanted and len(wanted) == ranks
    assert layout.expected(start) != wanted


def test_weights_published_in_the_engines_own_precision_are_foretold_as_well() -> None:
    """The starting weights are stored in fp32, versions come in bf16."""
    start, other = checkpoint(0), checkpoint(1, dtype=torch.bfloat16)
    layout = learn(sglang(start, dtype=torch.bfloat16), start, torch.bfloat16)
    assert layout.expected(other) == sglang(other, dtype=torch.bfloat16)


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_changed_element_is_found_in_the_parameter_and_rank_that_holds_it(ranks: int) -> None:
    start, other = checkpoint(0), checkpoint(1)
    layout = learn(sglang(start, ranks), start, torch.float32)
    expected = layout.expected(other)
    other["model.layers.1.self_attn.v_proj.weight"][-1, -1] += 1e-3
    assert differing(expected, sglang(other, ranks)) == [
        f"model.layers.1.self_attn.qkv_proj.weight of rank {ranks - 1}"
    ]


def test_a_missing_parameter_differs_and_so_does_another_number_of_ranks() -> None:
    expected: list[Checksums] = [{"a": "1", "b": "2"}, {"a": "3"}]
    assert differing(expected, expected) == []
    assert differing(expected, [{"a": "1"}, {"a": "3"}]) == ["b of rank 0"]
    assert differing(expected, [{"a": "1", "b": "2", "more": "5"}, {"a": "4"}]) == ["a of rank 1"]
    assert differing(expected, expected[:1]) == ["1 ranks instead of 2"]


def test_a_parameter_that_is_made_in_no_known_way_is_named_and_the_others_are_checked_nevertheless() -> None:
    start, other = checkpoint(0), checkpoint(1)
    found = sglang(start, 2)
    found[1]["model.layers.0.mlp.down_proj.weight"] = cpu_hash(start["model.layers.0.mlp.down_proj.weight"].flip(0))
    found[0]["model.layers.0.mlp.experts.w13_weight"] = "0" * 16
    layout = learn(found, start, torch.float32)
    assert layout.unexplained == (
        "model.layers.0.mlp.experts.w13_weight of rank 0",
        "model.layers.0.mlp.down_proj.weight of rank 1",
    )
    wanted = sglang(other, 2)
    del wanted[1]["model.layers.0.mlp.down_proj.weight"]
    assert layout.expected(other) == wanted


def test_tensors_of_which_no_parameter_is_made_are_no_sources() -> None:
    start = checkpoint(0, tied=True)
    start["lm_head.weight"] = start[EMBED]
    start["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.randn(4)
    found = sglang(checkpoint(0, tied=True))
    assert learn(found, start, torch.float32).sources == set(checkpoint(0, tied=True))


def test_a_head_of_its_own_that_is_not_in_the_checkpoint_is_made_of_the_embeddings() -> None:
    start, other = checkpoint(0, tied=True), checkpoint(1, tied=True)
    found = sglang(start, 2)
    for rank in found:
        rank["lm_head.weight"] = rank[EMBED]
    layout = learn(found, start, torch.float32)
    assert layout.unexplained == ()
    assert layout.expected(other)[1]["lm_head.weight"] == sglang(other, 2)[1][EMBED]


# -- the hashes ---------------------------------------------------------------------------------------------------


def sample(length: int) -> torch.Tensor:
    """Bytes that are the same everywhere."""
    made = b"".join(hashlib.sha256(block.to_bytes(4, "big")).digest() for block in range(length // 32 + 1))
    return torch.frombuffer(bytearray(made), dtype=torch.uint8)[:length]


# SGLang 0.5.23's own, from its kernels in Triton's interpreter (which take minutes for the last): less than a word, not
# whole words, one tile, more, and so many that the upper bits of a word's place count.
GOLDEN = {
    0: "0000000000000000",
    1: "b6b5e93cfe963030",
    5: "0120e812053fc134",
    1000: "c99203e61cec03b6",
    4 * 8192: "9059556082f788a9",
    4 * 8192 * 3 + 7: "c2cd153c1c9689a1",
    4 * 8192 * 65 + 3: "052b2db2fa3695d6",
}


@pytest.mark.parametrize("length", GOLDEN)
def test_the_hash_of_a_gpu_is_sglangs(length: int) -> None:
    assert gpu_hash(sample(length)) == GOLDEN[length]


def test_the_hash_of_a_large_tensor_does_not_depend_on_how_much_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = gpu_hash(sample(4 * 8192 * 5 + 3))
    monkeypatch.setattr(sglang_checksums, "_CHUNK_WORDS", 2 * 8192)
    assert gpu_hash(sample(4 * 8192 * 5 + 3)) == whole


def test_the_hash_of_a_cpu_is_the_head_of_a_sha256_of_its_bytes() -> None:
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert cpu_hash(tensor) == hashlib.sha256(tensor.view(torch.int16).numpy().tobytes()).hexdigest()[:16]
    assert cpu_hash(tensor.T) == cpu_hash(tensor.T.contiguous()) != cpu_hash(tensor)


# What SGLang's wrapper does around the kernels, without its demand for a GPU.
KERNELS = """
import json, sys, torch, triton
from sglang.kernels.ops.memory import gpu_tensor_hash as k

def hashed(words):
    seed, count = 0x243F6A88, words.numel()
    now = torch.empty(triton.cdiv(count, 8192), dtype=torch.uint64)
    k.hash_tiles32_kernel_blocked[(now.numel(),)](
        words, now, count, seed1=seed, seed2=((seed * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF,
        FM_C1=k.FMIX32_C1, FM_C2=k.FMIX32_C2, POS_A=k.POS_C1, POS_B=k.POS_C2, TILE=8192, BLOCK=256, USE_CG=False)
    while now.numel() > 1:
        then = torch.empty(triton.cdiv(now.numel(), 1024), dtype=torch.uint64)
        k.add_tree_reduce_u64_kernel[(then.numel(),)](now, then, now.numel(), CHUNK=1024)
        now = then
    return f"{k._final_splitmix64(int(now.item())):016x}"

def words(text):
    data = bytes.fromhex(text)
    return torch.frombuffer(bytearray(data + bytes(-len(data) % 4)), dtype=torch.uint8).view(torch.uint32)

print(json.dumps([hashed(words(text)) for text in json.load(sys.stdin)]))
"""


@pytest.mark.skipif(
    not os.environ.get("CLAWRL_SGLANG_PYTHON"),
    reason="CLAWRL_SGLANG_PYTHON names no interpreter that has sglang and triton",
)
def test_the_hash_of_a_gpu_is_that_of_the_kernels_that_are_installed(tmp_path: Path) -> None:
    lengths = [1, 5, 4096, 4 * 8192 - 2, 4 * 8192 + 1, 4 * 8192 * 2 + 6]
    ran = subprocess.run(
        [os.environ["CLAWRL_SGLANG_PYTHON"], "-c", KERNELS],
        input=json.dumps([sample(length).numpy().tobytes().hex() for length in lengths]),
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == [gpu_hash(sample(length)) for length in lengths]
