"""Autocast's rules, the choice of an implementation, and what is said where one is missing."""

import itertools
import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.profiler import profile

from diagnose.kernels import ops
from diagnose.kernels.ops import _choice
from diagnose.kernels.ops.custom_op import checked, operator, using

NUMBERS = itertools.count()  # a name of an operator is used once


def test_autocast_gives_the_dtypes_of_torch_on_gpus(device):
    x = torch.randn(3, 5, device=device, dtype=torch.bfloat16)
    weight = torch.ones(5, device=device)
    with torch.autocast(device, torch.bfloat16):
        assert ops.softmax(x).dtype == torch.float32
        assert ops.layer_norm(x, weight).dtype == torch.float32
        y, stream = ops.add_layer_norm(x, torch.randn(3, 5, device=device), weight)
        assert (y.dtype, stream.dtype) == (torch.float32, torch.float32)
        assert ops.gelu(x).dtype == F.gelu(x).dtype == torch.bfloat16
        assert ops.bias_gelu(x, weight).dtype == torch.bfloat16
        assert ops.rms_norm(x, weight).dtype == torch.bfloat16


def test_gradients_pass_autocast(device):
    x = torch.randn(3, 5, device=device, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast(device, torch.bfloat16):
        loss = ops.softmax(x).square().sum()
    loss.backward()
    want = x.detach().float().requires_grad_()
    F.softmax(want, -1).square().sum().backward()
    torch.testing.assert_close(x.grad.float(), want.grad, rtol=2e-2, atol=2e-2)


def test_a_gpu_without_triton_is_told_once_and_served(monkeypatch):
    monkeypatch.setattr(_choice, "_has_triton", lambda: False)
    monkeypatch.setattr(_choice, "interpreting", lambda: False)
    _choice._say_once.cache_clear()
    tensor = torch.empty(1, device="meta")
    stand_in = type("OnGpu", (), {"device": torch.device("cuda", 0)})()
    with pytest.warns(UserWarning, match=r"plain PyTorch on this GPU: the triton package is not installed; install it"):
        assert _choice.chosen("gelu", [stand_in]) == "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _choice.chosen("gelu", [stand_in]) == "eager"
        assert _choice.chosen("gelu", [tensor]) == "eager"
    with pytest.raises(RuntimeError, match="no Triton programs here"), using("triton"):
        pass


def test_triton_on_a_cpu_needs_the_interpreter(monkeypatch):
    monkeypatch.setattr(_choice, "_has_triton", lambda: True)
    monkeypatch.setattr(_choice, "interpreting", lambda: False)
    with using("triton"), pytest.raises(RuntimeError, match="cannot run its Triton program on cpu"):
        ops.gelu(torch.ones(2))


def test_a_gpu_with_triton_uses_it(monkeypatch):
    monkeypatch.setattr(_choice, "_has_triton", lambda: True)
    monkeypatch.setattr(_choice, "interpreting", lambda: False)
    stand_in = type("OnGpu", (), {"device": torch.device("cuda", 0)})()
    assert _choice.chosen("gelu", [stand_in]) == "triton"
    with using("eager"):
        assert _choice.chosen("gelu", [stand_in]) == "eager"
        with using("auto"):
            assert _choice.chosen("gelu", [stand_in]) == "triton"


def test_no_such_implementation():
    with pytest.raises(ValueError, match="using\\(\\) takes"), using("cuda"):
        pass


def test_the_choice_ends_with_its_block_even_by_an_error():
    with pytest.raises(KeyError), using("eager"):
        raise KeyError
    assert _choice._forced == ["auto"]


def test_a_formula_that_returns_its_argument_is_refused():
    same = operator(
        "test_diagnose::same", "(Tensor x) -> Tensor", check=lambda x: None, eager=lambda x: x, fake=torch.empty_like
    )
    with pytest.raises(RuntimeError, match="alias"):
        same(torch.ones(2))


def test_checks_name_the_argument_and_what_it_got():
    with pytest.raises(
        TypeError, match=r"scale needs x in one of float32, float16, bfloat16, float64, not torch\.int64"
    ):
        checked("scale", x=torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="x is on cpu, y on meta"):
        checked("scale", x=torch.ones(2), y=torch.ones(2, device="meta"))


@pytest.fixture
def double():
    made = operator(
        f"test_diagnose::double_{next(NUMBERS)}",
        "(Tensor x) -> Tensor",
        check=lambda x: None,
        eager=lambda x: 2 * x,
        fake=torch.empty_like,
        autocast=torch.float32,
    )
    made(torch.ones(1))  # which torch checks
    return made


def test_what_torch_has_checked_skips_its_dispatcher_where_nothing_has_to_see_it(double, monkeypatch):
    through = []
    definition = double.definition
    monkeypatch.setattr(double, "definition", lambda *a: through.append(a) or definition(*a))
    x = torch.ones(2)
    assert double(x).tolist() == [2, 2]
    assert not through
    with torch.autocast("cpu"):
        assert double(x.bfloat16()).dtype == torch.float32
    with FakeTensorMode() as mode:
        assert double(mode.from_tensor(x)).shape == (2,)
    with profile() as recorded:
        double(x)
    assert double(x.to("meta")).is_meta
    assert torch.vmap(double)(x).tolist() == [2, 2]
    assert len(through) == 4, "vmap runs the formula where no rows are named"
    assert any("double" in event.key for event in recorded.key_averages())


def test_an_operator_without_a_backward_pass_has_none(double):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        double(x).sum().backward()
