"""How exporters of different years and vendors write a run; facts of published files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DIALECTS", "Dialect", "dialects_of"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an exporter writes, and what the user asked it to record."""

    name: str
    vendor: Literal["nvidia", "amd"] = "nvidia"
    old_categories: bool = False  # Operator, Runtime, Kernel; annotations are operators
    string_ids: bool = False  # thread ids "25738" and "stream 7"
    time: Literal["int", "epoch-float", "relative"] = "relative"  # µs since 1970, or since baseTimeNanoseconds
    flow: tuple[str, str] | None = ("ac2g", "ac2g")  # category and name of the arrows from launches to tasks
    ids: Literal["trace-name", "profiler-index", "ev-idx", "record-function"] = "record-function"
    correlated: bool = True  # False: arrows and equal External ids link launches and tasks
    external_is_correlation: bool = False  # calls and tasks repeat their correlation as their External id
    stacks: Literal["none", "frames", "text"] = "none"
    shapes: bool = False
    marks: bool = True  # ProfilerStep#
    forward_backward: bool = False  # arrows from forward to backward
    sync_events: bool = False  # cuda_sync
    device_annotations: bool = False  # gpu_user_annotation
    event_records: bool = True  # cudaEventRecord is written
    driver: bool = False  # products are launched by cuLaunchKernelEx, category cuda_driver
    communication: bool = False  # collectives carry what they send
    overhead: bool = False
    grids: bool = True
    pretty: bool = False
    display: Literal["", "ms", "ns"] = "ms"
    compressed: bool = True


DIALECTS = (
    Dialect("kineto-2021", old_categories=True, string_ids=True, time="int", flow=("async", "launch"), ids="trace-name",
            stacks="text", shapes=True, display=""),
    Dialect("kineto-2021-plain", old_categories=True, string_ids=True, time="int", flow=("async", "launch"),
            ids="trace-name", display="", compressed=False, pretty=True),
    Dialect("kineto-2022", time="int", flow=("async_cpu_to_gpu", "async_gpu"), ids="profiler-index",
            external_is_correlation=True, shapes=True, event_records=False, display=""),
    Dialect("kineto-2023", time="int", ids="ev-idx", external_is_correlation=True, event_records=False, display="",
            pretty=True),
    Dialect("kineto-2023-stacks", time="int", ids="ev-idx", external_is_correlation=True, stacks="frames", shapes=True,
            display="", sync_events=True),
    Dialect("kineto-2024-epoch", time="epoch-float", display="ns", forward_backward=True, device_annotations=True),
    Dialect("kineto-2024", forward_backward=True, device_annotations=True, shapes=True, communication=True,
            pretty=True),
    Dialect("kineto-2025-stacks", forward_backward=True, device_annotations=True, shapes=True, communication=True,
            stacks="frames", driver=True, overhead=True),
    Dialect("kineto-2025-no-marks", forward_backward=True, device_annotations=True, marks=False, communication=True),
    Dialect("rocm-2024", vendor="amd", grids=False, forward_backward=True, device_annotations=True, shapes=True),
    Dialect("rocm-2025-stacks", vendor="amd", forward_backward=True, device_annotations=True, stacks="frames",
            communication=True, pretty=True),
    Dialect("rocm-arrows", vendor="amd", correlated=False, external_is_correlation=True, time="int", ids="ev-idx",
            display=""),
)  # fmt: skip


def dialects_of(vendor: str) -> tuple[Dialect, ...]:
    """Return the dialects that a vendor's GPU is written in."""
    return tuple(dialect for dialect in DIALECTS if dialect.vendor == vendor)
