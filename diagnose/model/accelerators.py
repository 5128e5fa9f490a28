"""Accelerators other than those of CUDA and ROCm: by which names traces and torch show them, and what is known of them.

Names follow the exporters' own sources: torch_npu's runtime calls ("AscendCL@aclrtLaunchKernel"), the operators of
habana_frameworks ("hpu::"), of torch's MPS backend, torch_mlu's calls ("cnInvokeKernel"), and the runtimes of
Intel's and Meta's devices in Kineto.
"""

from __future__ import annotations

from collections.abc import Iterable

from diagnose.text.patterns import lazy_pattern

__all__ = ["accelerator_of", "unrecorded_note"]

NAMES = {
    "xpu": "Intel XPU",
    "mps": "Apple MPS",
    "hpu": "Gaudi HPU",
    "npu": "Ascend NPU",
    "mlu": "Cambricon MLU",
    "mtia": "MTIA",
    "xla": "XLA",
}
_SHOWN = {
    "npu": lazy_pattern(r"^(npu::|torch_npu|AscendCL@|aclnn|aclrt)"),
    "hpu": lazy_pattern(r"^(hpu::|habana|synLaunch)"),
    "mps": lazy_pattern(r"^aten::_?mps_|MPSGraph"),
    "xpu": lazy_pattern(r"^(xpu::|urEnqueue|zeCommandList|piEnqueue)"),
    "mlu": lazy_pattern(r"^(cnInvokeKernel|cnnl[A-Z]|cnrt[A-Z])"),
    "mtia": lazy_pattern(r"^(mtia::|mtia_|runFunction - )"),
    "xla": lazy_pattern(r"^(xla::|XLA)"),
}
ON_CPU = frozenset({"cpu", "meta"})


def accelerator_of(names: Iterable[str]) -> str:
    """Return the accelerator that names of operators and runtime calls show, "" where they show none."""
    for name in names:
        for kind, pattern in _SHOWN.items():
            if pattern.search(name):
                return NAMES[kind]
    return ""


def unrecorded_note(devices: Iterable[str], recorded: Iterable[str]) -> str:
    """Return a sentence where parameters lie on a device that torch's profiler does not record here, else "".

    ``devices`` are torch's names such as "mps:0", ``recorded`` the kinds that the profiler was started for.
    """
    kinds = dict.fromkeys(device.partition(":")[0] for device in devices)
    missing = [kind for kind in kinds if kind not in ON_CPU and kind not in set(recorded)]
    if not missing:
        return ""
    names = " and ".join(NAMES.get(kind, kind) for kind in missing)
    return (
        f"The model is on {names}, which this torch's profiler does not record: only the host was recorded, and waits "
        "for the device count as the host's time."
    )
