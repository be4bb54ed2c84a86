import numpy as np
import pytest
import torch

from clawrl.loss import build_support, lookup

torch.set_num_threads(1)

STUDENT_BTk = torch.tensor([[[3, 1], [0, 2]], [[4, 0], [1, 5]]])
TEACHER_BTk = torch.tensor([[[1, 4], [2, 0]], [[2, 3], [5, 2]]])


def test_lookup_agrees_with_a_search_through_every_row() -> None:
    rng = np.random.default_rng(0)
    table_ids = np.stack([[rng.permutation(9)[:4] for _ in range(5)] for _ in range(3)])
    table_logp = -np.sort(rng.exponential(size=table_ids.shape), axis=-1)
    ids = np.stack([[rng.permutation(9)[:6] for _ in range(5)] for _ in range(3)])
    logp_BTS, found_BTS = lookup(torch.tensor(ids), torch.tensor(table_ids), torch.tensor(table_logp))
    assert logp_BTS.dtype == torch.float64 and found_BTS.dtype == torch.bool
    for b in range(3):
        for t in range(5):
            row = dict(zip(table_ids[b, t], table_logp[b, t], strict=True))
            for s in range(6):
                assert logp_BTS[b, t, s].item() == row.get(ids[b, t, s], min(row.values()))
                assert found_BTS[b, t, s].item() == (ids[b, t, s] in row)
    assert 0.2 < found_BTS.double().mean() < 0.8, "both cases occur"


def test_lookup_takes_the_narrow_ids_that_travel() -> None:
    table_ids = torch.tensor([[[7, 70000]]], dtype=torch.int32)
    logp_BTS, found_BTS = lookup(torch.tensor([[[70000, 8]]]), table_ids, torch.tensor([[[-0.1, -3.0]]]))
    assert logp_BTS.tolist() == [[[-3.0, -3.0]]]
    assert found_BTS.tolist() == [[[True, False]]]


def test_a_token_that_is_not_listed_is_bounded_by_the_least_likely_that_is_whatever_the_order() -> None:
    logp_BTS, found_BTS = lookup(
        torch.tensor([[[9]]]), torch.tensor([[[1, 2, 3]]]), torch.tensor([[[-2.0, -5.0, -1.0]]])
    )
    assert logp_BTS.item() == -5.0 and not found_BTS.item()


def test_a_support_is_one_sides_top_k_or_what_both_share() -> None:
    ids_BTS, support_BTS = build_support("teacher", STUDENT_BTk, TEACHER_BTk)
    assert torch.equal(ids_BTS, TEACHER_BTk) and support_BTS.all()
    ids_BTS, support_BTS = build_support("student", STUDENT_BTk, TEACHER_BTk)
    assert torch.equal(ids_BTS, STUDENT_BTk) and support_BTS.all()
    ids_BTS, support_BTS = build_support("overlap", STUDENT_BTk, TEACHER_BTk)
    assert torch.equal(ids_BTS, STUDENT_BTk)
    assert support_BTS.tolist() == [[[False, True], [True, True]], [[False, False], [False, True]]]


def test_both_sides_may_list_a_different_number_of_tokens() -> None:
    _, support_BTS = build_support("overlap", STUDENT_BTk, torch.cat([TEACHER_BTk, STUDENT_BTk[..., :1]], -1))
    assert support_BTS.tolist() == [[[True, True], [True, True]], [[True, False], [True, True]]]


def test_an_unknown_support_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'union'.*teacher, student or overlap"):
        build_support("union", STUDENT_BTk, TEACHER_BTk)  # type: ignore[arg-type]
