"""The CUDA kernels on the CPU: their sources, compiled for a grid of blocks of threads that run one after the other."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from diagnose.kernels.ops import native

EMULATION = Path(__file__).parent / "emulation"
LAUNCH = re.compile(r"(loop<[^;<>]*>)<<<(.+?), (\w+), 0, stream>>>\((.+?)\);")
STREAM = re.compile(r"(  | && )aoti_torch_get_current_cuda_stream(?=\(| !=)")  # as it is used
SCHEMAS = """
STABLE_TORCH_LIBRARY(diagnose_emulated, m) {
  m.def("scale(Tensor x, float factor) -> Tensor");
  m.def("gelu(Tensor x, bool tanh_form) -> Tensor");
  m.def("gelu_backward(Tensor grad, Tensor x, bool tanh_form) -> Tensor");
}
"""
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
THREADS = 8 * 256  # of one processor, as the launcher has it
pytestmark = pytest.mark.skipif(native.missing() is not None, reason=f"{native.missing()}")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Compile the CUDA source for the host and return its operators."""
    work = tmp_path_factory.mktemp("emulated")
    source = (native.SOURCES / "pointwise.cu").read_text(encoding="utf-8")
    source, num = LAUNCH.subn(r"emulated::launch(\2, \3, [&] { \1(\4); });", source)
    assert num == 2, "the launches are written in another form"
    assert "<<<" not in source
    source = source.replace("diagnose_native, CUDA", "diagnose_emulated, CPU")
    source = source.replace("torch::stable::accelerator::", "emulated::")
    source, num = STREAM.subn(r"\1emulated::current_stream", source)
    assert num == 2, "torch is asked for the stream in another form"
    source = source.replace("reinterpret_cast<", "emulated::checked_cast<") + SCHEMAS
    (work / "pointwise.cpp").write_text(source, encoding="utf-8")
    root = Path(torch.__file__).parent
    includes = [f"-I{folder}" for folder in (EMULATION, native.SOURCES, root / "include")]
    flags = [flag for flag in native.FLAGS if not flag.startswith("-O")]
    libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    library = work / "emulated.so"
    command = [native._cxx(), "-O0", "-Wno-unknown-pragmas", *flags, *native.HIDDEN, *includes, "-shared"]
    command += [str(work / "pointwise.cpp"), "-o", str(library), *libraries]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    torch.ops.load_library(str(library))
    return torch.ops.diagnose_emulated


def gelu_backward(grad, x, form):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(F.gelu(x, approximate=form), x, grad)[0]


@pytest.fixture(scope="module")
def own_errors():
    """Return how far PyTorch's own results are from float64 at most, by dtype and form, forward and backward."""
    found = {}
    for dtype in DTYPES:
        x = torch.linspace(-6, 6, 4096, dtype=torch.float64).to(dtype)
        one = torch.ones_like(x)
        for form in ("none", "tanh"):
            pairs = (
                (F.gelu(x, approximate=form), F.gelu(x.double(), approximate=form)),
                (gelu_backward(one, x, form), gelu_backward(one.double(), x.double(), form)),
            )
            least = 32 * torch.finfo(dtype).eps if dtype == torch.float64 else 0.0  # nothing finer to compare it with
            found[dtype, form] = [max(least, float((mine.double() - exact).abs().max())) for mine, exact in pairs]
    return found


def check_near(mine, exact, own):
    """Fail where the error is more than 1.5 times PyTorch's own, and more than two roundings of the value."""
    rounding = torch.finfo(mine.dtype).eps * exact.abs().clamp(min=1e-3) if mine.numel() else exact
    over = (mine.double() - exact).abs() - torch.maximum(rounding, torch.full_like(exact, 1.5 * own))
    assert not bool((over > 0).any()), float(over.max())


def layouts(num, dtype):
    """Return tensors of about ``num`` elements: dense, one that begins off a 16-byte boundary, with gaps, turned."""
    values = torch.linspace(-6, 6, 2 * num + 2, dtype=torch.float64).to(dtype)
    yield values[:num]
    yield values[1 : num + 1]
    yield values[: 2 * num : 2]
    yield values[: num // 3 * 3].view(3, -1).t()


@pytest.mark.parametrize("processors", [1, 3])
@pytest.mark.parametrize("num", [1, 7, 2051, 8 * THREADS + 13])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_every_element_of_every_layout(kernels, own_errors, monkeypatch, dtype, num, processors):
    monkeypatch.setenv("EMULATED_PROCESSORS", str(processors))
    for x in layouts(num, dtype):
        wide = x.double()
        assert torch.equal(kernels.scale(x, 0.5), x * 0.5)
        grad = torch.linspace(-1, 1, x.numel(), dtype=dtype).view(x.shape)
        for form in ("none", "tanh"):
            mine = kernels.gelu(x, form == "tanh")
            assert mine.stride() == torch.empty_like(x).stride()
            forward, backward = own_errors[dtype, form]
            check_near(mine, F.gelu(wide, approximate=form), forward)
            exact = gelu_backward(grad.double(), wide, form)
            check_near(kernels.gelu_backward(grad, x, form == "tanh"), exact, backward)


@pytest.mark.parametrize("off", ["x", "grad"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_each_operand_may_begin_off_a_16_byte_boundary(kernels, own_errors, dtype, off):
    values = torch.linspace(-6, 6, 65, dtype=torch.float64).to(dtype)
    x, grad = (values[1:] if name == off else values[:-1] for name in ("x", "grad"))
    exact = gelu_backward(grad.double(), x.double(), "none")
    check_near(kernels.gelu_backward(grad, x, False), exact, 6 * own_errors[dtype, "none"][1])


def test_nothing_beside_the_tensor_is_touched(kernels):
    base = torch.full((300,), 7.0)
    x = base[9:278]
    y = kernels.scale(x, 2.0)
    assert base.tolist() == [7.0] * 300
    assert y.tolist() == [14.0] * 269


def test_empty_and_scalar(kernels):
    assert kernels.gelu(torch.empty(0, 3), False).shape == (0, 3)
    assert kernels.scale(torch.tensor(2.0), 0.5).item() == 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_extremes_are_the_limits_or_nan_where_torch_has_one(kernels, dtype, form):
    top = torch.finfo(dtype)
    x = torch.tensor([0, -0.0, top.tiny, 30, -30, top.max, -top.max, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    one = torch.ones_like(x)
    limits = {
        "forward": torch.where(x > 1, x, torch.where(x < -1, 0, x / 2)),
        "backward": torch.where(x > 1, 1.0, torch.where(x < -1, 0.0, 0.5)).to(dtype),
    }
    mine = {"forward": kernels.gelu(x, form == "tanh"), "backward": kernels.gelu_backward(one, x, form == "tanh")}
    torchs = {"forward": F.gelu(x, approximate=form), "backward": gelu_backward(one, x, form)}
    for way, limit in limits.items():
        wrong = mine[way].isnan()
        assert not bool((wrong & ~torchs[way].isnan()).any()), (way, mine[way], torchs[way])
        torch.testing.assert_close(mine[way][~wrong], limit[~wrong], msg=f"{way}: {mine[way]}")


def test_what_does_not_fit_is_refused(kernels):
    with pytest.raises(RuntimeError, match="needs grad in the shape of x"):
        kernels.gelu_backward(torch.ones(2), torch.ones(3), True)
    with pytest.raises(RuntimeError, match="scale needs x in float32"):
        kernels.scale(torch.ones(2, dtype=torch.int32), 1.0)
