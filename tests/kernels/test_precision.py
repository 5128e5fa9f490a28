import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from diagnose.kernels import precision as module
from diagnose.kernels.parity import Parity, ParityError, check_parity
from diagnose.kernels.precision import OverflowAbort, Precision, best_dtype


def setup(optimizer=torch.optim.SGD, **arguments):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, optimizer(model.parameters(), lr=0.05, **arguments)


def step_of(model, optimizer, precision, clip_norm=None):
    def step(x):
        with precision.autocast():
            loss = (model(x).squeeze(1).float() - x.sum(1)).square().mean()
        precision.backward(loss)
        precision.step(optimizer, clip_norm=clip_norm)
        optimizer.zero_grad()
        return loss

    return step


def data(num=5):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(16, 6, generator=generator) for _ in range(num)]


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_agrees_with_the_native_calls_bit_by_bit(dtype, clip):
    model, optimizer = setup()
    step = step_of(model, optimizer, Precision("cpu", dtype), clip)
    losses = [step(x).item() for x in data()]
    model, optimizer = setup()
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    for x, loss in zip(data(), losses, strict=True):
        with torch.autocast("cpu", dtype):
            expected = (model(x).squeeze(1).float() - x.sum(1)).square().mean()
        scaler.scale(expected).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert expected.item() == loss


def test_float32_changes_nothing():
    model, optimizer = setup()
    precision = Precision("cpu", torch.float32)
    assert not precision.enabled
    losses = [step_of(model, optimizer, precision)(x).item() for x in data()]
    model, optimizer = setup()
    for x, loss in zip(data(), losses, strict=True):
        expected = (model(x).squeeze(1) - x.sum(1)).square().mean()
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert expected.item() == loss


def test_gradients_are_computed_outside_of_autocast():
    model, _ = setup()
    precision = Precision("cpu", torch.bfloat16)
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(torch.is_autocast_enabled("cpu"))
            return gradient

    with precision.autocast():
        precision.backward(Look.apply(model(data()[0])).sum())
    assert seen == [False]


@pytest.mark.parametrize("arguments", [{}, {"optimizer": torch.optim.AdamW, "fused": True}])
def test_overflows_are_skipped_counted_and_end_the_run(arguments):
    model, optimizer = setup(**arguments)
    before = copy.deepcopy(model.state_dict())
    precision = Precision("cpu", torch.float16, max_skipped=3)
    step = step_of(model, optimizer, precision)
    for _ in range(3):
        step(data()[0] * float("inf"))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert precision.scaler.get_scale() == 2.0**13
    with pytest.raises(OverflowAbort, match="3 steps in a row overflowed"):
        [step(data()[0] * float("inf")) for _ in range(2)]
    assert precision.skipped == 3


def test_an_optimizer_without_gradients_is_left_as_it_is():
    precision, weights = Precision("cpu", torch.float16), [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.5) for weight in weights]
    precision.backward(weights[0].sum())
    assert precision.step(*optimizers)
    assert [weight.tolist() for weight in weights] == [[0.5, 0.5], [1.0, 1.0]]


def test_a_good_step_ends_the_row():
    model, optimizer = setup()
    precision = Precision("cpu", torch.float16, max_skipped=3)
    step = step_of(model, optimizer, precision)
    for number in range(9):
        step(data()[0] * (float("inf") if number % 3 else 1.0))
    state = precision.state_dict()
    assert (state["skipped"], state["skipped_in_a_row"], state["steps"]) == (6, 2, 9)


def test_state_goes_on_where_it_was():
    model, optimizer = setup()
    precision = Precision("cpu", torch.float16)
    step = step_of(model, optimizer, precision)
    step(data()[0] * float("inf"))
    step(data()[0])
    state = precision.state_dict()
    other = Precision("cpu", torch.float16)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.scaler.get_scale() == 2.0**15
    step_of(model, optimizer, other)(data()[0])
    assert other.state_dict()["skipped"] == 1, "a lower scale than the initial one is no skipped step"
    bfloat = Precision("cpu", torch.bfloat16)
    bfloat.load_state_dict(state)
    assert (bfloat.skipped, bfloat.scaler.is_enabled()) == (1, False)
    other.load_state_dict(bfloat.state_dict())
    assert other.scaler.get_scale() == 2.0**15


def test_the_state_of_a_scaler_alone_is_refused():
    precision = Precision("cpu", torch.float16)
    with pytest.raises(ValueError, match=r"is not one of Precision; load a GradScaler's into precision\.scaler"):
        precision.load_state_dict(precision.scaler.state_dict())


