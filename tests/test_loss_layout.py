"""What every per-token function promises: it reads its own token only, and leaves its inputs as they were."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clawrl.loss import (
    TokenDistribution,
    build_support,
    choose_hint,
    clipped_policy_loss,
    difference_clip_loss,
    kl_estimate,
    known_ids,
    lookup,
    overlap_count,
    sample_mean,
    tail_kl,
    take_hint,
    token_advantage,
    token_mean,
    truncated_importance_weight,
)

torch.set_num_threads(1)

Batch = dict[str, Tensor]
B, T, S, H, V = 3, 4, 3, 2, 8
LENGTHS = [4, 1, 3]
MASK_BT = torch.arange(T)[None, :] < torch.tensor(LENGTHS)[:, None]
TEMPERATURE = 0.7


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def distinct_ids(*shape: int) -> Tensor:
        return torch.rand(*shape, V, generator=generator).argsort(-1)[..., :S]

    return {
        "logits": normal(B, T, V),
        "logp": -normal(B, T).abs(),
        "old": -normal(B, T).abs(),
        "other": -normal(B, T).abs(),
        "advantage": normal(B, T),
        "logps": -normal(B, T, S).abs() - 1.5,
        "olds": -normal(B, T, S).abs() - 1.5,
        "teachers": -normal(B, T, S).abs() - 1.5,
        "support": torch.rand(B, T, S, generator=generator) < 0.7,
        "known": torch.rand(B, T, S, generator=generator) < 0.7,
        "ids": distinct_ids(B, T),
        "table": distinct_ids(B, T),
        "tables": distinct_ids(B, T, H),
        "choice": torch.randint(0, H, (B, T), generator=generator),
        "values": normal(B, T, H, S),
    }


def policy(x: Batch) -> TokenDistribution:
    return TokenDistribution.of_logits(x["logits"], torch.full((len(x["logits"]),), TEMPERATURE, dtype=torch.float64))


def token_optimal(x: Batch) -> Tensor:
    count_BTH = overlap_count(x["ids"], x["tables"])
    everywhere_BT = torch.ones(count_BTH.shape[:2], dtype=torch.bool)
    hint_mask_BH = torch.ones(len(count_BTH), H, dtype=torch.bool)
    return choose_hint(count_BTH, everywhere_BT, hint_mask_BH, "token_optimal")


def difference(x: Batch) -> Tensor:
    out = difference_clip_loss(
        x["logps"], x["olds"], x["teachers"], x["support"], x["known"], clip=1.0, eps_clip=0.2, eps_clip_high=0.28
    )
    return torch.stack([out.loss_BT, out.clipped_BT, out.unknown_weight_BT, out.gap_BT], -1)


PER_TOKEN: dict[str, Callable[[Batch], Tensor]] = {
    "logp": lambda x: policy(x).logp(x["choice"]),
    "logps": lambda x: policy(x).logps(x["ids"]),
    "topk": lambda x: policy(x).topk(2)[1],
    "entropy": lambda x: policy(x).entropy(),
    "k1": lambda x: kl_estimate(x["logp"], x["other"], "k1"),
    "k2": lambda x: kl_estimate(x["logp"], x["other"], "k2"),
    "k3": lambda x: kl_estimate(x["logp"], x["other"], "k3"),
    "policy": lambda x: clipped_policy_loss(x["logp"], x["old"], x["advantage"], 0.2, 0.28)[0],
    "importance": lambda x: truncated_importance_weight(x["old"], x["other"], 2.0)[0],
    "token_advantage": lambda x: token_advantage(x["other"], x["old"], 0.5),
    "tail_kl": lambda x: tail_kl(x["logps"], x["teachers"], x["support"]),
    "difference": difference,
    "known_ids": lambda x: known_ids(x["known"], x["teachers"], x["olds"], 0.3),
    "lookup": lambda x: lookup(x["ids"], x["table"], x["teachers"])[0],
    "overlap support": lambda x: build_support("overlap", x["ids"], x["table"])[1],
    "overlap_count": lambda x: overlap_count(x["ids"], x["tables"]),
    "token_optimal": token_optimal,
    "take_hint": lambda x: take_hint(x["values"], x["choice"]),
}
EVERY = pytest.mark.parametrize("function", PER_TOKEN.values(), ids=PER_TOKEN)


def packed(value: Tensor) -> Tensor:
    """``[B, T, ...] -> [1, sum of lengths, ...]`` without the padding."""
    return torch.cat([value[b, :length] for b, length in enumerate(LENGTHS)])[None]


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@EVERY
def test_a_padded_batch_and_a_packed_row_agree(function: Callable[[Batch], Tensor]) -> None:
    x = batch()
    same(packed(function(x)), function({name: packed(value) for name, value in x.items()}))


@EVERY
def test_permuting_the_samples_permutes_the_results(function: Callable[[Batch], Tensor]) -> None:
    x, order = batch(), torch.tensor([2, 0, 1])
    assert not torch.equal(function(x)[order], function(x)), "the samples differ"
    same(function(x)[order], function({name: value[order] for name, value in x.items()}))


@EVERY
def test_inputs_are_left_as_they_were(function: Callable[[Batch], Tensor]) -> None:
    x, before = batch(), batch()
    function(x)
    assert all(torch.equal(value, before[name]) for name, value in x.items())


@pytest.mark.parametrize("function", [PER_TOKEN[name] for name in ("entropy", "k3", "policy", "tail_kl")])
def test_padded_and_packed_losses_have_the_same_token_mean_and_gradient(function: Callable[[Batch], Tensor]) -> None:
    def gradient(pack: Callable[[Tensor], Tensor]) -> tuple[float, dict[str, Tensor]]:
        x = batch()
        leaves = {name: x[name].requires_grad_() for name in ("logits", "logp", "logps")}
        mean = token_mean(function({k: pack(v) for k, v in x.items()}), pack(MASK_BT), sum(LENGTHS))
        mean.backward()
        return mean.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}

    (value, grads), (packed_value, packed_grads) = gradient(lambda v: v), gradient(packed)
    assert value == pytest.approx(packed_value, abs=1e-12)
    assert grads.keys() == packed_grads.keys() and len(grads) == 1
    for name, grad in grads.items():
        same(grad, packed_grads[name])
        assert not grad[~MASK_BT].any()


@EVERY
def test_columns_of_nothing_but_padding_give_a_finite_zero_and_no_gradient(function: Callable[[Batch], Tensor]) -> None:
    x = {name: torch.zeros_like(value) for name, value in batch().items()}
    leaves = [value.requires_grad_() for value in x.values() if value.is_floating_point()]
    value = function(x)
    assert torch.isfinite(value).all()
    for aggregate in (token_mean, sample_mean):
        total = aggregate(value.double().reshape(B, T, -1).sum(-1), torch.zeros(B, T, dtype=torch.bool), 0)
        assert total.item() == 0.0
        if total.requires_grad:
            total.backward(retain_graph=True)
    assert not any(leaf.grad.any() for leaf in leaves if leaf.grad is not None), "0 * inf would be NaN, which is true"
