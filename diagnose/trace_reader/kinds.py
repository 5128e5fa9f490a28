"""What a category of any exporter's release means."""

from __future__ import annotations

from diagnose.model.events import Kind

__all__ = ["CATEGORIES", "GC_NAME", "INSTANTS", "LEFT_OUT", "MEMORY_NAME", "is_annotation", "is_launch"]

GC_NAME = "Python GC"
MEMORY_NAME = "[memory]"

CATEGORIES = {
    "cpu_op": Kind.OP,
    "Operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
}

# Allocations and marks; early exporters gave them no category, as they do to metadata.
INSTANTS = frozenset({"", "cpu_instant_event"})

# Known and not wanted: copies of annotations on the device's rows, spans over everything, arrows.
LEFT_OUT = INSTANTS | frozenset({"gpu_user_annotation", "Trace", "ac2g", "async_cpu_to_gpu", "async", "fwdbwd"})

# Before `user_annotation` existed, record_function wrote these as operators.
_ANNOTATIONS = (
    "ProfilerStep#",
    "ProfilerStep*",
    "enumerate(DataLoader)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
    "DistributedDataParallel.forward",
    "nccl:",
    "gloo:",
    "mpi:",
    "ucc:",
)

_LAUNCH_WORDS = ("launch", "memcpy", "memset")


def is_annotation(name: str) -> bool:
    """Say whether an operator of this name is a record_function of PyTorch itself."""
    return name.startswith(_ANNOTATIONS)


def is_launch(name: str) -> bool:
    """Say whether a runtime call of this name puts work on a device."""
    lowered = name.lower()
    return any(word in lowered for word in _LAUNCH_WORDS)
