"""Times, memory and errors of calls for gpu/kernels.py, on top of benchmarks/op_timing.py."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeAlias

import torch
from op_timing import DEVICE, alone_ms, median_ms
from torch import Tensor
from torch.autograd import DeviceType

GPU = DEVICE == "cuda"
REPEATS = 15 if GPU else 2
COMPILE_S = 12.0  # what is left must be more before anything else is compiled

Row: TypeAlias = dict[str, Any]
Left: TypeAlias = Callable[[], float]  # the seconds that are left


def about() -> Row:
    """Return what this was measured on."""
    found: Row = {"device": DEVICE, "torch": torch.__version__, "python": platform.python_version()}
    if GPU:
        found["device"] = torch.cuda.get_device_name()
        found["memory_gb"] = torch.cuda.get_device_properties(0).total_memory / 1e9
    for package in ("triton", "liger-kernel"):
        try:
            found[package] = version(package)
        except ImportError:
            found[package] = "not installed"
    return found


def bar(what: str, measured: float, least: float) -> Row:
    """Return a row of what was promised."""
    return {"what": what, "measured": float(measured), "least": least}


def device_ms(call: Callable[[], object]) -> tuple[float, str]:
    """Return the device's time of a call, and how it was taken: "queued", or the sum of its "kernels" if it waits.

    The queue cannot be filled first by a call that waits for the device.
    """
    if GPU and waits(call):
        return kernels_ms(call), "kernels"
    return median_ms(call, REPEATS), "queued"


def waits(call: Callable[[], object]) -> bool:
    """Return whether a call waits for the device by itself."""
    call()  # what is compiled and looked up at first may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def kernels_ms(call: Callable[[], object]) -> float:
    """Return the mean sum of the times of a call's kernels and copies."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()
    taken = [event.time_range.elapsed_us() for event in profile.events() if event.device_type == DeviceType.CUDA]
    return float(sum(taken)) / 1e3 / REPEATS


def wall_ms(call: Callable[[], object]) -> float:
    """Return the time from a call to the end of its work."""
    return alone_ms(call, REPEATS)


def peak_mb(call: Callable[[], object]) -> float | None:
    """Return the device memory of a call at its largest, beside what was there before."""
    if not GPU:
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def apart(one: Tensor, other: Tensor) -> float:
    """Return the distance of two tensors, relative to the second."""
    wide = other.double()
    return float((one.double() - wide).norm() / wide.norm().clamp(min=1e-30))


@contextmanager
def kept(row: Row) -> Iterator[None]:
    """Keep what is raised in the row, unless the device answers no more."""
    try:
        yield
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error)[:500]}"
        if not works():
            raise
    release()


def works() -> bool:
    """Return whether the device still answers: after some errors it does not, until the process is a new one."""
    try:
        if GPU:
            torch.ones(1, device=DEVICE).item()
    except Exception:
        return False
    return True


def release() -> None:
    """Let go of memory that nothing needs."""
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
