"""The C++ and CUDA sources: they compile and load, their CPU side is right, and a missing compiler is named."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from diagnose.kernels import ops
from diagnose.kernels.ops import native
from diagnose.kernels.ops.custom_op import using
from diagnose.kernels.ops.gelu import _gelu, _gelu_backward
from diagnose.kernels.ops.scale import _scale

NVCC = native._nvcc()
OLD_TORCH = (native.missing() or "").startswith("The native library needs torch")
pytestmark = pytest.mark.skipif(OLD_TORCH, reason=f"{native.missing()}")
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(scope="module")
def cpu_library(tmp_path_factory):
    """Build what needs no CUDA compiler, on a machine with a GPU everything, and load it: a process takes one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        if not torch.cuda.is_available():
            patch.setattr(native, "_nvcc", lambda: None)
        native.load.cache_clear()
        yield native.load()


@pytest.fixture
def in_cpp(cpu_library):
    with using("native"):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_cpp_is_torch(in_cpp, dtype):
    torch.manual_seed(0)
    tolerance = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    for x in (
        torch.randn(7, 5, dtype=dtype),
        torch.randn(6, 8, dtype=dtype)[:, ::2],
        torch.randn(4, 3, dtype=dtype).t(),
    ):
        torch.testing.assert_close(ops.scale(x, 0.1), x * 0.1, **tolerance)
        assert ops.scale(x, 0.1).stride() == (x * 0.1).stride()
        for form in ("none", "tanh"):
            leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
            mine, theirs = ops.gelu(leaf, form), F.gelu(twin, approximate=form)
            torch.testing.assert_close(mine, theirs, **tolerance)
            grad = torch.randn_like(mine)
            torch.testing.assert_close(
                torch.autograd.grad(mine, leaf, grad), torch.autograd.grad(theirs, twin, grad), **tolerance
            )


def test_cpp_counts_beyond_two_to_the_31(in_cpp, tmp_path):
    """A sparse file stands for the memory; the third row begins past what 32 bits can count."""
    stride = 2**30 + 8
    flat = torch.from_file(str(tmp_path / "wide"), shared=True, size=2 * stride + 8, dtype=torch.float16)
    x = flat.as_strided((3, 8), (stride, 1)).copy_(torch.arange(24).reshape(3, 8) / 7)
    torch.testing.assert_close(ops.gelu(x), F.gelu(x.clone()), rtol=2e-3, atol=1e-3)
    torch.testing.assert_close(ops.scale(x, 0.5), x.clone() * 0.5)


def test_cpp_takes_scalars_and_nothing(in_cpp):
    assert ops.scale(torch.tensor(2.0), 0.5) == 1
    assert ops.gelu(torch.empty(0, 3)).shape == (0, 3)


def test_a_factor_keeps_its_digits(in_cpp):
    assert ops.scale(torch.ones(1, dtype=torch.float64), 0.1).item() == 0.1


def test_torch_accepts_it(in_cpp):
    x = torch.randn(3, 4, requires_grad=True)
    torch.library.opcheck(_scale.definition, (x, 0.5))
    torch.library.opcheck(_gelu.definition, (x, "tanh"))
    torch.library.opcheck(_gelu_backward.definition, (torch.randn(3, 4), x.detach(), "none"))
    wide = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: ops.gelu(ops.scale(t, 0.3), "tanh"), wide)
    compiled = torch.compile(lambda t: ops.gelu(ops.scale(t, 0.3)) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), F.gelu(x * 0.3) + 1)
    torch.testing.assert_close(torch.vmap(lambda t: ops.scale(t, 0.3), in_dims=1)(x), (x * 0.3).t())


def test_cpp_refuses_what_python_let_pass(cpu_library, capfd):
    with pytest.raises(RuntimeError, match="scale needs x in float32, float64, float16 or bfloat16"):
        torch.ops.diagnose_native.scale(torch.ones(2, dtype=torch.int64), 1.0)
    with pytest.raises(RuntimeError, match="needs grad in the shape of x"):
        torch.ops.diagnose_native.gelu_backward(torch.ones(2), torch.ones(3), True)


