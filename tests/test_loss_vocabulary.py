"""Log-probs off hidden states against the plain way, whole and cut along the vocabulary."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from clawrl.loss import HeadRows, LogitRows, VocabularyHead, head_entropy, head_logps, head_topk

torch.set_num_threads(1)
N, D, V, K = 7, 5, 23, 3
ONE_ROW = 4 * V


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


HIDDEN, WEIGHT, BIAS = normal(0, N, D), 2 * normal(1, V, D), normal(2, V)
TEMPERATURE = torch.linspace(0.5, 1.5, N, dtype=torch.float64)
IDS = torch.randint(0, V, (N, K), generator=torch.Generator().manual_seed(3))


def head(block_bytes: int = ONE_ROW, bias: bool = True) -> VocabularyHead:
    return VocabularyHead(weight_VD=WEIGHT, bias_V=BIAS if bias else None, block_bytes=block_bytes)


@pytest.mark.parametrize("block_bytes", [1, 3 * ONE_ROW, 100 * ONE_ROW])
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_of_any_size_give_the_numbers_of_the_plain_way(block_bytes: int, bias: bool) -> None:
    plain = LogitRows(torch.nn.functional.linear(HIDDEN, WEIGHT, BIAS if bias else None), TEMPERATURE)
    rows = HeadRows(HIDDEN, head(block_bytes, bias), TEMPERATURE)
    torch.testing.assert_close(rows.logps(IDS), plain.logps(IDS), rtol=0, atol=1e-12)
    torch.testing.assert_close(rows.entropy(), plain.entropy(), rtol=0, atol=1e-12)
    for mine, theirs in zip(rows.logps_and_entropy(IDS), (plain.logps(IDS), plain.entropy()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    for mine, theirs in zip(rows.topk(4), plain.topk(4), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("block_bytes", [1, 3 * ONE_ROW])
def test_gradients_agree_with_finite_differences(block_bytes: int) -> None:
    leaves = [tensor.clone().requires_grad_() for tensor in (HIDDEN, WEIGHT, BIAS)]

    def logps(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        made = VocabularyHead(weight_VD=weight, bias_V=bias, block_bytes=block_bytes)
        return head_logps(hidden, made, TEMPERATURE, IDS)

    def entropy(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return head_entropy(hidden, VocabularyHead(weight_VD=weight, bias_V=bias, block_bytes=block_bytes), TEMPERATURE)

    assert torch.autograd.gradcheck(logps, leaves)
    assert torch.autograd.gradcheck(entropy, leaves)


def test_an_entropy_that_comes_with_log_probs_has_no_gradient_and_takes_none_from_them() -> None:
    gradients = []
    for read in (lambda rows: rows.logps(IDS), lambda rows: rows.logps_and_entropy(IDS)[0]):
        hidden = HIDDEN.clone().requires_grad_()
        read(HeadRows(hidden, head(3 * ONE_ROW), TEMPERATURE)).sum().backward()
        gradients.append(hidden.grad)
    assert torch.equal(*gradients)
    hidden = HIDDEN.clone().requires_grad_()
    assert not HeadRows(hidden, head(), TEMPERATURE).logps_and_entropy(IDS)[1].requires_grad
    assert not LogitRows(hidden @ WEIGHT.T, TEMPERATURE).logps_and_entropy(IDS)[1].requires_grad


def test_tokens_that_cannot_be_drawn_and_logits_that_are_large_change_no_entropy() -> None:
    bias = BIAS.clone()
    bias[:4] = -torch.inf
    shifted = VocabularyHead(weight_VD=WEIGHT, bias_V=bias + 1e5, block_bytes=3 * ONE_ROW)
    _, entropy = HeadRows(HIDDEN, shifted, TEMPERATURE).logps_and_entropy(IDS)
    plain = LogitRows(torch.nn.functional.linear(HIDDEN, WEIGHT, bias)[:, 4:], TEMPERATURE).entropy()
    torch.testing.assert_close(entropy, plain, rtol=0, atol=1e-8)


def test_an_id_that_is_asked_for_twice_counts_twice_in_the_gradient() -> None:
    hidden = HIDDEN.clone().requires_grad_()
    twice = IDS[:, :1].repeat(1, 2)
    head_logps(hidden, head(), TEMPERATURE, twice).sum().backward()
    once = HIDDEN.clone().requires_grad_()
    head_logps(once, head(), TEMPERATURE, IDS[:, :1]).sum().backward()
    assert hidden.grad is not None and once.grad is not None
    torch.testing.assert_close(hidden.grad, 2 * once.grad)


def test_a_frozen_head_gets_no_gradient_and_sixteen_bits_keep_their_type() -> None:
    hidden = HIDDEN.bfloat16().requires_grad_()
    weight = WEIGHT.bfloat16().requires_grad_()
    frozen = VocabularyHead(weight_VD=weight.detach(), block_bytes=ONE_ROW)
    head_logps(hidden, frozen, TEMPERATURE.float(), IDS).sum().backward()
    assert weight.grad is None and hidden.grad is not None and hidden.grad.dtype == torch.bfloat16
    logps = head_logps(hidden, VocabularyHead(weight_VD=weight, block_bytes=ONE_ROW), TEMPERATURE.float(), IDS)
    assert logps.dtype == torch.float32
    logps.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.bfloat16


def test_no_row_gives_no_number_and_a_gradient_of_zero() -> None:
    hidden = HIDDEN[:0].clone().requires_grad_()
    weight = WEIGHT.clone().requires_grad_()
    made = VocabularyHead(weight_VD=weight)
    assert head_logps(hidden, made, TEMPERATURE[:0], IDS[:0]).shape == (0, K)
    head_logps(hidden, made, TEMPERATURE[:0], IDS[:0]).sum().backward()
    assert weight.grad is not None and not weight.grad.any()
    assert head_topk(hidden, made, 2).shape == (0, 2)


RANKS = 3


def run_rank(rank: int, root: Path) -> None:
    """The last shard is the smallest, as torch cuts 23 by 3, and smaller than the top k."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=RANKS)
    first = rank * -(-V // RANKS)
    hidden = HIDDEN.clone().requires_grad_()
    weight, bias = (whole.chunk(RANKS)[rank].clone().requires_grad_() for whole in (WEIGHT, BIAS))
    shard = VocabularyHead(weight_VD=weight, bias_V=bias, group=dist.group.WORLD, first=first, block_bytes=ONE_ROW)
    logps, entropy = head_logps(hidden, shard, TEMPERATURE, IDS), head_entropy(hidden, shard, TEMPERATURE)
    (logps.square().sum() + entropy.square().sum()).backward()
    topk = head_topk(hidden, shard, 8)
    torch.save([logps, entropy, topk, hidden.grad, weight.grad, bias.grad], root / f"{rank}.pt")
    dist.destroy_process_group()


def test_a_vocabulary_that_is_cut_between_ranks_gives_the_whole_ones_numbers_and_gradients(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(run_rank, (tmp_path,), nprocs=RANKS)
    hidden, weight, bias = (tensor.clone().requires_grad_() for tensor in (HIDDEN, WEIGHT, BIAS))
    plain = LogitRows(torch.nn.functional.linear(hidden, weight, bias), TEMPERATURE)
    logps, entropy = plain.logps(IDS), plain.entropy()
    (logps.square().sum() + entropy.square().sum()).backward()
    assert weight.grad is not None and bias.grad is not None
    for rank in range(RANKS):
        seen = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        expected = [logps, entropy, plain.topk(8)[0], hidden.grad]
        expected += [whole.chunk(RANKS)[rank] for whole in (weight.grad, bias.grad)]
        for mine, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


PEAK = """
import resource, sys, torch
from clawrl.loss import VocabularyHead, head_logps
torch.set_num_threads(2)
rows, vocabulary, width, block = 2048, 151_936, 16, 32 * 2**20
hidden = torch.randn(rows, width, requires_grad=True)
weight = torch.randn(vocabulary, width, requires_grad=True)
head = VocabularyHead(weight_VD=weight, block_bytes=block)
ids, temperature = torch.randint(0, vocabulary, (rows, 1)), torch.ones(rows)
head_logps(hidden[:8], head, temperature[:8], ids[:8]).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
head_logps(hidden, head, temperature, ids).sum().backward()
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(grown / block, 4 * rows * vocabulary / block)
"""


def test_logits_of_all_rows_never_exist_at_once() -> None:
    """Three blocks at the peak, forward and backward, where the logits alone are 37."""
    ran = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, timeout=240)
    grown, whole = map(float, ran.stdout.split())
    assert whole > 37 and grown < 4.5
