"""Errors against float64 are at most 1.5 times those of PyTorch in the same dtype, also on inputs that are hard."""

import math

import pytest
import torch

ROWS, WIDTH = 24, 36
SLACK = 1.5
SHAPES = {
    "rms_norm": ((ROWS, WIDTH), (WIDTH,)),
    "add_rms_norm": ((ROWS, 2, WIDTH), (ROWS, 2, WIDTH), (WIDTH,)),
    "layer_norm": ((ROWS, 4, 9), (4, 9), (4, 9)),
    "add_layer_norm": ((ROWS, WIDTH), (ROWS, WIDTH), (WIDTH,), (WIDTH,)),
    "swiglu": ((ROWS, WIDTH), (ROWS, WIDTH)),
    "bias_gelu": ((ROWS, 2, WIDTH), (WIDTH,)),
    "linear_cross_entropy": ((ROWS, 8), (WIDTH, 8)),
    "rotary": ((ROWS, 3, 8),),
}
"""Of the floating arguments; one tensor of rows where nothing is given."""

TARGETS = frozenset({"cross_entropy", "cross_entropy-smoothed", "linear_cross_entropy"})
WITH_ANGLES = frozenset({"rotary", "rotary-interleaved"})  # whose own tables are of four features
HARD = {
    "far from zero": lambda x: x + 100,
    "plain": lambda x: x,
    "large": lambda x: x * 64,
    "tiny": lambda x: x * 2.0**-12,
    "of all sizes": lambda x: x * torch.logspace(-3, 2, x.numel(), dtype=x.dtype).view(x.shape),
}
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
EVERY = pytest.mark.full
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def arguments(case, cases, dtype, change, device, seed=5):
    """Return what the case takes, on the device in float64 and exact in ``dtype``; its first tensor is changed."""
    name = next(name for name, one in cases.items() if one is case)
    if name in WITH_ANGLES:
        floats = [a.cpu() for a in case.arguments(torch.float64, grad=False) if a.is_floating_point()]
    else:
        generator = torch.Generator().manual_seed(seed)
        shapes = SHAPES.get(name, ((ROWS, WIDTH),))
        floats = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    floats[0] = change(floats[0])
    made = [x.to(dtype).double() for x in floats]
    if name in TARGETS:
        target = torch.arange(ROWS) % WIDTH
        target[1] = -100 if name != "cross_entropy-smoothed" else 2  # is ignored there
        made.append(target)
    return [x.to(device) for x in made]


def results(function, given, dtype):
    """Return outputs and gradients in one list."""
    inputs = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in given]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(6)
    slopes = [torch.randint(-8, 9, o.shape, generator=generator).to(o) / 8 for o in outputs]
    slopes = [slope if slope.dim() else torch.ones_like(slope) for slope in slopes]
    leaves = [x for x in inputs if x.is_floating_point()]
    return [*outputs, *torch.autograd.grad(outputs, leaves, slopes)]


def root_mean_square(x):
    return float(x.detach().square().mean().sqrt())


def is_comparable(chosen):
    """Return whether torch has a reference in 16 bits, without complex numbers, and the interpreter rounds as a GPU."""
    is_cut = chosen.get("implementation") == "triton" and chosen.get("dtype") == torch.bfloat16
    return chosen.get("case") != "rotary-interleaved" and (not is_cut or torch.cuda.is_available())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("hard", ["far from zero", *(pytest.param(n, marks=EVERY) for n in list(HARD)[1:])])
def test_errors_are_near_torchs(case, cases, implementation, device, dtype, hard):
    seeds = (5, 6, 7, 8) if hard == "of all sizes" else (5,)  # a few elements decide there, and how they are rounded
    errors = [errors_of(case, arguments(case, cases, dtype, HARD[hard], device, seed), dtype) for seed in seeds]
    slack = SLACK * (math.sqrt(ROWS / 2) if case is cases["linear_cross_entropy"] else 1)  # rounded once a chunk of two
    for number, draws in enumerate(zip(*errors, strict=True)):
        error, least, rounding = (math.hypot(*of_draws) for of_draws in zip(*draws, strict=True))
        assert error <= slack * max(least, rounding) or not math.isfinite(rounding), f"{number}: {error}, {least}"


def errors_of(case, given, dtype):
    """Return for each result the error, that of torch, and what rounding the exact result costs."""
    exact = results(case.reference, given, torch.float64)
    own, mine = results(case.reference, given, dtype), results(case.function, given, dtype)
    return [
        (
            root_mean_square(m.double() - e),
            root_mean_square(o.double() - e),
            torch.finfo(m.dtype).eps * root_mean_square(e) / (2 if e.dim() else 1),
        )
        for m, o, e in zip(mine, own, exact, strict=True)
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("value", ["-inf", *(pytest.param(n, marks=EVERY) for n in SPECIAL if n != "-inf")])
def test_what_is_not_finite_spreads_no_further_than_in_torch(case, cases, implementation, device, dtype, value):
    def one_entry(x):
        x[0].view(-1)[2] = SPECIAL[value]
        x[1] = SPECIAL[value] if value != "inf" else x[1]  # a masked row
        return x

    given = arguments(case, cases, dtype, one_entry, device)
    own, mine = results(case.reference, given, dtype), results(case.function, given, dtype)
    for number, (m, o) in enumerate(zip(mine, own, strict=True)):
        assert not bool((~m.isfinite() & o.isfinite()).any()), f"result {number}"
        lost = ~o.isfinite() & m.isfinite()
        if any(case is cases[name] for name in TARGETS):
            continue  # an ignored row has no gradient, where torch's is NaN
        assert not bool(lost.any()), f"result {number} hides what is not finite"