def test_operators_without_a_native_side_say_so(in_cpp):
    with pytest.raises(RuntimeError, match="diagnose::softmax has no native implementation"):
        ops.softmax(torch.ones(2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="builds with CUDA where there is a GPU")
def test_without_nvcc_a_gpu_is_told(cpu_library, monkeypatch):
    with pytest.raises(RuntimeError, match="built without CUDA, since nvcc is missing"):
        native.implementation("diagnose::scale", "cuda")


def test_a_second_build_is_the_first(cpu_library):
    before = cpu_library.stat().st_mtime_ns
    assert native.build() == cpu_library
    assert cpu_library.stat().st_mtime_ns == before


def test_builders_at_once_build_once(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_nvcc", lambda: None)
    compiled = []

    def compile_(work, *_):
        compiled.append(work)
        (work / "library.so").write_text("built")
        return work / "library.so"

    monkeypatch.setattr(native, "_compile", compile_)
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: native.build(tmp_path), range(8)))
    assert len(compiled) == 1
    assert [path.read_bytes().partition(native.SEAL)[0] for path in paths] == [b"built"]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".so"], "no work folder is left"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "platform", "of": sys, "value": "win32"}, "on Linux only, not on win32"),
        ({"name": "__version__", "of": torch, "value": "2.6.1"}, "needs torch 2.11 or newer, not 2.6.1"),
        ({"name": "_cxx", "of": native, "value": lambda: None}, "needs a C\\+\\+ compiler; install g\\+\\+"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(change, message, monkeypatch):
    monkeypatch.setattr(change["of"], change["name"], change["value"])
    with pytest.raises(RuntimeError, match=message):
        native.build()


def test_a_compilers_first_error_is_shown(tmp_path, monkeypatch):
    broken = tmp_path / "csrc"
    broken.mkdir()
    (broken / "native.cpp").write_text("int main( { nonsense }")
    monkeypatch.setattr(native, "SOURCES", broken)
    monkeypatch.setattr(native, "_nvcc", lambda: None)
    with pytest.raises(RuntimeError, match=r"could not build the native library: .*error"):
        native.build(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


@pytest.mark.full
@pytest.mark.skipif(NVCC is None, reason="nvcc, the CUDA compiler, is not installed")
def test_the_cuda_sources_compile_and_the_library_loads_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_nvcc", lambda: NVCC)
    library = native.build(tmp_path, architectures=native.ARCHITECTURES)
    tools = Path(NVCC).resolve().parent
    elf = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=str(tools))
    if elf is not None:
        command = [elf, "--list-elf", str(library)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert all(f"sm_{architecture}." in listed for architecture in native.ARCHITECTURES)
    assert all(f"sm_{architecture}".encode() in library.read_bytes() for architecture in native.ARCHITECTURES)
    code = (
        f"import torch; torch.ops.load_library({str(library)!r})\n"
        "kernels = torch._C._dispatch_dump('diagnose_native::gelu')\n"
        "assert 'CUDA' in kernels and 'CPU' in kernels, kernels\n"
        "print(torch.ops.diagnose_native.scale(torch.ones(2), 0.5).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout.strip() == "[0.5, 0.5]", done.stderr


@pytest.fixture
def cuda_library(cpu_library):
    if NVCC is None or not torch.cuda.is_available():
        pytest.skip("needs nvcc and a GPU")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_cuda_is_torch(cuda_library, dtype, form):
    torch.manual_seed(0)
    tolerance = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    base = torch.randn(70_001, dtype=dtype, device="cuda")
    for x in (base, base[1:], base[:7], base[:60_000].view(300, 200).t(), base[:60_000].view(300, 200)[:, ::2]):
        leaf, twin = x.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
        with using("native"):
            mine, scaled = ops.gelu(leaf, form), ops.scale(x, 0.1)
            (slope,) = torch.autograd.grad(mine, leaf, torch.ones_like(mine))
        theirs = F.gelu(twin, approximate=form)
        torch.testing.assert_close(mine, theirs, **tolerance)
        torch.testing.assert_close(slope, torch.autograd.grad(theirs, twin, torch.ones_like(theirs))[0], **tolerance)
        torch.testing.assert_close(scaled, x * 0.1, **tolerance)


@pytest.mark.gpu
def test_cuda_runs_on_the_current_stream(cuda_library):
    x = torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), using("native"):
        torch.cuda._sleep(50_000_000)
        x.add_(1)  # a launch on another stream would read before this
        y = ops.scale(x, 2.0)
    torch.cuda.current_stream().wait_stream(side)
    assert y.min().item() == 4.0


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Count builds of a library that no compiler has to make, kept in a cache of the test's own."""
    compiled = []

    def compile_(work, *_):
        compiled.append(work)
        (work / "library.so").write_bytes(b"library")
        return work / "library.so"

    monkeypatch.setattr(native, "_nvcc", lambda: None)
    monkeypatch.setattr(native, "_compile", compile_)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native._own_folder.cache_clear()
    return compiled


def test_what_is_built_is_for_this_user_alone(stand_in):
    library = native.build()
    assert [oct(path.stat().st_mode & 0o777) for path in (library.parent, library)] == ["0o700", "0o600"]


@pytest.mark.parametrize(
    "content",
    [b"", b"other", b"library", b"librar" + native.SEAL + bytes(32)],
    ids=["empty", "other", "cut before the seal", "cut and sealed wrongly"],
)
def test_a_library_that_is_not_as_it_was_built_is_built_again(stand_in, content):
    library = native.build()
    whole = library.read_bytes()
    library.write_bytes(content)
    assert native.build().read_bytes() == whole
    assert len(stand_in) == 2


@pytest.mark.parametrize("what", ["folder", "library"])
def test_a_cache_that_others_can_write_is_not_loaded_from(stand_in, what):
    library = native.build()
    (library if what == "library" else library.parent).chmod(0o777)
    with pytest.warns(UserWarning, match=r"built for this process only: Other users can write .* \(mode 0777\)"):
        other = native.build()
    assert other.parent != library.parent
    assert other.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(RuntimeError, match=r"is not kept in .*: Other users can write"):
        native.build(library.parent)


def test_a_link_in_the_place_of_the_library_is_not_followed(stand_in, tmp_path):
    library = native.build()
    library.replace(tmp_path / "elsewhere.so")
    library.symlink_to(tmp_path / "elsewhere.so")
    with pytest.warns(UserWarning, match="is a link, and nothing is loaded through it"):
        assert native.build() != library
