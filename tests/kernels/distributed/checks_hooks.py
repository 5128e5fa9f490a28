"""Gradient hooks on two ranks."""

import pytest
import torch
import torch.distributed as dist
from setting import batches, gradients_of, hooked, network, same_on_all_ranks, trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed.comm_hooks import comm_hook, install, register
from diagnose.kernels.distributed.hook_timing import TimedHook, install_timed

STEPS = 60


def check_gradients_agree_with_plain_ddp():
    expected = gradients_of(hooked()[0])
    for name, bound in {"plain": 1e-6, "fp16": 1e-3, "bf16": 1e-2, "int8": 1e-2}.items():
        found = gradients_of(hooked(name)[0])
        error = (found - expected).norm() / expected.norm()
        assert error <= bound, (name, error)
        assert same_on_all_ranks(found), name
        if name != "plain":
            assert error > 1e-6, f"{name} did not compress"


def check_loss_after_sixty_steps_is_near_plain_ddp():
    """The bounds are those that evaluation/pages/remedies.md states."""
    expected = trained(hooked()[0], STEPS)
    assert expected < 0.4, "the task is not learnt, so nothing is compared"
    for name, options, bound in [
        ("fp16", {}, 0.001),
        ("bf16", {}, 0.002),
        ("int8", {}, 0.002),
        ("power_sgd", {"rank": 1, "warm_up": 10}, 0.12),
        ("power_sgd", {"rank": 4, "warm_up": 10}, 0.03),
        ("power_sgd", {"rank": 4, "warm_up": 10, "dtype": torch.bfloat16}, 0.03),
        ("top_k", {"density": 0.1, "warm_up": 10}, 0.12),
        ("one_bit", {"block": 256, "warm_up": 10}, 0.12),
    ]:
        ddp, _ = hooked(name, **options)
        found = trained(ddp, STEPS)
        assert abs(found / expected - 1) < bound, (name, options, expected, found)
        assert same_on_all_ranks(torch.cat([p.detach().flatten() for p in ddp.parameters()])), name


def check_bytes_that_are_sent():
    for name, options, least, most in [
        ("plain", {}, 1.0, 1.0),
        ("fp16", {}, 2.0, 2.0),
        ("bf16", {}, 2.0, 2.0),
        ("int8", {"block": 256}, 3.5, 4.0),
        ("power_sgd", {"rank": 1, "warm_up": 0}, 8.0, 20.0),
        ("top_k", {"density": 0.1, "warm_up": 0}, 4.5, 5.0),
        ("one_bit", {"block": 256, "warm_up": 0}, 20.0, 28.5),
    ]:
        ddp, hook = hooked(name, **options)
        gradients_of(ddp)
        assert hook.raw_bytes == 4 * sum(p.numel() for p in ddp.parameters())
        assert least <= hook.raw_bytes / hook.sent_bytes <= most, (name, hook.raw_bytes / hook.sent_bytes)


