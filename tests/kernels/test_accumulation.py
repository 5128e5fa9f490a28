import copy

import pytest
import torch
from torch import nn

from diagnose.kernels.accumulation import GradientAccumulation
from diagnose.kernels.precision import Precision

SIZES = (5, 5, 3, 5, 5, 1, 4)  # windows of 3: 13, 11, and a last one of 4


def setup(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 4, generator=generator, dtype=torch.float64) for size in SIZES]


def loss_of(model, x):
    return (model(x).squeeze(1) - x.sum(1)).square().mean()


def trained_on_windows(windows, clip=None):
    model, optimizer = setup()
    for window in windows:
        loss_of(model, torch.cat(window)).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_same(one, other, tolerance=1e-12):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("counts", [int, torch.tensor])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_equal_to_large_batches_also_where_sizes_differ(counts, clip):
    data = batches()
    model, optimizer = setup()
    accumulation = GradientAccumulation(model, optimizer, every=3, clip_norm=clip)
    for x in accumulation.over(data):
        with accumulation.micro_batch(counts(len(x))) as micro:
            micro.backward(loss_of(model, x))
    assert accumulation.steps == 3
    expected = trained_on_windows([data[:3], data[3:6], data[6:]], clip)
    assert_same(model, expected, 1e-12 if counts is int else 1e-6)  # tensors count in float32


def test_dividing_by_the_number_of_batches_would_be_wrong():
    data = batches()
    model, optimizer = setup()
    for x in data[:3]:
        (loss_of(model, x) / 3).backward()
    optimizer.step()
    with pytest.raises(AssertionError):
        assert_same(model, trained_on_windows([data[:3]]), 1e-4)


def test_float32_is_exact_to_a_millionth():
    data = [x.float() for x in batches()]
    model, optimizer = setup()
    model.float()
    whole = copy.deepcopy(model)
    loss_of(whole, torch.cat(data)).backward()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad.clone() for p in model.parameters()))
    accumulation = GradientAccumulation(model, optimizer, every=7)
    for x in accumulation.over(data):
        with accumulation.micro_batch(len(x)) as micro:
            micro.backward(loss_of(model, x))
    for gradient, p in zip(seen, whole.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad, rtol=1e-6, atol=1e-6)


def test_block_flushes_what_is_left():
    data = batches()
    model, optimizer = setup()
    with GradientAccumulation(model, optimizer, every=3) as accumulation:
        for x in data[:5]:
            with accumulation.micro_batch(len(x)) as micro:
                micro.backward(loss_of(model, x))
    assert accumulation.steps == 2
    assert_same(model, trained_on_windows([data[:3], data[3:5]]))
    assert accumulation.flush() is False


def test_scheduler_steps_with_the_optimizer_only():
    model, optimizer = setup()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    accumulation = GradientAccumulation(model, optimizer, every=3, scheduler=scheduler)
    for x in accumulation.over(batches()):
        with accumulation.micro_batch(len(x)) as micro:
            micro.backward(loss_of(model, x))
    assert scheduler.get_last_lr() == [0.1 * 0.5**3]


def test_an_error_drops_the_window_and_nothing_is_half_done():
    data = batches()
    model, optimizer = setup()
    before = copy.deepcopy(model.state_dict())
    accumulation = GradientAccumulation(model, optimizer, every=3)
    with accumulation.micro_batch(5) as micro:
        micro.backward(loss_of(model, data[0]))
    with pytest.raises(ZeroDivisionError), accumulation.micro_batch(5) as micro:
        micro.backward(loss_of(model, data[1]) / (1 / 0))
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    for x in accumulation.over(data[:3]):
        with accumulation.micro_batch(len(x)) as micro:
            micro.backward(loss_of(model, x))
    assert_same(model, trained_on_windows([data[:3]]))


def test_scaler_unscales_once_and_skipped_steps_are_not_scheduled():
    data = [x.float() for x in batches()]
    model, optimizer = setup()
    model.float()
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    precision = Precision("cpu", torch.float16, initial_scale=2.0**10)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0)
    accumulation = GradientAccumulation(
        model, optimizer, every=7, precision=precision, clip_norm=0.5, scheduler=scheduler
    )
    for _ in range(30):
        for x in accumulation.over(data):
            with accumulation.micro_batch(len(x)) as micro:
                with precision.autocast():
                    loss = loss_of(model, x)
                micro.backward(loss * 1e30 if precision.steps < 2 else loss)
        if precision.steps > 2:
            loss_of(twin, torch.cat(data)).backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
            twin_optimizer.step()
            twin_optimizer.zero_grad()
    skipped = precision.state_dict()["skipped"]
    assert skipped >= 2
    assert scheduler.last_epoch == 30 - skipped
    assert_same(model, twin, 0.02)


