"""Accelerators other than those of CUDA and ROCm: by which names traces and torch show them, and what is known of them.

Names follow the exporters' own sources: torch_npu's runtime calls ("AscendCL@aclrtLaunchKernel"), the operators of
habana_frameworks ("hpu::"), of torch's MPS backend, torch_mlu's calls ("cnInvokeKernel"), and the runtimes of
Intel's and Meta's devices in Kineto.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    "npu": re.compile(r"^(npu::|torch_npu|AscendCL@|aclnn|aclrt)"),
    "hpu": re.compile(r"^(hpu::|habana|synLaunch)"),
    "mps": re.compile(r"^aten::_?mps_|MPSGraph"),
    "xpu": re.compile(r"^(xpu::|urEnqueue|zeCommandList|piEnqueue)"),
    "mlu": re.compile(r"^(cnInvokeKernel|cnnl[A-Z]|cnrt[A-Z])"),
    "mtia": re.compile(r"^(mtia::|mtia_|runFunction - )"),
    "xla": re.compile(r"^(xla::|XLA)"),
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
