"""What a recording on this machine would lack, and the fix: each check is a fact, a consequence and a remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from diagnose.capture.process.process import silent_stderr
from diagnose.model.launched import usable_cores
from diagnose.text.plain_text import one_line

Status: TypeAlias = Literal["ok", "limited", "missing", "unused"]
"""Unused: of no use on this machine. Missing: no recording without it. Limited: a recording that lacks something."""

CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    status: Status
    found: str  # a clause
    lacks: str = ""  # what a recording would lack, one sentence
    fix: str = ""  # imperative, one sentence
    name: str = ""  # of what was looked at

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON has it."""
        return {"name": self.name, "status": self.status, "found": self.found, "lacks": self.lacks, "fix": self.fix}


def check_machine(checks: Mapping[str, Callable[[], Check]] | None = None) -> Iterator[Check]:
    """Yield all checks; one that fails itself is reported as limited, and the others go on."""
    for name, check in (checks or _CHECKS).items():
        try:
            yield replace(check(), name=name)
        except Exception as error:  # a broken installation is what is looked for here
            text = one_line(f"{type(error).__name__}: {error}")
            yield Check("limited", f"could not be checked ({text})", "What it is needed for may be missing.", name=name)


def check_torch() -> Check:
    """Check that there is a torch that can be traced."""
    if find_spec("torch") is None:
        return Check("missing", "is not installed", "There is nothing to trace.", "Install PyTorch 2.6 or newer.")
    import torch

    version = str(torch.__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 6):
        return Check("missing", version, "Its profiler lacks what diagnose uses.", "Install 2.6 or newer.")
    if not torch.profiler.kineto_available():
        return Check(
            "missing", f"{version} without Kineto", "There are no traces.", "Use an official build of PyTorch."
        )
    return Check("ok", version)


def check_gpu() -> Check:
    """Check that torch can use the GPUs that the machine has."""
    import torch

    builds = (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip))
    build = next((f"{name} {version}" for name, version in builds if version), "")
    devices = [path for path in (Path("/dev/nvidia0"), Path("/dev/kfd")) if path.exists()]
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Check("ok", f"{names} ({build})")
    if not devices:
        return Check("unused", "this machine has none that torch supports; steps on the CPU are traced")
    lacks = "Nothing of the device would be recorded."
    if not build:
        return Check(
            "limited", f"{devices[0]} is there, but torch is built for CPUs", lacks, "Install its CUDA or ROCm build."
        )
    fix = "Check CUDA_VISIBLE_DEVICES, the driver (nvidia-smi) and, in a container, --gpus all."
    return Check("limited", f"{devices[0]} is there, but torch ({build}) cannot use it", lacks, fix)


