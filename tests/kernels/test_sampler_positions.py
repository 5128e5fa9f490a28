"""Where samplers with an order for each epoch are: what is saved before, within and between epochs leads on."""

from types import SimpleNamespace

import pytest

from diagnose.kernels.distributed import _uneven_batches
from diagnose.kernels.distributed.uneven import UnevenBatches
from diagnose.kernels.length_batches import LengthBatches

NUM = 5  # batches of an epoch


@pytest.fixture(params=["uneven", "lengths"])
def made(request, monkeypatch):
    """Return what makes a sampler of rank 0 of 2, whose epochs have five batches."""
    alone = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    monkeypatch.setattr(_uneven_batches, "whole_group", lambda _: alone)
    if request.param == "uneven":
        return lambda: UnevenBatches(10 * NUM, 10)
    return lambda: LengthBatches([7] * 10 * NUM, max_samples=5, rank=0, num_ranks=2)


def epoch_of(made, epoch):
    sampler = made()
    sampler.set_epoch(epoch)
    return list(sampler)


def begin(sampler, num):
    """Draw some batches, as a loop that is left does."""
    return [batch for _, batch in zip(range(num), sampler, strict=False)]


def resumed(made, state):
    sampler = made()
    sampler.load_state_dict(state)
    return sampler


@pytest.mark.parametrize("epoch", [0, 1, 4])
@pytest.mark.parametrize("num", [0, 2, NUM])
def test_what_was_loaded_is_saved_again_as_it_is(made, epoch, num):
    sampler = made()
    sampler.set_epoch(epoch)
    begin(sampler, num)
    state = sampler.state_dict()
    assert (state["epoch"], state["taken"]) == ((epoch, num) if num < NUM else (epoch + 1, 0))
    assert resumed(made, state).state_dict() == state
    assert list(resumed(made, state)) == (epoch_of(made, epoch)[num:] if num < NUM else epoch_of(made, epoch + 1))


def test_before_the_first_batch_all_of_them_are_to_come(made):
    state = made().state_dict()
    assert (state["epoch"], state["taken"]) == (0, 0)
    assert list(resumed(made, state)) == list(made()) == epoch_of(made, 0)


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_another_epoch_than_the_loaded_one_begins_anew(made, epoch):
    sampler = resumed(made, made().state_dict() | {"epoch": 2, "taken": 3})
    sampler.set_epoch(epoch)
    state = sampler.state_dict()
    assert (state["epoch"], state["taken"]) == (epoch, 0)
    assert list(sampler) == epoch_of(made, epoch)


def test_the_loaded_epoch_goes_on_when_a_loop_names_it(made):
    sampler = resumed(made, made().state_dict() | {"epoch": 2, "taken": 3})
    sampler.set_epoch(2)
    assert sampler.state_dict()["taken"] == 3
    assert list(sampler) == epoch_of(made, 2)[3:]
    assert list(sampler) == epoch_of(made, 3), "the position is for one pass"


@pytest.mark.parametrize("num", [2, NUM])
def test_between_two_epochs_the_one_that_was_named_comes_next(made, num):
    sampler = made()
    begin(sampler, num)
    sampler.set_epoch(1)
    state = sampler.state_dict()
    assert (state["epoch"], state["taken"]) == (1, 0)
    assert sampler.state_dict(taken=0) == state
    assert list(resumed(made, state)) == epoch_of(made, 1)
