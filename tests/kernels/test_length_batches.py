"""Batches of like lengths, and the budget that a meter of memory leads to."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from diagnose.kernels.length_batches import LengthBatches, find_length_batches, lengths_of

LENGTHS = [3, 1, 8, 2, 7, 4, 5, 6]


def taken(batches, lengths=LENGTHS):
    return [[lengths[index] for index in batch] for batch in batches]


def test_rows_times_the_longest_stay_within_the_budget():
    batches = LengthBatches(LENGTHS, budget=16, shuffle=False)
    assert taken(batches) == [[8, 7], [6, 5], [4, 3, 2, 1]]
    assert len(batches) == 3
    assert batches.padding == pytest.approx(1 - 36 / (16 + 12 + 16))


def test_lengths_are_rounded_up_and_rows_bounded():
    assert taken(LengthBatches(LENGTHS, budget=16, multiple=4, shuffle=False)) == [[8, 7], [5, 6], [3, 1, 2, 4]]
    assert taken(LengthBatches(LENGTHS, max_samples=3, shuffle=False)) == [[8, 7, 6], [5, 4, 3], [2, 1]]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_sample_comes_once_and_ranks_get_as_many_batches(num_ranks):
    lengths = [1 + n * 7 % 50 for n in range(101)]
    each = [list(LengthBatches(lengths, 120, rank=rank, num_ranks=num_ranks)) for rank in range(num_ranks)]
    assert len({len(batches) for batches in each}) == 1
    assert sorted(index for batches in each for batch in batches for index in batch) == list(range(101))
    assert all(max(lengths[i] for i in batch) * len(batch) <= 120 for batches in each for batch in batches)


def test_a_batch_of_one_sample_too_many_comes_on_both_ranks():
    each = [list(LengthBatches([8, 7, 6], 8, shuffle=False, rank=rank, num_ranks=2)) for rank in (0, 1)]
    assert each == [[[0], [2]], [[1], [2]]]


def test_batches_of_one_step_are_alike():
    lengths = [1 + n * 7 % 50 for n in range(100)]
    first, second = (list(LengthBatches(lengths, 120, rank=rank, num_ranks=2)) for rank in (0, 1))
    apart = [abs(max(lengths[i] for i in a) - max(lengths[i] for i in b)) for a, b in zip(first, second, strict=True)]
    assert max(apart) <= 7  # one step of the windows' order; batches drawn at random lie up to 49 apart


def test_epochs_differ_and_repeat_by_their_number():
    batches = LengthBatches(list(range(1, 60)), 100)
    first, second = list(batches), list(batches)
    assert first != second
    batches.set_epoch(0)
    assert list(batches) == first


def test_samples_of_many_windows_are_sorted_within_each(monkeypatch):
    monkeypatch.setattr("diagnose.kernels._length_sampler.WINDOW", 1)
    assert taken(LengthBatches(LENGTHS, max_samples=2, shuffle=False)) == [[3, 1], [8, 2], [7, 4], [6, 5]]
    assert taken(LengthBatches(LENGTHS, budget=10, shuffle=False)) == [[8], [3, 1], [7], [4, 2], [6], [5]]


def test_an_interrupted_epoch_goes_on():
    batches = LengthBatches(list(range(1, 60)), 100)
    whole = list(batches)
    batches.set_epoch(0)
    passing = iter(batches)
    for _ in range(4):
        next(passing)
    state = pickle.loads(pickle.dumps(batches)).state_dict()
    again = LengthBatches(list(range(1, 60)), 100)
    again.load_state_dict(state)
    assert again.state_dict() == state
    again.set_epoch(0)
    assert list(again) == whole[4:]
    assert again.state_dict()["epoch"] == 1
    assert again.state_dict(taken=2)["taken"] == 2
    with pytest.raises(ValueError, match="budget=100, and this sampler has 90"):
        LengthBatches(list(range(1, 60)), 90).load_state_dict(state)
    with pytest.raises(ValueError, match="this sampler has"):
        LengthBatches([2, *range(2, 60)], 100).load_state_dict(state)
    with pytest.raises(ValueError, match="is not one of LengthBatches"):
        again.load_state_dict({"epoch": 1})
    with pytest.raises(ValueError, match="of which 1000 cannot have been taken"):
        again.state_dict(taken=1000)


def test_a_loader_with_workers_takes_them():
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, batch_sampler=LengthBatches(LENGTHS, 16, shuffle=False), num_workers=1)
    assert [[LENGTHS[i] for i in batch.tolist()] for (batch,) in loader] == [[8, 7], [6, 5], [4, 3, 2, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a budget"),
        ({"budget": 0}, "budget=0"),
        ({"max_samples": 0}, "max_samples=0"),
        ({"budget": 8, "multiple": 0}, "multiple=0"),
        ({"budget": 7}, "1 of 8 samples are longer than the budget of 7 tokens, the longest with 8"),
        ({"budget": 8, "rank": 0, "num_ranks": 9}, "8 samples for 9 ranks"),
    ],
)
def test_bounds_that_cannot_be_kept(arguments, message):
    with pytest.raises(ValueError, match=message):
        LengthBatches(LENGTHS, **arguments)


class Texts(list):
    """Samples of these lengths."""

    def __init__(self, lengths):
        super().__init__((torch.zeros(n), n) for n in lengths)


def pad(samples):
    return nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)


def linear(base, each, floor=0, shapes=None):
    """Return a step and its meter: ``base`` bytes and ``each`` for a padded token, ``floor`` at least."""
    seen = []

    def step(batch):
        seen.append(batch.numel())
        if shapes is not None:
            shapes.append(tuple(batch.shape))

    def meter(run):
        run()
        return max(base + each * seen[-1], floor)

    return step, meter


def test_the_budget_is_what_memory_leaves_for_tokens():
    step, meter = linear(1000, 10)
    found = find_length_batches(Texts(LENGTHS), step, collate_fn=pad, meter=meter, memory_bytes=2000)
    assert (found.token_bytes, found.fixed_bytes, found.budget) == (10.0, 1000, 80)  # 0.9 × 2000 - 1000
    assert str(found).startswith("80 padded tokens a batch: 10 bytes each beside 0.0 MB, of 0.0 MB; ")


def test_what_is_there_anyway_hides_nothing():
    """Of 1 to 16 rows the peak is that of the update; from then on it is the batch's."""
    step, meter = linear(0, 10, floor=1200)
    found = find_length_batches(Texts([8] * 100), step, collate_fn=pad, meter=meter, memory_bytes=10_000)
    assert (found.token_bytes, found.fixed_bytes, found.budget) == (10.0, 0, 900)