def test_dtype_is_what_the_device_has(monkeypatch):
    assert best_dtype("cpu") is torch.bfloat16
    assert best_dtype("meta") is torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported, dtype in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(module.torch.cuda, "is_bf16_supported", lambda including_emulation, s=supported: s)
        assert best_dtype("cuda") is dtype


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"not torch\.float64"):
        Precision("cpu", torch.float64)
    with pytest.raises(ValueError, match="max_skipped >= 1"):
        Precision("cpu", max_skipped=0)
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    precision = Precision("cpu", torch.float16)
    precision.backward(weight.sum())
    with pytest.raises(ValueError, match="holds float16 weights"):
        precision.step(torch.optim.SGD([weight], lr=1.0))
    assert weight.tolist() == [1, 1]


def test_parity_measures_the_distance_and_leaves_no_trace():
    model, optimizer = setup(torch.optim.AdamW)
    precision = Precision("cpu", torch.float16, initial_scale=2.0**10)
    step = step_of(model, optimizer, precision)
    step(data()[0])
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"], precision.state_dict()))
    rng = torch.get_rng_state()
    parity = check_parity(step, data(9), state=(model, optimizer, precision), reference=precision.switched_off, steps=7)
    assert len(parity.losses) == len(parity.reference) == 7
    assert 0 < parity.worst < 0.02
    parity.require(0.02)
    with pytest.raises(ParityError, match="in the reference"):
        parity.require(parity.worst / 2)
    after = (model.state_dict(), optimizer.state_dict()["state"], precision.state_dict())
    for one, other in zip(before[:2], after[:2], strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert after[2] == before[2]
    assert torch.equal(rng, torch.get_rng_state())
    assert "apart" in str(parity)


def test_parity_puts_back_what_a_scheduler_changed():
    model, optimizer = setup()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []

    def step(x):
        rates.append(optimizer.param_groups[0]["lr"])
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return loss

    parity = check_parity(step, data(), state=(model, optimizer, scheduler), reference=nullcontext, steps=2)
    assert rates == [0.05, 0.025, 0.05, 0.025]
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert parity.worst == 0.0


def test_parity_is_exact_for_the_same_training():
    model, optimizer = setup()
    precision = Precision("cpu", torch.float32)
    step = step_of(model, optimizer, precision)
    assert check_parity(step, data(), state=(model, optimizer), reference=precision.switched_off).worst == 0.0


def test_parity_sees_infinities():
    assert Parity((1.0, float("nan")), (1.0, 2.0)).worst == float("inf")
    assert Parity((float("nan"),), (float("nan"),)).worst == 0.0
    with pytest.raises(ParityError, match="nan"):
        Parity((float("nan"),), (1.0,)).require()


def test_parity_puts_everything_back_after_an_error():
    model, optimizer = setup()
    before = copy.deepcopy(model.state_dict())
    precision = Precision("cpu", torch.float32)
    step = step_of(model, optimizer, precision)
    numbers = iter(range(10))

    def failing(x):
        loss = step(x)
        return loss if next(numbers) < 7 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        check_parity(failing, data(), state=(model, optimizer), reference=precision.switched_off)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


def test_parity_refuses_what_it_cannot_compare():
    model, _ = setup()
    off = Precision("cpu", torch.float32).switched_off
    for batches, state, steps in (([], (model,), 3), (data(), (), 3), (data(), (model,), 0)):
        with pytest.raises(ValueError, match="check_parity"):
            check_parity(lambda x: 0.0, batches, state=state, reference=off, steps=steps)
    with pytest.raises(TypeError, match="returned None"):
        check_parity(lambda x: None, data(), state=(model,), reference=off)


def test_reading_the_batches_to_compare_leaves_generators_as_they_were():
    def drawn():
        while True:
            yield torch.rand(2)

    model, state = nn.Linear(2, 1), torch.get_rng_state()
    check_parity(lambda x: model(x).sum(), drawn(), state=(model,), reference=nullcontext, steps=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_knob_for_float32_products_is_put_back():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    precision = Precision("cpu", float32="tf32")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)
    with precision.switched_off():
        assert not precision.enabled
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)
    assert torch.get_float32_matmul_precision() == "high"
    precision.undo()
    precision.undo()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
    Precision("cpu").undo()
    with pytest.raises(ValueError, match='"ieee" or "tf32"'):
        Precision("cpu", float32="tf64")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_gradients_are_multiplied_before_they_are_clipped():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([6.0, 8.0])
    Precision("cpu", torch.float32).step(optimizer, scale_by=0.25, clip_norm=2.0)
    torch.testing.assert_close(weight.detach(), -torch.tensor([1.2, 1.6]), rtol=1e-5, atol=0)
    weight.grad = torch.tensor([6.0, 8.0])
    Precision("cpu", torch.float32).step(optimizer, scale_by=0.1)
    torch.testing.assert_close(weight.detach(), -torch.tensor([1.8, 2.4]), rtol=1e-5, atol=0)
