from types import SimpleNamespace

import pytest
import torch

from diagnose.kernels.distributed import comm_hooks
from diagnose.kernels.distributed._int8 import Int8, dequantised, quantised
from diagnose.kernels.distributed.comm_hooks import comm_hook, hook_names


def test_hooks_have_names():
    assert hook_names() == ["bf16", "fp16", "hierarchical", "int8", "plain", "power_sgd"]
    assert [comm_hook(n).name for n in hook_names() if n != "hierarchical"] == [
        "bf16",
        "fp16",
        "int8",
        "plain",
        "power_sgd",
    ]


@pytest.mark.parametrize(
    ("name", "options", "error", "text"),
    [
        ("bfp16", {}, ValueError, "there are bf16, fp16"),
        ("fp16", {"rank": 2}, TypeError, "takes no options"),
        ("power_sgd", {"ranks": 2}, TypeError, "takes rank, warm_up"),
        ("power_sgd", {"rank": 0}, ValueError, "rank >= 1"),
        ("int8", {"block": 0}, ValueError, "block >= 1"),
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


def test_int8_is_refused_where_it_sends_more(monkeypatch):
    nine = SimpleNamespace(process_group=SimpleNamespace(size=lambda: 9))

    with pytest.raises(ValueError, match="use it for up to 8"):
        Int8().check(nine)


def test_registered_names_are_not_taken_over(monkeypatch):
    monkeypatch.setattr(comm_hooks, "_HOOKS", dict(comm_hooks._HOOKS))
    comm_hooks.register("own", lambda: comm_hook("plain"))
    assert comm_hook("own").name == "plain"
    with pytest.raises(ValueError, match="exists already"):
        comm_hooks.register("own", lambda: comm_hook("plain"))
