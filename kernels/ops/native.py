"""Builds the operators that are written in C++ and CUDA, once for a machine, and loads them.

What it cures
    `unfused-elementwise`, as the Triton programs do, where Triton is not to be had but a compiler is. It is also the
    pattern for operators of your own: one schema, a source for the CPU and one for CUDA, torch's stable ABI.

When it does not help
    On a CPU: torch's own operators use vector instructions for exp and erf, which plain C++ does not (GELU takes 4.5
    times as long). On an H100 GELU took 1.1 times as long as by Triton, 1.2 in 16 bits. Nothing uses the library unless
    ``using("native")`` asks for it.

Cost
    Half a minute of compiling when it is first asked for, a few seconds without CUDA; the result is kept in the user's
    cache folder until sources, torch or compiler change. Processes that start together wait for one of them to build.

Numerics
    The same formulas as the Triton programs: float32 inside (float64 for float64), rounded once.

Example::

    from diagnose.kernels.ops.native import missing
    from diagnose.kernels.ops.scale import scale
    from diagnose.kernels.ops.custom_op import using

    print(missing() or "the native library can be built here, and runs within using('native')")
    with using("eager"):
        y = scale(torch.ones(4), 0.5)
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from diagnose.kernels._atomic_write import NewFile
from diagnose.kernels._private_files import make_private, open_private

__all__ = ["ARCHITECTURES", "build", "implementation", "load", "missing"]

SOURCES = Path(__file__).parents[1] / "csrc"
ARCHITECTURES = ("80", "90", "100")  # built where there is no GPU, and PTX of the last for what comes after
NEEDED = (2, 11)  # the first torch that this was built and run with; its stable ABI serves later ones
FLAGS = ("-O3", "-std=c++17", f"-DTORCH_TARGET_VERSION=0x{NEEDED[0]:02x}{NEEDED[1]:02x}000000000000")
HIDDEN = ("-fPIC", "-fvisibility=hidden")
SEAL = b"diagnose-sha256:"  # with the digest of all before it, at the end of a library, where a loader does not look


def missing() -> str | None:
    """Return the reason why the library cannot be built here, in a sentence, or None where it can."""
    if sys.platform != "linux":
        return f"The native library is built on Linux only, not on {sys.platform}; use Triton or plain PyTorch."
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < NEEDED:
        return f"The native library needs torch {NEEDED[0]}.{NEEDED[1]} or newer, not {torch.__version__}."
    if _cxx() is None:
        return "The native library needs a C++ compiler; install g++, or name one in CXX."
    return None


def build(folder: Path | None = None, *, architectures: Sequence[str] | None = None) -> Path:
    """Compile the library unless ``folder`` (default: the user's cache) has it, and return its path.

    With a CUDA compiler the CUDA sources are compiled too, for ``architectures`` (compute capabilities such as "90";
    default: those of the GPUs at hand, else ``ARCHITECTURES`` with PTX).

    Raises:
        RuntimeError: it cannot be built here, or a compiler failed; the message has its first error. Or another user
            could change what is in ``folder``; where that is the cache, a folder of this process is used instead.
    """
    reason = missing()
    if reason is not None:
        raise RuntimeError(reason)
    nvcc = _nvcc()
    wanted = tuple(architectures or _architectures(nvcc)) if nvcc else ()
    name = f"diagnose_native-{_key(nvcc, wanted)}.so"
    try:
        return _built(folder or _cache_folder(), name, nvcc, wanted)
    except PermissionError as error:
        if folder is not None:
            raise RuntimeError(f"The native library is not kept in {folder}: {error}") from error
        warnings.warn(f"The native library is built for this process only: {error}", stacklevel=2)
    return _built(_own_folder(), name, nvcc, wanted)


def _built(folder: Path, name: str, nvcc: str | None, architectures: Sequence[str]) -> Path:
    """Return the library in the folder, built if it is not there as it was built."""
    make_private(folder)
    library = folder / name
    if _is_sealed(library):
        return library
    with _locked(folder / "lock"), tempfile.TemporaryDirectory(dir=folder) as work:
        if not _is_sealed(library):  # another process may have built it while this one waited
            made = _compile(Path(work), nvcc, architectures)
            content = made.read_bytes()
            with NewFile(library, private=True) as new:
                new.file.write(content + SEAL + hashlib.sha256(content).digest())
                new.publish(force=True)
    return library


def _is_sealed(library: Path) -> bool:
    """Return whether the library is there and whole.

    Raises:
        PermissionError: another user owns it or can write it, or it is a link.
    """
    try:
        descriptor = open_private(library)
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        data = file.read()
    content, seal = data[: -len(SEAL) - 32], data[-len(SEAL) - 32 :]
    return seal == SEAL + hashlib.sha256(content).digest()


@functools.cache
def _own_folder() -> Path:
    """Return a folder that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="diagnose-native-"))
    weakref.finalize(sys.modules[__name__], shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def load() -> Path:
    """Build the library if need be, load it into this process, and return its path.

    Raises:
        RuntimeError: as ``build``; or torch cannot load what was built.
    """
    library = build()
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # torch's
    except OSError as error:
        raise RuntimeError(
            f"The native library {library} cannot be loaded: {error}; delete it to build it again."
        ) from error
    return library


def implementation(name: str, device: str) -> Callable[..., Any]:
    """Return the native implementation of operator ``name`` (``diagnose::gelu``) for tensors on ``device``.

    Raises:
        RuntimeError: the operator has none; the library cannot be built; it was built without CUDA.
    """
    call = IMPLEMENTATIONS.get(name)
    if call is None:
        known = ", ".join(IMPLEMENTATIONS)
        raise RuntimeError(
            f'{name} has no native implementation; leave using("native") for it. Those that have: {known}.'
        )
    load()
    if device == "cuda" and _nvcc() is None:
        raise RuntimeError(
            "The native library was built without CUDA, since nvcc is missing; install the CUDA toolkit, or name nvcc "
            "in CUDACXX."
        )
    return call


def _compile(work: Path, nvcc: str | None, architectures: Sequence[str]) -> Path:
    root = Path(torch.__file__).parent
    include = f"-I{root / 'include'}"
    objects, library, cxx = [work / "native.o"], work / "library.so", _cxx() or "c++"
    _run([cxx, *FLAGS, *HIDDEN, include, "-c", str(SOURCES / "native.cpp"), "-o", str(objects[0])])
    if nvcc:
        objects.append(work / "pointwise.o")
        codes = [part for arch in architectures for part in ("-gencode", f"arch=compute_{arch},code=sm_{arch}")]
        newest = architectures[-1]
        codes += ["-gencode", f"arch=compute_{newest},code=compute_{newest}"]
        command = [nvcc, *FLAGS, "-Xcompiler", ",".join(HIDDEN), "--threads", "0", include, *codes]
        _run([*command, "-c", str(SOURCES / "pointwise.cu"), "-o", str(objects[1])])
    # libtorch brings along what it has of CUDA, whose symbols are looked up when the library is loaded.
    keep = ["-Xlinker", "--no-as-needed"]
    links = [f"-L{root / 'lib'}", *keep, "-ltorch", "-ltorch_cpu", "-lc10"]
    _run([nvcc or cxx, "-shared", *map(str, objects), "-o", str(library), *links])
    return library


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        first = lines[0].strip() if lines else f"exit code {done.returncode}"
        raise RuntimeError(f"{Path(command[0]).name} could not build the native library: {first}")


def _key(nvcc: str | None, architectures: Sequence[str]) -> str:
    """Return what distinguishes builds: sources, torch, compilers, architectures."""
    parts = [torch.__version__, *FLAGS, *architectures]
    parts += [_version(compiler) for compiler in (_cxx(), nvcc) if compiler]
    parts += [path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir()) if path.is_file()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], check=False, capture_output=True, text=True).stdout