def test_the_fullest_batches_are_tried_and_the_budget_shrinks():
    def step(batch):
        rows, length = batch.shape
        seen.append(10 * rows * length + (5 * rows * length if rows > 12 else 0))

    seen = []

    def meter(run):
        run()
        return seen[-1]

    found = find_length_batches(Texts([4, 8] * 50), step, collate_fn=pad, meter=meter, memory_bytes=2000, share=1.0)
    rows = found.budget // 4
    assert 15 * rows * 4 <= 2000  # 200 tokens were thought to fit
    assert found.budget in (80, 102, 128, 160)


def test_a_step_without_memory_counts_as_too_large():
    shapes = []

    def step(batch):
        shapes.append(tuple(batch.shape))
        if batch.numel() > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def meter(run):
        run()
        rows, length = shapes[-1]
        return 10 * rows * length

    found = find_length_batches(Texts([4, 8] * 50), step, collate_fn=pad, meter=meter, memory_bytes=4000)
    assert found.budget <= 100
    assert max(rows * length for rows, length in shapes[-2:]) <= 100


def test_it_measures_what_is_kept_for_the_backward_pass():
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def step(batch):
        model(batch[..., None] + torch.rand(1)).sum().backward()
        optimizer.step()

    found = find_length_batches(
        Texts(LENGTHS), step, collate_fn=pad, state=(model, optimizer), memory_bytes=1_000_000, max_samples=64
    )
    assert found.token_bytes == 4 + 64  # the input and the output of the activation; its own input is not kept
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_fit_or_be_measured_is_named():
    step, meter = linear(1000, 10)
    with pytest.raises(MemoryError, match="Not even one sample of 1 tokens fits"):
        find_length_batches(Texts(LENGTHS), step, collate_fn=pad, meter=meter, memory_bytes=500)
    with pytest.raises(MemoryError, match="longest sample has 8 tokens, and 3 fit"):
        find_length_batches(Texts(LENGTHS), step, collate_fn=pad, meter=meter, memory_bytes=1150)
    with pytest.raises(ValueError, match="holds no more memory than one of"):
        find_length_batches(Texts(LENGTHS), step, collate_fn=pad, meter=lambda run: run() or 7, memory_bytes=500)
    with pytest.raises(ValueError, match="0 < share <= 1"):
        find_length_batches(Texts(LENGTHS), step, share=0.0)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        find_length_batches(Texts(LENGTHS), lambda _: multiplied(), collate_fn=pad, meter=meter, memory_bytes=500)


def multiplied():
    raise RuntimeError("shapes cannot be multiplied")


def test_lengths_of_samples():
    assert lengths_of([(torch.zeros(3, 9), 1), (torch.zeros(5, 9), 2)]) == [3, 5]
    assert lengths_of([{"input_ids": [1, 2, 3], "label": 0}, {"input_ids": [1], "label": 1}]) == [3, 1]
    assert lengths_of(["abc", "a"]) == [3, 1]
    assert lengths_of([(1, "x" * 9)], lambda sample: sample[0]) == [1]
    with pytest.raises(TypeError, match="A int has no length"):
        lengths_of([1, 2])
    with pytest.raises(TypeError, match="is a stream"):
        lengths_of(iter([1]))