def check_device_events() -> Check:
    """Check by a trace that the profiler sees the device: CUPTI or rocTracer may be barred or taken."""
    import torch

    if not torch.cuda.is_available():
        return Check("unused", "no GPU is in use")
    from torch.profiler import ProfilerActivity, profile

    ones = torch.ones(64, 64, device="cuda")
    with silent_stderr(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        ones @ ones
        torch.cuda.synchronize()
    events = [event for event in recorded.events() if str(event.device_type) == "DeviceType.CUDA"]
    if events:
        return Check("ok", f"a trace of one matrix product has {len(events)}")
    return Check(
        "limited",
        "a trace of one matrix product has none",
        "Kernels, copies and the queue would be missing.",
        "End other profilers (nsys, DCGM profiling); if the driver restricts profiling to root, set "
        "NVreg_RestrictProfilingToAdminUsers=0 or give the container CAP_SYS_ADMIN.",
    )


def check_nvml(nvml: Any = None) -> Check:
    """Check that the NVIDIA driver answers."""
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except Exception as error:  # NVML errors derive from Exception
        if not Path("/dev/nvidia0").exists():
            return Check("unused", "there is no NVIDIA driver")
        lacks = "Clocks, throttling, power and other processes on the GPU would be missing."
        return Check(
            "limited", one_line(str(error)), lacks, "In a container give it the capability utility of the driver."
        )
    try:
        return Check("ok", f"driver {nvml.nvmlSystemGetDriverVersion()}")
    finally:
        nvml.nvmlShutdown()


def check_triton() -> Check:
    """Check that torch.compile and diagnose's kernels have Triton on a GPU."""
    import torch

    if find_spec("triton") is not None:
        import triton

        return Check("ok", str(triton.__version__))
    if not torch.cuda.is_available():
        return Check("unused", "is not installed, and no GPU is in use")
    lacks = "Changes that compile, and fused kernels, could not be tried."
    return Check("limited", "is not installed", lacks, "Run pip install triton.")


def check_compiler() -> Check:
    """Check that there is a C++ compiler, which torch.compile needs on a CPU."""
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if found is not None:
        return Check("ok", found)
    lacks = "prove could not try changes that compile for the CPU."
    return Check("limited", "there is no C++ compiler", lacks, "Install g++ or clang.")


def check_schedstat(path: Path = Path("/proc/self/schedstat")) -> Check:
    """Check that Linux counts how long a thread waits for a core."""
    numbers = _first_words(path)
    if len(numbers) >= 2 and int(numbers[0]) > 0:
        return Check("ok", "Linux counts how long threads wait for a core")
    lacks = "A training thread that waits for a core could not be distinguished from one that works: the rule off-cpu."
    return Check("limited", f"{path} cannot be read or counts nothing", lacks, "Use a kernel with CONFIG_SCHED_INFO.")


def check_cpus(usable: int = 0, seen: int = 0) -> Check:
    """Check how many cores this process may use, beside those that libraries see; by default what there is here."""
    usable, seen = usable or usable_cores(), seen or os.cpu_count() or 1
    if usable >= seen:
        return Check("ok", f"all {seen} cores can be used")
    lacks = "Nothing is missing, but libraries start a thread for every core of the machine and oversubscribe these."
    fix = f"Set OMP_NUM_THREADS and the number of loader workers for {usable} cores."
    return Check("limited", f"{usable} of {seen} cores can be used", lacks, fix)


def check_memory_limit(cgroup: Path = CGROUP) -> Check:
    """Check how much memory is left below the container's limit."""
    limit, used = _first_words(cgroup / "memory.max"), _first_words(cgroup / "memory.current")
    if not limit or limit[0] == "max":
        return Check("ok", "no limit of a container")
    size, held = int(limit[0]) / 1e9, int(used[0]) / 1e9 if used else 0.0
    found = f"{size - held:.1f} of {size:.1f} GB are left below the container's limit"
    if size - held >= 2:
        return Check("ok", found)
    lacks = "Writing a trace takes six times its size, and the script could be killed."
    return Check("limited", found, lacks, "Raise the limit, or record less with --max-mb.")


def check_shared_memory(folder: Path = SHARED_MEMORY) -> Check:
    """Check that workers of a DataLoader have room for their batches."""
    if not folder.is_dir():
        return Check("unused", f"there is no {folder}")
    size = shutil.disk_usage(folder).total / 1e6
    if size >= 1024.0:  # Docker's default is 64 MB; a few workers with image batches need more
        return Check("ok", f"{size:,.0f} MB")
    lacks = "Nothing is missing, but more loader workers, a common change, may fail with a bus error."
    return Check("limited", f"{size:,.0f} MB", lacks, "Start the container with --shm-size=8g or --ipc=host.")


def _first_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:  # no such file, or another system
        return []


_CHECKS: dict[str, Callable[[], Check]] = {
    "torch": check_torch,
    "GPU": check_gpu,
    "device events": check_device_events,
    "NVML": check_nvml,
    "Triton": check_triton,
    "compiler": check_compiler,
    "schedstat": check_schedstat,
    "cores": check_cpus,
    "memory": check_memory_limit,
    "shared memory": check_shared_memory,
}
