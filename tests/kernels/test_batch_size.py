"""The largest batch that fits, on a step whose memory ends where the test has it end."""

import pytest
import torch
from torch import nn

from diagnose.kernels.batch_size import BatchSizes, find_batch_size


def step_up_to(most, calls=None):
    def step(size):
        if calls is not None:
            calls.append(size)
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    return step


def ticking():
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    return clock


@pytest.mark.parametrize(
    ("most", "largest", "too_large"), [(37, 32, 40), (40, 40, 48), (63, 56, 64), (64, 64, 72), (1, 1, 2)]
)
def test_sizes_are_doubled_and_then_halved_between(most, largest, too_large):
    found = find_batch_size(step_up_to(most), clock=ticking(), repeats=1)
    assert (found.largest, found.too_large) == (largest, too_large)


def test_it_ends_at_the_limit():
    calls = []
    found = find_batch_size(step_up_to(10**9, calls), start=4, limit=20, repeats=1, clock=ticking())
    assert (found.largest, found.too_large, sorted(found.seconds)) == (16, None, [4, 8, 16])
    assert calls == [4, 4, 8, 8, 16, 16]


def test_seconds_are_those_of_one_step():
    now = [0.0]

    def step(size):
        now[0] += size

    found = find_batch_size(step, start=2, limit=4, repeats=5, clock=lambda: now[0])
    assert dict(found.seconds) == {2: 2.0, 4: 4.0}


def test_the_smallest_that_is_nearly_as_fast_is_enough():
    found = BatchSizes({8: 1.0, 16: 1.25, 32: 2.0, 64: 4.0}, 64, 128)
    assert found.fastest == 32  # 8, 12.8, 16 and 16 samples a second
    assert BatchSizes({8: 1.0, 16: 1.05, 32: 2.0}, 32, None).fastest == 16  # 15.2 of 16
    assert str(found).endswith("128 does not fit; 32 is fast enough")


def test_state_and_generators_are_put_back():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, state = model.weight.clone(), torch.get_rng_state()

    def step(size):
        model(torch.randn(size, 2)).sum().backward()
        optimizer.step()

    find_batch_size(step, state=(model, optimizer), limit=4)
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.weight.grad is None


def test_other_errors_are_the_step_s_own():
    def step(_size):
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        find_batch_size(step)
    with pytest.raises(MemoryError, match="A batch of 4 does not fit"):
        find_batch_size(step_up_to(3), start=4)
    with pytest.raises(ValueError, match="limit >= start"):
        find_batch_size(step_up_to(3), start=4, limit=2)