@pytest.mark.parametrize("fused", [False, True])
def test_windows_that_the_scaler_skips_are_no_steps(fused):
    weight = nn.Parameter(torch.ones(3))
    model = nn.ParameterList([weight])
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    precision = Precision("cpu", torch.float16, initial_scale=2.0)
    accumulation = GradientAccumulation(model, optimizer, every=2, precision=precision)
    counted = []
    for window in range(6):
        for _ in range(2):
            with accumulation.micro_batch(1) as micro:
                micro.backward(weight.sum() * (float("inf") if window in (0, 3) else 1.0))
        counted.append(accumulation.steps)
    assert counted == ([1, 2, 2, 3, 4, 4] if fused else [0, 1, 2, 2, 3, 4])  # a fused one decides on the device
    assert precision.state_dict()["skipped"] == 2
    assert int(optimizer.state[weight]["step"]) == accumulation.steps == 4


def test_wrong_use_is_refused():
    model, optimizer = setup()
    with pytest.raises(ValueError, match="every >= 1, not 0"):
        GradientAccumulation(model, optimizer, every=0)
    accumulation = GradientAccumulation(model, optimizer, every=2)
    with pytest.raises(ValueError, match="count >= 1, not 0"), accumulation.micro_batch(0):
        pass
    with pytest.raises(RuntimeError, match=r"without micro\.backward"), accumulation.micro_batch(1):
        pass
    with accumulation.micro_batch(1) as micro:
        micro.backward(loss_of(model, batches()[0]))
    with pytest.raises(RuntimeError, match="A window is still open"):
        list(accumulation.over([1]))
    accumulation.drop()
    assert list(accumulation.over([1, 2])) == [1, 2]


def test_losses_keep_the_size_that_the_scaler_knows():
    model, optimizer = setup()
    precision, sizes = Precision("cpu", torch.float32), []
    original = precision.backward
    precision.backward = lambda loss: (sizes.append(loss.item()), original(loss))
    accumulation = GradientAccumulation(model, optimizer, every=2, precision=precision)
    for count, loss in [(5, 1.0), (5, 2.0), (10, 3.0)]:
        with accumulation.micro_batch(count) as micro:
            micro.backward(loss + 0 * loss_of(model, torch.zeros(1, 4, dtype=torch.float64)))
    assert sizes == [1.0, 2.0, 6.0], "in units of the first batch"
    accumulation.drop()


def test_a_block_within_another_is_refused_and_drops_the_window():
    model = nn.Linear(2, 1)
    accumulation = GradientAccumulation(model, torch.optim.SGD(model.parameters(), lr=0.1), every=2)

    def nested():
        with accumulation.micro_batch(1) as micro:
            micro.backward(model(torch.ones(1, 2)).sum())
            with accumulation.micro_batch(1):
                pass

    with pytest.raises(RuntimeError, match="entered within another one"):
        nested()
    assert model.weight.grad is None
    with accumulation.micro_batch(1) as micro:  # it goes on
        micro.backward(model(torch.ones(1, 2)).sum())


def test_a_batch_after_a_loop_is_not_the_last_of_one():
    model = torch.nn.Linear(2, 1)
    accumulation = GradientAccumulation(model, torch.optim.SGD(model.parameters(), lr=0.1), every=2)
    for x in accumulation.over([torch.ones(4, 2)]):
        with accumulation.micro_batch(4) as micro:
            micro.backward(model(x).mean())
    assert accumulation.steps == 1
    with accumulation.micro_batch(4) as micro:
        micro.backward(model(torch.ones(4, 2)).mean())
    assert accumulation.steps == 1, "the window holds one of two"
    assert accumulation.flush()
    assert accumulation.steps == 2


class Sharded(nn.Linear):
    """Notes whether its gradients are to be exchanged, as a model does that `fully_shard` has split."""

    def __init__(self):
        super().__init__(2, 1)
        self.exchanges = []

    def set_requires_gradient_sync(self, wanted):
        self.exchanges.append(wanted)


def test_a_sharded_model_exchanges_in_the_last_batch_and_outside_of_windows():
    model = Sharded()
    accumulation = GradientAccumulation(model, torch.optim.SGD(model.parameters(), lr=0.1), every=3)
    for _ in range(3):
        with accumulation.micro_batch(2) as micro:
            micro.backward(model(torch.ones(2, 2)).mean())
        assert model.exchanges[-1], "a backward pass outside would not be exchanged"
    assert model.exchanges[::2] == [False, False, True]
    with pytest.raises(ZeroDivisionError), accumulation.micro_batch(2):
        raise ZeroDivisionError
    assert model.exchanges[-2:] == [False, True]