def _architectures(nvcc: str | None) -> tuple[str, ...]:
    if torch.cuda.is_available():
        found = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
        return tuple(f"{major}{minor}" for major, minor in sorted(found))
    listed = subprocess.run(
        [nvcc or "nvcc", "--list-gpu-arch"], check=False, capture_output=True, text=True
    ).stdout.split()
    return tuple(arch for arch in ARCHITECTURES if f"compute_{arch}" in listed) or ARCHITECTURES[:1]


def _cxx() -> str | None:
    named = os.environ.get("CXX")
    return shutil.which(named) if named else shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def _nvcc() -> str | None:
    named = os.environ.get("CUDACXX")
    if named:
        return shutil.which(named)
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [f"{home}/bin/nvcc" for home in (*homes, "/usr/local/cuda") if home]
    return shutil.which("nvcc") or next(filter(None, map(shutil.which, places)), None)


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "diagnose"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock among processes; one that dies lets go of it."""
    import fcntl

    with os.fdopen(open_private(path, os.O_RDWR | os.O_CREAT), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _scale(*arguments: Any) -> Any:  # as the schema has it
    return torch.ops.diagnose_native.scale(*arguments)


def _gelu(x: Any, approximate: str) -> Any:
    return torch.ops.diagnose_native.gelu(x, approximate == "tanh")


def _gelu_backward(grad: Any, x: Any, approximate: str) -> Any:
    return torch.ops.diagnose_native.gelu_backward(grad, x, approximate == "tanh")


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "diagnose::scale": _scale,
    "diagnose::gelu": _gelu,
    "diagnose::gelu_backward": _gelu_backward,
}
