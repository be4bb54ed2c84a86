import numpy as np
import pytest
import torch

from clawrl.messages import Sample
from clawrl.training.batch import Row, make_micro_batches
from tests.training_samples import make_sample

torch.set_num_threads(1)
CPU = torch.device("cpu")


def row(sample: Sample, advantage: float = 0.0) -> Row:
    column = np.arange(len(sample.response_ids), dtype=np.float32)
    return Row(sample=sample, mask=sample.mask, columns={"place": column}, advantage=advantage)


def test_every_column_of_a_row_stays_with_its_sample_through_sorting_and_padding() -> None:
    shapes = [(3, 4), (9, 2), (2, 7), (5, 5), (1, 1)]
    samples = [
        make_sample(f"s{i}", p, r, temperature=1.0 + i, logps=[-1.0 - i - t / 10 for t in range(r)])
        for i, (p, r) in enumerate(shapes)
    ]
    batches = make_micro_batches([row(s, advantage=10.0 + i) for i, s in enumerate(samples)], 20, CPU)
    assert sorted(i for batch in batches for i in batch.index) == [0, 1, 2, 3, 4]
    for batch in batches:
        for b, i in enumerate(batch.index):
            sample, (p, r) = samples[i], shapes[i]
            first = p - batch.start
            mine = slice(first, first + r)
            assert batch.ids_BL[b, :p].tolist() == sample.prompt_ids.tolist()
            assert batch.ids_BL[b, batch.start :][mine].tolist() == sample.response_ids.tolist()
            assert batch.attention_mask_BL[b].sum().item() == p + r
            assert batch.mask_BT[b].nonzero().flatten().tolist() == list(range(first, first + r))
            assert batch.behaviour_logp_BT[b, mine].tolist() == sample.behaviour_logps.tolist()
            assert batch.columns["place"][b, mine].tolist() == list(range(r))
            assert batch.temperature_B[b].item() == 1.0 + i
            assert batch.advantage_B[b].item() == 10.0 + i


def test_ragged_axes_after_the_tokens_are_padded_with_zeros() -> None:
    def ragged(name: str, prompt: int, response: int, hints: int) -> Row:
        sample = make_sample(name, prompt, response)
        per_hint = np.arange(1, response * hints * 2 + 1, dtype=np.int64).reshape(response, hints, 2)
        heard = np.ones((response, hints), dtype=np.bool_)
        return Row(sample=sample, mask=sample.mask, columns={"ids": per_hint, "heard": heard}, advantage=0.0)

    rows = [ragged("a", 5, 2, 3), ragged("b", 2, 4, 1)]
    (batch,) = make_micro_batches(rows, 100, CPU)
    assert batch.columns["ids"].shape == (2, 5, 3, 2) and batch.columns["ids"].dtype == torch.int64
    assert batch.columns["heard"].shape == (2, 5, 3) and batch.columns["heard"].dtype == torch.bool
    for b, i in enumerate(batch.index):
        column, first = rows[i].columns["ids"], len(rows[i].sample.prompt_ids) - batch.start
        expected = np.zeros((5, 3, 2), dtype=np.int64)
        expected[first : first + len(column), : column.shape[1]] = column
        assert batch.columns["ids"][b].tolist() == expected.tolist()
        assert batch.columns["heard"][b].tolist() == (expected > 0).all(-1).tolist()


def test_micro_batches_keep_to_the_padded_token_limit_and_never_cut_a_sample() -> None:
    lengths = [30, 5, 12, 7, 7, 11, 3]
    rows = [row(make_sample(f"s{i}", n - 2, 2)) for i, n in enumerate(lengths)]
    batches = make_micro_batches(rows, 24, CPU)
    sizes = [(batch.ids_BL.numel(), len(batch.index)) for batch in batches]
    assert all(tokens <= 24 or count == 1 for tokens, count in sizes)
    assert sizes[0] == (30, 1)
    assert len(batches) == 4


def test_the_split_is_the_same_every_time() -> None:
    rows = [row(make_sample(f"s{i}", 4, 4)) for i in range(6)]
    first, second = make_micro_batches(rows, 16, CPU), make_micro_batches(rows, 16, CPU)
    assert [batch.index for batch in first] == [batch.index for batch in second] == [(0, 1), (2, 3), (4, 5)]


def test_samples_without_a_token_to_train_are_left_out() -> None:
    rows = [row(make_sample("masked", 4, 2, mask=[False, False])), row(make_sample("empty", 4, 0))]
    assert make_micro_batches(rows, 64, CPU) == []


def test_a_sample_without_a_prompt_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"turn bare.*no prompt token"):
        make_micro_batches([row(make_sample("bare", 0, 3))], 64, CPU)
