import numpy as np
import pytest
import torch

from clawrl.messages import Sample
from clawrl.training.batch import MicroBatch, Row, Split, make_micro_batches
from tests.training_samples import make_sample

torch.set_num_threads(1)
CPU = torch.device("cpu")


def row(sample: Sample, advantage: float = 0.0) -> Row:
    column = np.arange(len(sample.response_ids), dtype=np.float32)
    return Row(sample=sample, mask=sample.mask, columns={"place": column}, advantage=advantage)


def make(rows: list[Row], tokens: int) -> list[MicroBatch]:
    return make_micro_batches(rows, Split(tokens=tokens), CPU)


def test_every_column_of_a_row_stays_with_its_sample_through_packing_and_padding() -> None:
    shapes = [(3, 4), (9, 2), (2, 7), (5, 5), (1, 1)]
    samples = [
        make_sample(f"s{i}", p, r, temperature=1.0 + i, logps=[-1.0 - i - t / 10 for t in range(r)])
        for i, (p, r) in enumerate(shapes)
    ]
    batches = make([row(s, advantage=10.0 + i) for i, s in enumerate(samples)], 20)
    assert len(batches) > 1 and sorted(i for batch in batches for i in batch.index) == [0, 1, 2, 3, 4]
    for batch in batches:
        for b, i in enumerate(batch.index):
            sample, (p, r) = samples[i], shapes[i]
            ids = batch.forest.ids_N[batch.forest.places[b]].tolist()
            assert ids[:p] == sample.prompt_ids.tolist() and ids[p:] == sample.response_ids.tolist()
            assert batch.targets_BT[b, :r].tolist() == sample.response_ids.tolist()
            assert batch.mask_BT[b].tolist() == [t < r for t in range(batch.mask_BT.shape[1])]
            assert batch.behaviour_logp_BT[b, :r].tolist() == sample.behaviour_logps.tolist()
            assert batch.columns["place"][b, :r].tolist() == list(range(r))
            assert batch.temperature_B[b].item() == 1.0 + i
            assert batch.advantage_B[b].item() == 10.0 + i


def test_each_unmasked_token_is_predicted_by_the_one_before_it() -> None:
    mask = [True, False, True, True, False]
    samples = [make_sample("a", 4, 5, mask=mask, temperature=0.5), make_sample("b", 2, 3)]
    (batch,) = make([row(sample) for sample in samples], 100)
    expected: list[int] = []
    for b, i in enumerate(batch.index):
        place, prompt = batch.forest.places[b], len(samples[i].prompt_ids)
        expected += [int(place[prompt + t - 1]) for t in range(len(samples[i].response_ids)) if samples[i].mask[t]]
    assert batch.predictor_N.tolist() == expected
    assert batch.temperature_N.tolist() == [0.5] * 3 + [1.0] * 3


def test_ragged_axes_after_the_tokens_are_padded_with_zeros() -> None:
    def ragged(name: str, prompt: int, response: int, hints: int) -> Row:
        sample = make_sample(name, prompt, response)
        per_hint = np.arange(1, response * hints * 2 + 1, dtype=np.int64).reshape(response, hints, 2)
        heard = np.ones((response, hints), dtype=np.bool_)
        return Row(sample=sample, mask=sample.mask, columns={"ids": per_hint, "heard": heard}, advantage=0.0)

    rows = [ragged("a", 5, 2, 3), ragged("b", 2, 4, 1)]
    (batch,) = make(rows, 100)
    assert batch.columns["ids"].shape == (2, 4, 3, 2) and batch.columns["ids"].dtype == torch.int64
    assert batch.columns["heard"].shape == (2, 4, 3) and batch.columns["heard"].dtype == torch.bool
    for b, i in enumerate(batch.index):
        column = rows[i].columns["ids"]
        expected = np.zeros((4, 3, 2), dtype=np.int64)
        expected[: len(column), : column.shape[1]] = column
        assert batch.columns["ids"][b].tolist() == expected.tolist()
        assert batch.columns["heard"][b].tolist() == (expected > 0).all(-1).tolist()


def test_ranks_have_as_many_micro_batches_and_one_without_work_takes_part() -> None:
    rows = [row(make_sample("only", 4, 4))]
    work, rest = (make_micro_batches(rows, Split(tokens=64, ranks=2, rank=rank), CPU) for rank in range(2))
    assert [batch.idle for batch in work] == [False] and [batch.idle for batch in rest] == [True]
    assert rest[0].index == () and rest[0].mask_BT.sum() == 1 and len(rest[0].forest.ids_N) == 2


def test_samples_without_a_token_to_train_are_left_out() -> None:
    rows = [row(make_sample("masked", 4, 2, mask=[False, False])), row(make_sample("empty", 4, 0))]
    assert make(rows, 64) == []


def test_a_sample_without_a_prompt_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"turn bare.*no prompt token"):
        make([row(make_sample("bare", 0, 3))], 64)