def check_power_sgd_is_exact_while_it_warms_up():
    expected, (ddp, hook) = hooked()[0], hooked("power_sgd", warm_up=3)
    trained(expected, 3), trained(ddp, 3)
    for a, b in zip(expected.parameters(), ddp.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert hook.step == 3
    assert not hook.factors
    trained(ddp, 1)
    assert sorted(hook.factors) == ["0.weight", "2.weight", "4.weight"], "biases gain nothing"


def check_power_sgd_of_full_rank_is_exact():
    expected = gradients_of(hooked()[0])
    ddp, _ = hooked("power_sgd", rank=64, warm_up=0, min_saving=0)
    torch.testing.assert_close(gradients_of(ddp), expected, rtol=1e-3, atol=1e-5)


def check_error_feedback_sends_later_what_was_left_out():
    """Without learning, the mean of compressed gradients goes to the gradient."""
    expected = gradients_of(hooked()[0])
    for name, options in [
        ("power_sgd", {"warm_up": 0}),
        ("int8", {"block": 4096}),
        ("top_k", {"warm_up": 0, "density": 0.2}),
        ("one_bit", {"warm_up": 0, "block": 64}),
    ]:
        errors = {}
        for feedback in (True, False):
            ddp, _ = hooked(name, error_feedback=feedback, **options)
            mean = torch.stack([gradients_of(ddp) for _ in range(40)]).mean(0)
            errors[feedback] = float((mean - expected).norm() / expected.norm())
        assert errors[True] < errors[False] / 4, (name, errors)


def check_an_overflowed_step_is_seen_and_then_forgotten():
    expected = gradients_of(hooked()[0])
    for name, options in [
        ("int8", {}),
        ("power_sgd", {"warm_up": 0, "rank": 4}),
        ("top_k", {"warm_up": 0, "density": 0.5}),
        ("one_bit", {"warm_up": 0, "block": 8}),
        ("fp16", {}),
        ("bf16", {}),
    ]:
        ddp, _ = hooked(name, **options)
        gradients_of(ddp)
        ddp.zero_grad()
        x = torch.full((4, 16), float("inf") if dist.get_rank() == 0 else 1.0)
        ddp(x).mean().backward()
        spoilt = torch.cat([p.grad.flatten() for p in ddp.parameters()])
        assert not bool(torch.isfinite(spoilt).all()), f"{name} hides an overflow from the scaler"
        after = torch.stack([gradients_of(ddp) for _ in range(8)]).mean(0)
        assert bool(torch.isfinite(after).all()), f"{name} stays spoilt"
        assert (after - expected).norm() < 0.5 * expected.norm(), (name, (after - expected).norm() / expected.norm())


def check_layouts_of_all_kinds():
    """Channels last, half precision, a scalar, and gradients of zero."""
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3)).to(
        memory_format=torch.channels_last
    )
    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    x = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(dist.get_rank()))

    def gradients(name, **options):
        ddp = DistributedDataParallel(model)
        if name:
            install(ddp, name, **options)
        for p in model.parameters():
            p.grad = None
        (ddp(x).square().mean() + 0.0 * model.scale).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    expected = gradients(None)
    for name, options, bound in [
        ("power_sgd", {"rank": 100, "warm_up": 0, "min_saving": 0}, 1e-4),
        ("int8", {}, 2e-2),
        ("top_k", {"density": 0.5, "warm_up": 0}, 0.5),
        ("bf16", {}, 1e-2),
    ]:
        found = gradients(name, **options)
        assert (found - expected).norm() < bound * expected.norm(), name
    half = nn.Linear(64, 64, bias=False).bfloat16()
    ddp, _ = hooked("power_sgd", half, warm_up=0, rank=2)
    for factor in (0.0, 1.0, 1.0):
        ddp.zero_grad()
        (factor * ddp(torch.ones(2, 64, dtype=torch.bfloat16))).sum().backward()
    torch.testing.assert_close(half.weight.grad.float(), torch.full((64, 64), 2.0), rtol=0.1, atol=0.1)


def check_state_goes_through_a_checkpoint():
    options = {"warm_up": 2, "rank": 2}
    ddp, hook = hooked("power_sgd", **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    trained(ddp, 5, optimizer=optimizer)
    saved = {"model": ddp.module.state_dict(), "hook": hook.state_dict()}
    saved = {part: {k: _copied(v) for k, v in state.items()} for part, state in saved.items()}
    straight = trained(ddp, 3, start=5, optimizer=optimizer)

    model = network(seed=5)
    model.load_state_dict(saved["model"])
    resumed, other = hooked("power_sgd", model, **options)
    other.load_state_dict(saved["hook"])
    assert other.step == 5
    again = trained(resumed, 3, start=5, momentum=0)
    assert abs(again - straight) < 1e-5, (again, straight)
    forgetful, _ = hooked("power_sgd", _like(saved["model"]), **options, error_feedback=False)
    assert trained(forgetful, 3, start=5, momentum=0) != straight, "the state made no difference"
    with pytest.raises(ValueError, match="another hook's"):
        comm_hook("int8").load_state_dict(saved["hook"])
    with pytest.raises(ValueError, match="keeps no state"):
        comm_hook("fp16").load_state_dict(saved["hook"])
    stranger, last = hooked("power_sgd", nn.Linear(3, 3))
    with pytest.raises(ValueError, match="which this model lacks"):
        last.load_state_dict(saved["hook"])
    del stranger


def _copied(value):
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def _like(state):
    model = network()
    model.load_state_dict(state)
    return model


def check_what_would_crash_torch_is_refused():
    ddp, _ = hooked("fp16")
    with pytest.raises(ValueError, match="has the hook 'fp16' already"):
        install(ddp, "bf16")
    used = comm_hook("int8")
    install(hooked()[0], used)
    with pytest.raises(ValueError, match="installed in a model already"):
        install(hooked()[0], used)
    fresh = hooked()[0]
    with pytest.raises(ValueError, match="installed in a model already"):
        install(fresh, used)
    install(torch.compile(fresh, backend="eager"), "plain")  # a refusal leaves the model as it was
    with pytest.raises(TypeError, match="not for Linear"):
        install(nn.Linear(1, 1), "fp16")
    for returned in (None, 3, torch.zeros(1)):
        broken, _ = hooked(lambda state, bucket, r=returned: r)
        with pytest.raises(TypeError, match="has to return a Future"):
            gradients_of(broken)
    with pytest.raises(TypeError, match="not int"):
        install(hooked()[0], 3)
    with pytest.raises(TypeError, match="install got rank"):
        install(hooked()[0], comm_hook("fp16"), rank=1)


def check_own_functions_and_names():
    def doubled(state, bucket):
        state.append(bucket.index())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0])

    expected, seen = gradients_of(hooked()[0]), []
    torch.testing.assert_close(gradients_of(hooked(doubled, state=seen)[0]), 2 * expected)
    assert seen
    register("mine", lambda *, state: TimedHook(comm_hook("fp16")) if state else comm_hook("plain"))
    assert hooked("mine", state=False)[1].name == "plain"
    with pytest.raises(ValueError, match="exists already"):
        register("mine", comm_hook)


