"""What decides how fast a process computes: the settings of torch, the instructions of its CPU, its GPUs."""

from __future__ import annotations

import os

from diagnose.capture.steps.page_faults import page_fault_ns
from diagnose.model.usable_cores import cores_of_rank

__all__ = ["describe_gpus", "process_flags"]

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def describe_gpus() -> list[dict[str, object]]:
    """Return the GPUs that this process sees, by torch's own index; empty while CUDA is not in use."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it without types
        return []
    gpus: list[dict[str, object]] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "index": index,
                "uuid": str(getattr(properties, "uuid", "")),
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "num_sms": properties.multi_processor_count,
                "compute_capability": [properties.major, properties.minor],
                "in_use": index == torch.cuda.current_device() or torch.cuda.memory_reserved(index) > 0,
            }
        )
    return gpus


def process_flags(ranks_here: int) -> dict[str, object]:
    """Return what of this process decides how fast it computes; it is one of so many ranks on this machine."""
    import torch

    return {
        "matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": torch.get_float32_matmul_precision() != "highest",
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "num_threads": torch.get_num_threads(),
        "bfloat16": _computes_bfloat16(),
        "page_fault_ns": None if torch.cuda.is_initialized() else page_fault_ns(),  # type: ignore[no-untyped-call]
        "cores": cores_of_rank(ranks_here),
        "allocator": next((os.environ[name] for name in ALLOCATOR_VARIABLES if os.environ.get(name)), ""),
        "cuda_launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
    }


def _computes_bfloat16() -> bool:
    """Return whether this CPU has instructions for products in bfloat16, and oneDNN to use them."""
    import torch

    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return torch.backends.mkldnn.is_available() and any(  # type: ignore[no-untyped-call]  # torch leaves it so
        getattr(torch.cpu, name, bool)() for name in asked
    )
