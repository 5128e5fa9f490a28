"""fp16 with a GradScaler put around an unmodified loop; on a CPU, whose autocast has fp16 too."""

from functools import partial

import pytest
import torch
from torch import nn

from diagnose.changes import CHANGES
from diagnose.changes.common.change import CannotApply, Log
from diagnose.changes.patches.precision import ScaledTraining
from diagnose.trials.measuring import Numbers

NUM_STEPS = 4


@pytest.fixture
def scaled():
    """Return the log of the patch, in place until the test is over."""
    log = Log()
    undo = ScaledTraining(log, "cpu").install()
    yield log
    undo()


def make(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, optimizer(model.parameters(), lr=0.1, **options)


def batches(num=NUM_STEPS):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 8, generator=generator) for _ in range(num)]


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(model, optimizer, passes=1, clip=None):
    for i, x in enumerate(batches(), 1):
        model(x).square().mean().backward()
        if i % passes == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def train_by_hand(model, optimizer, passes=1, clip=None):
    """Train as torch's documentation has it."""
    scaler = torch.amp.GradScaler("cpu")
    for i, x in enumerate(batches(), 1):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        scaler.scale(out.float().square().mean()).backward()
        if i % passes == 0:
            scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, partial(torch.optim.AdamW, fused=True)])
@pytest.mark.parametrize(("passes", "clip"), [(1, None), (1, 1e-3), (2, None), (2, 1e-3)])
def test_it_trains_as_a_loop_that_was_written_so(optimizer, passes, clip):
    expected = train_by_hand(*make(optimizer), passes, clip)
    plain = train(*make(optimizer), passes, clip)
    log = Log()
    undo = ScaledTraining(log, "cpu").install()
    try:
        found = train(*make(optimizer), passes, clip)
    finally:
        undo()
    assert torch.equal(found, expected)
    assert not torch.equal(found, plain)
    assert log.done == ["Sequential: forward under fp16 autocast, loss scaled by a GradScaler"]


def test_small_gradients_do_not_vanish(scaled):
    model, _ = make()
    (model(batches()[0]).mean() * 1e-8).backward()
    assert 0 < model[0].weight.grad.abs().max() < 1e-7


def test_a_step_whose_gradients_overflow_is_left_out_and_counted(scaled):
    numbers = Numbers()
    numbers.install()
    try:
        model, optimizer = make()
        before = weights(model)
        for factor in (1e9, 1e9, 1.0):
            (model(batches()[0]).mean() * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(weights(model), before) is (factor > 1)
    finally:
        numbers.remove()
    assert numbers.skipped_steps == 2
    assert numbers.losses[0] == pytest.approx(1e9 * numbers.losses[2])  # heard before it is scaled


def test_a_schedule_and_gradients_that_are_thrown_away_do_no_harm(scaled):
    model, optimizer = make()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model(batches()[0]).mean().backward()
    optimizer.zero_grad()
    optimizer.step()  # nothing to step with
    before = weights(model)
    model(batches()[0]).mean().backward()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert not torch.equal(weights(model), before)


def test_a_closure_runs_before_the_scaler_decides(scaled):
    """Lightning hands forward and backward to the optimizer."""
    model, optimizer = make()
    for x in batches():

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0
    found = weights(model)
    model, optimizer = make()
    assert torch.equal(found, train(model, optimizer))


def two_optimizers():
    model, _kept = make()
    _other = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batches()[0]).mean().backward()


def many_passes():
    _model, optimizer = make(torch.optim.LBFGS)
    optimizer.step(lambda: 0.0)


def many_losses():
    model, _optimizer = make()
    model(batches()[0]).backward(torch.ones(5, 1))


def no_optimizer():
    nn.Linear(8, 1)(batches()[0]).mean().backward()


def a_scaler():
    torch.amp.GradScaler("cpu")


def autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        make()[0](batches()[0])


def half_weights():
    nn.Linear(8, 1).half()(batches()[0].half())


def another_device():
    nn.Linear(8, 1, device="meta")(torch.ones(2, 8, device="meta"))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (two_optimizers, "2 optimizers; a scaler from outside needs exactly one"),
        (many_passes, "LBFGS computes gradients several times"),
        (many_losses, "something else than one scalar loss"),
        (no_optimizer, "no optimizer of torch's kind"),
        (a_scaler, "with its own GradScaler"),
        (autocast, "runs under autocast already"),
        (half_weights, "are fp16 themselves"),
        (another_device, "it is on meta"),
    ],
)
def test_what_no_scaler_can_follow_is_refused_in_a_sentence(scaled, script, said):
    with pytest.raises(CannotApply, match=said) as caught:
        script()
    assert len(str(caught.value).splitlines()) == 1
    assert not torch.is_autocast_enabled("cpu")


def test_the_patch_itself_needs_a_gpu():
    undo = CHANGES["autocast"].patch.install(Log(), {"dtype": "float16"})
    try:
        with pytest.raises(CannotApply, match="needs the model on a GPU; it is on cpu"):
            make()[0](batches()[0])
    finally:
        undo()


def test_undoing_leaves_torch_as_it_was():
    owners = (torch.optim.Optimizer, torch.optim.SGD, torch.amp.GradScaler)
    make()  # torch itself marks the class of the first optimizer
    before, backward = [dict(vars(owner)) for owner in owners], torch.autograd.backward
    undo = ScaledTraining(Log(), "cpu").install()
    train(*make())
    assert torch.optim.SGD.step is not before[1]["step"]
    undo()
    assert [dict(vars(owner)) for owner in owners] == before
    assert torch.autograd.backward is backward


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_trains_in_fp16():
    log = Log()
    undo = CHANGES["autocast"].patch.install(log, {"dtype": "float16"})
    try:
        seen = []
        model, optimizer = make(torch.optim.AdamW)
        model.cuda()[0].register_forward_hook(lambda _m, _args, out: seen.append(out.dtype))
        for x in batches():
            out = model(x.cuda())
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        undo()
    assert set(seen) == {torch.float16}
    assert out.dtype is torch.float32
    assert log.done
