"""Every operator once: sample arguments, and what plain PyTorch makes of them. `case` runs a test over all of them."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

# Triton decides when it is first imported whether it interprets; on a machine with a GPU it compiles instead.
if not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"

from diagnose.kernels import ops
from diagnose.kernels.ops.custom_op import Operator, using

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Case:
    """An operator's public function, its reference, and a maker of arguments; floating tensors are differentiated."""

    function: Callable[..., Any]
    reference: Callable[..., Any]
    make: Callable[[torch.dtype], tuple]

    def arguments(self, dtype=torch.float64, *, grad=True):
        torch.manual_seed(7)
        made = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in self.make(dtype)]
        for argument in made:
            if grad and isinstance(argument, torch.Tensor) and argument.is_floating_point():
                argument.requires_grad_()
        return made


def randn(*shapes):
    return lambda dtype: tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def rms(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def classes(*shape, num, ignored=None):
    """Return logits and a target for them, its first row ignored."""

    def make(dtype):
        target = torch.arange(torch.Size(shape).numel()).reshape(shape) % num
        if ignored is not None:
            target.view(-1)[0] = ignored
        return torch.randn(*shape, num, dtype=dtype), target

    return make


def head(dtype):
    logits, target = classes(5, num=4, ignored=-100)(dtype)
    return logits, torch.randn(6, 4, dtype=dtype), target


def turned(x, cos, sin):
    half = torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
    return x * torch.cat((cos, cos), -1) + half * torch.cat((sin, sin), -1)


def places(x):
    return tuple(part.to(getattr(x, "device", DEVICE)) for part in ops.angles(3, 4))


def turned_interleaved(x):
    cos, sin = places(x.cpu())
    pairs = torch.view_as_complex(x.unflatten(-1, (2, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin).to(x.device)[:, None]).flatten(-2)


CASES = {
    "scale": Case(lambda x: ops.scale(x, 0.3), lambda x: x * 0.3, randn((3, 5))),
    "gelu": Case(ops.gelu, F.gelu, randn((5, 7))),
    "gelu-tanh": Case(lambda x: ops.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), randn((3, 5))),
    "softmax": Case(ops.softmax, lambda x: F.softmax(x, -1), randn((3, 7))),
    "softmax-first": Case(lambda x: ops.softmax(x, 0), lambda x: F.softmax(x, 0), randn((3, 2, 3))),
    "rms_norm": Case(ops.rms_norm, rms, randn((3, 7), (7,))),
    "add_rms_norm": Case(ops.add_rms_norm, lambda x, r, w: (rms(x + r, w), x + r), randn((3, 2, 5), (3, 2, 5), (5,))),
    "layer_norm": Case(
        ops.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), randn((3, 2, 5), (2, 5), (2, 5))
    ),
    "add_layer_norm": Case(
        ops.add_layer_norm,
        lambda x, r, w, b: (F.layer_norm(x + r, w.shape, w, b), x + r),
        randn((3, 7), (3, 7), (7,), (7,)),
    ),
    "layer_norm-plain": Case(ops.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:]), randn((3, 7))),
    "swiglu": Case(ops.swiglu, lambda gate, up: F.silu(gate) * up, randn((3, 5), (3, 5))),
    "cross_entropy": Case(ops.cross_entropy, F.cross_entropy, classes(4, num=5, ignored=-100)),
    "cross_entropy-smoothed": Case(
        lambda x, t: ops.cross_entropy(x, t, label_smoothing=0.2, reduction="none", ignore_index=2),
        lambda x, t: F.cross_entropy(x.movedim(-1, 1), t, label_smoothing=0.2, reduction="none", ignore_index=2),
        classes(2, 3, num=7),
    ),
    "linear_cross_entropy": Case(
        lambda h, w, t: ops.linear_cross_entropy(h, w, t, chunk=2),
        lambda h, w, t: F.cross_entropy(h @ w.t(), t),
        head,
    ),
    "rotary": Case(lambda x: ops.rotary(x, *places(x)), lambda x: turned(x, *places(x)), randn((2, 3, 4))),
    "rotary-interleaved": Case(
        lambda x: ops.rotary(x, *places(x), seq_dim=-3, interleaved=True),
        turned_interleaved,
        randn((2, 3, 2, 4)),
    ),
    "bias_gelu": Case(ops.bias_gelu, lambda x, bias: F.gelu(x + bias), randn((3, 2, 5), (5,))),
}


IMPLEMENTATIONS = ("eager", "triton")
COMPILED = ("scale", "add_rms_norm", "cross_entropy")  # every day
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def pytest_collection_modifyitems(config, items):
    """Mark as full what the everyday tests can do without of the product of operator, implementation and dtype.

    Every test keeps every operator, and each dtype and each implementation for some of them.

    A module's ``is_comparable`` leaves out what has no meaning: nothing to skip is collected.
    """
    senseless = [
        item
        for item in items
        if not getattr(getattr(item, "module", None), "is_comparable", lambda _chosen: True)(
            getattr(getattr(item, "callspec", None), "params", {})
        )
    ]
    if senseless:
        config.hook.pytest_deselected(items=senseless)
    left_out = set(senseless)
    items[:] = [item for item in items if item not in left_out]
    tests = list(dict.fromkeys(getattr(item, "originalname", "") for item in items))
    for item in items:
        chosen = getattr(getattr(item, "callspec", None), "params", {})
        if "compiles" in getattr(item, "originalname", "") and chosen.get("case", COMPILED[0]) not in COMPILED:
            item.add_marker("full")
        if {"case", "implementation"} <= set(chosen) and not _is_of_every_day(tests.index(item.originalname), chosen):
            item.add_marker("full")


def _is_of_every_day(number, chosen):
    row = list(CASES).index(chosen["case"])
    if "dtype" not in chosen:
        return IMPLEMENTATIONS[(row + number) % 2] == chosen["implementation"]
    column = DTYPES.index(chosen["dtype"])
    if {"hard", "value"} & set(chosen):  # the dearest, of three dtypes
        wanted = "eager" if chosen["dtype"] == torch.bfloat16 else IMPLEMENTATIONS[row // 3 % 2]
        return column == 1 + row % 3 and chosen["implementation"] == wanted
    return IMPLEMENTATIONS[(row + column) % 2] == chosen["implementation"]


@pytest.fixture(params=list(CASES))
def case(request):
    return CASES[request.param]


@pytest.fixture
def cases():
    return CASES


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    """Run a test in each implementation; the Triton programs are interpreted where there is no GPU."""
    if request.param == "triton":
        pytest.importorskip("triton", reason="triton, which needs Linux, is not installed")
    with using(request.param), np.errstate(all="ignore"):  # the interpreter calculates with numpy
        yield request.param


@pytest.fixture
def device():
    return DEVICE


@pytest.fixture
def calls(monkeypatch):
    """Record each operator that runs, with its arguments."""
    recorded = []
    original = Operator.__call__

    def call(self, *arguments):
        recorded.append((self.definition, arguments))
        return original(self, *arguments)

    monkeypatch.setattr(Operator, "__call__", call)
    return recorded
