from types import SimpleNamespace

import pytest
import torch

from diagnose.kernels.distributed import comm_hooks
from diagnose.kernels.distributed._int8 import dequantised, quantised
from diagnose.kernels.distributed._one_bit import signs, values_of_signs
from diagnose.kernels.distributed.comm_hooks import comm_hook, hook_names


def test_hooks_have_names():
    assert hook_names() == ["bf16", "fp16", "hierarchical", "int8", "one_bit", "plain", "power_sgd", "top_k"]
    assert [comm_hook(n).name for n in hook_names() if n != "hierarchical"] == [
        "bf16",
        "fp16",
        "int8",
        "one_bit",
        "plain",
        "power_sgd",
        "top_k",
    ]


@pytest.mark.parametrize(
    ("name", "options", "error", "text"),
    [
        ("bfp16", {}, ValueError, "use one of bf16, fp16"),
        ("fp16", {"rank": 2}, TypeError, "takes no options"),
        ("power_sgd", {"ranks": 2}, TypeError, "takes rank, warm_up"),
        ("power_sgd", {"rank": 0}, ValueError, "rank >= 1"),
        ("int8", {"block": 0}, ValueError, "block >= 1"),
        ("one_bit", {"block": 12}, ValueError, "a multiple of 8"),
        ("one_bit", {"warm_up": -1}, ValueError, "warm_up >= 0"),
        ("top_k", {"density": 0.6}, ValueError, "density above 0 and of 0.5 at most"),
        ("top_k", {"density": 0.0}, ValueError, "density above 0"),
        ("hierarchical", {}, TypeError, "takes mesh"),
    ],
)
def test_wrong_names_and_options_are_refused(name, options, error, text):
    with pytest.raises(error, match=text):
        comm_hook(name, **options)


def test_a_hook_that_is_not_installed_says_so():
    with pytest.raises(RuntimeError, match="call install"):
        _ = comm_hook("fp16").group


@pytest.mark.parametrize("num", [0, 1, 7, 8, 9, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_eight_bits_hold_each_value_to_half_a_step_of_its_block(num, dtype):
    values = torch.randn(num, generator=torch.Generator().manual_seed(num)).to(dtype)
    back = dequantised(quantised(values, 8), 8)[:num]
    for start in range(0, num, 8):
        block = values[start : start + 8].float()
        assert (block - back[start : start + 8]).abs().max() <= block.abs().max() / 127 / 2 * 1.001


def test_eight_bits_are_exact_for_zeros_and_extremes():
    values = torch.tensor([0.0, 0, 0, 0, 127, -127, 1, 0])
    assert torch.equal(dequantised(quantised(values, 4), 4), values)
    assert quantised(values, 4).numel() == 8 + 2 * 4


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_stays_so_in_its_block_only(bad):
    back = dequantised(quantised(torch.tensor([1.0, bad, 2.0, 3.0]), 2), 2)
    assert not bool(torch.isfinite(back[:2]).all())
    assert torch.isfinite(back[2:]).all()


def test_signs_and_their_mean_magnitude():
    values = torch.tensor([1.0, -3, 2, -2, 0, 0, 0, 0, -5, 1])
    packed = signs(values, 8)
    assert packed.numel() == 2 + 2 * 4
    assert values_of_signs(packed, 8)[:10].tolist() == [1, -1, 1, -1, 1, 1, 1, 1, -3, 3]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_signs_of_what_is_not_finite_stay_so_in_their_block_only(bad):
    back = values_of_signs(signs(torch.cat([torch.ones(8), torch.tensor([1.0, bad])]), 8), 8)
    assert torch.isfinite(back[:8]).all()
    assert not bool(torch.isfinite(back[8:10]).any())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_largest_and_their_places(dtype):
    values = torch.tensor([1, -3, 2, 0.5, 0, -4, 0.25], dtype=dtype)
    hook, total = comm_hook("top_k", density=0.3), torch.ones(7, dtype=torch.promote_types(dtype, torch.float32))
    packed = hook.packed(values)  # three of seven, rounded up
    assert packed.numel() == 3 * (dtype.itemsize + 4)
    hook.add_unpacked(packed, total, dtype)
    assert total.tolist() == [1, -2, 3, 1, 1, -3, 1]


@pytest.mark.parametrize(("name", "options", "most"), [
    ("int8", {}, 8), ("one_bit", {}, 56), ("top_k", {"density": 0.01}, 100), ("top_k", {"density": 0.25}, 4),
])  # fmt: skip
def test_hooks_that_gather_are_refused_where_they_send_more(name, options, most):
    ddp = SimpleNamespace(process_group=SimpleNamespace(size=lambda: most + 1))
    with pytest.raises(ValueError, match=f"use it for up to {most},"):
        comm_hook(name, **options).check(ddp)


def test_registered_names_are_not_taken_over(monkeypatch):
    monkeypatch.setattr(comm_hooks, "_HOOKS", dict(comm_hooks._HOOKS))
    comm_hooks.register("own", lambda: comm_hook("plain"))
    assert comm_hook("own").name == "plain"
    with pytest.raises(ValueError, match="exists already"):
        comm_hooks.register("own", lambda: comm_hook("plain"))
