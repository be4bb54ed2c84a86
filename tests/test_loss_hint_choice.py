import numpy as np
import pytest
import torch
from torch import Tensor

from clawrl.loss import choose_hint, overlap_count, take_hint
from clawrl.loss.hint_choice import Rule

torch.set_num_threads(1)


def reference_choice(count: np.ndarray, mask: np.ndarray, hint_mask: np.ndarray, rule: Rule) -> np.ndarray:
    samples, tokens, hints = count.shape
    choice = np.zeros((samples, tokens), dtype=np.int64)
    for b in range(samples):
        for t in range(tokens):
            best = None
            for h in range(hints):
                score = {
                    "sequence_optimal": sum(int(count[b, u, h]) for u in range(tokens) if mask[b, u]),
                    "token_optimal": int(count[b, t, h]),
                    "shortest": 0,
                }[rule]
                if hint_mask[b, h] and (best is None or score > best):
                    best, choice[b, t] = score, h
    return choice


def test_overlap_counts_agree_with_set_intersections() -> None:
    rng = np.random.default_rng(0)
    student = np.stack([[rng.permutation(8)[:4] for _ in range(5)] for _ in range(2)])
    teacher = np.stack([[[rng.permutation(8)[:4] for _ in range(3)] for _ in range(5)] for _ in range(2)])
    count_BTH = overlap_count(torch.tensor(student), torch.tensor(teacher))
    assert count_BTH.dtype == torch.int64 and count_BTH.shape == (2, 5, 3)
    for b in range(2):
        for t in range(5):
            for h in range(3):
                assert count_BTH[b, t, h].item() == len({*student[b, t]} & {*teacher[b, t, h]})


@pytest.mark.parametrize("rule", ["sequence_optimal", "token_optimal", "shortest"])
def test_a_choice_agrees_with_loops_over_hints(rule: Rule) -> None:
    rng = np.random.default_rng(1)
    count, mask = rng.integers(0, 4, size=(40, 6, 3)), rng.random((40, 6)) < 0.6
    hint_mask = rng.random((40, 3)) < 0.7
    choice_BT = choose_hint(torch.tensor(count), torch.tensor(mask), torch.tensor(hint_mask), rule)
    assert choice_BT.dtype == torch.int64
    np.testing.assert_array_equal(choice_BT.numpy(), reference_choice(count, mask, hint_mask, rule))


def choose(
    count: list[list[int]], rule: Rule, *, mask: list[int] | None = None, hints: list[int] | None = None
) -> list:
    count_BTH = torch.tensor([count])
    mask_BT = torch.tensor([mask or [1] * len(count)], dtype=torch.bool)
    hint_mask_BH = torch.tensor([hints or [1] * len(count[0])], dtype=torch.bool)
    return choose_hint(count_BTH, mask_BT, hint_mask_BH, rule)[0].tolist()


def test_a_sequence_takes_the_hint_that_is_best_in_sum_and_a_token_the_one_that_is_best_there() -> None:
    count = [[4, 0], [0, 3], [0, 3]]
    assert choose(count, "sequence_optimal") == [1, 1, 1]
    assert choose(count, "token_optimal") == [0, 1, 1]
    assert choose(count, "shortest") == [0, 0, 0]


def test_a_masked_token_has_no_say_in_the_choice_of_its_sequence() -> None:
    assert choose([[4, 0], [0, 3], [0, 3]], "sequence_optimal", mask=[1, 1, 0]) == [0, 0, 0]


@pytest.mark.parametrize("rule", ["sequence_optimal", "token_optimal", "shortest"])
@pytest.mark.parametrize("width", [2, 3, 64])
def test_ties_go_to_the_shortest_hint_that_exists(rule: Rule, width: int) -> None:
    assert choose([[2] * width] * 3, rule) == [0, 0, 0]
    assert choose([[2] * width] * 3, rule, hints=[0] + [1] * (width - 1)) == [1, 1, 1]


@pytest.mark.parametrize("rule", ["sequence_optimal", "token_optimal", "shortest"])
def test_a_hint_that_does_not_exist_never_wins(rule: Rule) -> None:
    assert choose([[0, 9, 0]] * 2, rule, hints=[0, 0, 1]) == [2, 2], "not even with no overlap at all"
    hint_mask_BH = torch.zeros(1, 3, dtype=torch.bool)
    choice_BT = choose_hint(torch.ones(1, 2, 3, dtype=torch.int64), torch.ones(1, 2).bool(), hint_mask_BH, rule)
    assert choice_BT.tolist() == [[0, 0]]


def test_a_sample_that_is_all_masked_takes_the_shortest_hint() -> None:
    assert choose([[0, 3], [0, 3]], "sequence_optimal", mask=[0, 0]) == [0, 0]


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'longest'.*sequence_optimal, token_optimal or shortest"):
        choose([[1, 2]], "longest")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5)])
def test_taking_a_hint_selects_its_row_at_every_token(shape: tuple[int, ...]) -> None:
    value: Tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    choice_BT = torch.tensor([[0, 3, 1], [2, 2, 0]])
    taken = take_hint(value, choice_BT)
    assert taken.shape == (*shape[:2], *shape[3:])
    for b in range(2):
        for t in range(3):
            assert torch.equal(taken[b, t], value[b, t, int(choice_BT[b, t])])
