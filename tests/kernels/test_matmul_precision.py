"""TF32 for float32 products: torch's two kinds of flags, set and put back."""

import functools

import pytest
import torch

from diagnose.kernels.matmul_precision import fp32_precision, set_fp32_precision


def flags():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return torch.get_float32_matmul_precision(), matmul.allow_tf32, cudnn.allow_tf32  # raise where flags contradict


@pytest.mark.skipif(
    not hasattr(getattr(torch.backends.cudnn, "rnn", None), "fp32_precision"), reason="this torch has one flag for both"
)
def test_convolutions_and_rnns_get_each_their_own_precision_back():
    parts = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = [part.fp32_precision for part in parts]
    try:
        parts[0].fp32_precision, parts[1].fp32_precision = "tf32", "ieee"
        with fp32_precision("ieee", convolutions="ieee"):
            assert not torch.backends.cudnn.allow_tf32
        assert [part.fp32_precision for part in parts] == ["tf32", "ieee"]
    finally:
        for part, value in zip(parts, before, strict=True):
            part.fp32_precision = value


def flag(name):
    """Return what holds one of torch's newer flags, such as that of cudnn.conv; None if this torch lacks it."""
    return functools.reduce(lambda part, each: getattr(part, each, None), name.split("."), torch.backends)


NEWER_FLAGS = [
    name
    for name in (
        "cudnn",
        "mkldnn",
        "cuda.matmul",
        "cudnn.conv",
        "cudnn.rnn",
        "mkldnn.conv",
        "mkldnn.rnn",
        "mkldnn.matmul",
    )
    if hasattr(flag(name), "fp32_precision")
]


def readings():
    """Return what every flag reads as, now and with others in the backends: that shows which flags are set."""
    found = []
    backends = [name for name in NEWER_FLAGS if "." not in name]
    kept = [flag(name).fp32_precision for name in backends]
    for values in (kept, ["ieee"] * 2, ["tf32", "bf16"], kept):
        found.append([flag(name).fp32_precision for name in NEWER_FLAGS])
        for name, value in zip(backends, values, strict=True):
            flag(name).fp32_precision = value
    return found, torch.get_float32_matmul_precision()


@pytest.mark.skipif(not NEWER_FLAGS, reason="this torch has one kind of flags")
@pytest.mark.parametrize("convolutions", [None, "ieee", "tf32"])
@pytest.mark.parametrize("matmuls", ["ieee", "tf32"])
@pytest.mark.parametrize(
    "given",
    [{}, {"cudnn": "ieee", "cudnn.conv": "none", "mkldnn.conv": "bf16"}, {"cudnn.conv": "tf32", "cudnn.rnn": "ieee"}],
)
def test_each_flag_of_each_backend_is_put_back(given, matmuls, convolutions):
    first = {name: flag(name).fp32_precision for name in NEWER_FLAGS}
    try:
        for name, value in given.items():
            flag(name).fp32_precision = value
        before = readings()
        with fp32_precision(matmuls, convolutions=convolutions):
            assert flag("cuda.matmul").fp32_precision == matmuls
        assert readings() == before
    finally:
        for name, value in first.items():
            flag(name).fp32_precision = value


def test_flags_are_set_for_every_reader_and_put_back():
    before = flags()
    with fp32_precision("tf32", convolutions="ieee"):
        assert flags() == ("high", True, False)
        with fp32_precision("ieee", convolutions="tf32"):
            assert flags() == ("highest", False, True)
        assert flags() == ("high", True, False)
    assert flags() == before
    with fp32_precision("tf32"):
        assert flags() == ("high", True, before[2])
    assert flags() == before


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has one kind of flags"
)
def test_flags_that_contradict_each_other_are_named():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="keep one of the two"):
            set_fp32_precision("tf32")
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    with pytest.raises(ValueError, match="not 'high'"):
        set_fp32_precision("high")