def check_timing_wraps_any_hook():
    for name, options in [("plain", {}), ("power_sgd", {"warm_up": 1}), ("int8", {})]:
        expected = gradients_of(hooked(name, **options)[0])
        ddp = DistributedDataParallel(network(), bucket_cap_mb=0.01)
        timing = install_timed(ddp, name, **options)
        assert torch.equal(gradients_of(ddp), expected)
        with pytest.raises(RuntimeError, match="1 were taken"):
            timing.report()
        for _ in range(4):
            gradients_of(ddp)
        report = timing.report()
        assert report.steps == 3
        assert report.buckets > 1
        assert report.bytes == 4 * sum(p.numel() for p in ddp.parameters())
        assert 0 < report.exposed_ms <= report.busy_ms
        assert timing.raw_bytes == 5 * report.bytes
        assert timing.sent_bytes <= timing.raw_bytes
        assert timing.state_dict().keys() == timing.hook.state_dict().keys()
    with pytest.raises(TypeError, match="timed already"):
        install_timed(hooked()[0], timing)


def check_accumulation_exchanges_once_a_window():
    from diagnose.kernels.accumulation import GradientAccumulation

    ddp = DistributedDataParallel(network())
    timing = install_timed(ddp, "bf16")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    accumulation = GradientAccumulation(ddp, optimizer, every=4)
    for x, y in accumulation.over(batches(12)):
        with accumulation.micro_batch(len(x)) as micro:
            micro.backward(nn.functional.cross_entropy(ddp(x), y))
    assert timing.raw_bytes == 3 * 4 * sum(p.numel() for p in ddp.parameters())


def check_sparse_gradients_arrive_or_are_refused():
    def sparse(hook=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 2))
        ddp = DistributedDataParallel(model)
        if hook is not None:
            install(ddp, hook)
        ddp(torch.tensor([1, 3]) + 2 * dist.get_rank()).sum().backward()
        return model[0].weight.grad.to_dense()

    expected = sparse()
    assert torch.equal(sparse("plain"), expected)
    assert torch.allclose(sparse("bf16"), expected, rtol=1e-2)
    for name in ("fp16", "int8", "one_bit", "power_sgd", "top_k"):
        with pytest.raises(ValueError, match=rf"'0.weight' has sparse gradients.*hook '{name}'.*sparse=False"):
            sparse(name)
        with pytest.raises(ValueError, match="has sparse gradients"):
            install_timed(DistributedDataParallel(nn.Embedding(8, 4, sparse=True)), name)
    frozen = nn.Sequential(nn.Embedding(8, 4, sparse=True).requires_grad_(False), nn.Linear(4, 2))
    install(DistributedDataParallel(frozen), "int8")
