import random
import sys

import pytest
import torch

from diagnose.trials.measuring import Numbers, PeakMemory, SampleDraws, StepTimer, seed_everything


@pytest.fixture
def numbers():
    heard = Numbers()
    heard.install()
    yield heard
    heard.remove()


def test_every_scalar_loss_is_heard_and_the_gradient_before_a_step(numbers):
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    (weight * weight).sum().backward()
    optimizer.step()
    torch.autograd.backward([weight.sum()])
    weight.backward(torch.ones(2))  # no scalar
    assert numbers.losses == (25.0, -7.0)
    assert numbers.grad_norms == (10.0,)


def test_listening_ends_without_a_trace():
    before = torch.autograd.backward
    heard = Numbers()
    heard.install()
    assert torch.autograd.backward is not before
    heard.remove()
    assert torch.autograd.backward is before


def test_generators_start_from_the_seed():
    seed_everything(5, lambda name, then: then() if name in sys.modules else None)
    first = (random.random(), torch.rand(1).item())
    seed_everything(5, lambda name, then: then() if name in sys.modules else None)
    assert (random.random(), torch.rand(1).item()) == first


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the resident set is read from /proc")
def test_the_peak_is_of_the_time_since_the_start():
    memory = PeakMemory()
    block = bytearray(b"1") * 200_000_000
    del block
    memory.start()
    low = memory.read()
    block = bytearray(b"1") * 100_000_000
    assert memory.read() > low + 80_000_000
    del block


def test_steps_are_timed_after_the_warm_up_only():
    begun = []
    timer = StepTimer(3, 4, alone=False, timing_begins=lambda: begun.append(timer.num_steps))
    for i in range(7):
        assert timer.done is False
        timer.boundary()
        assert bool(begun) is (i >= 2)
    assert timer.done
    assert begun == [3]
    assert len(timer.step_ns()) == 4


class Rows(torch.utils.data.Dataset):
    def __init__(self, draws):
        self.draws = draws

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + self.draws()


def test_the_losses_before_a_loader_begins_again(numbers):
    training, other = (torch.utils.data.DataLoader(Rows(lambda: 0), batch_size=4) for _ in range(2))
    weight = torch.nn.Parameter(torch.tensor(3.0))
    for loader in (training, other):
        for _ in loader:
            (weight * weight).backward()
    assert numbers.first_epoch is None
    for _ in range(2):
        list(training)
        (weight * weight).backward()
    assert numbers.first_epoch == 4


@pytest.mark.parametrize(
    ("draws", "found"), [(lambda: 0, False), (random.random, True), (lambda: torch.rand(()).item(), True)]
)
def test_samples_that_draw_random_numbers_are_noticed(draws, found):
    watched = SampleDraws()
    watched.install()
    try:
        list(torch.utils.data.DataLoader(Rows(draws), batch_size=4, shuffle=True))
    finally:
        watched.remove()
    assert watched.found is found
