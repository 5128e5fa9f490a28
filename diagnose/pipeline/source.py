"""Where a diagnosis comes from: the file, the command, the devices, and what step times depend on beside the code."""

from __future__ import annotations

from diagnose.model.accelerators import accelerator_of
from diagnose.model.capture import CaptureInfo
from diagnose.model.diagnosis import Source
from diagnose.model.records import as_facts
from diagnose.tables import Tables
from diagnose.tables.plain_steps import unprofiled_steps
from diagnose.text.commands import command_line

__all__ = ["source_of"]


def source_of(t: Tables) -> Source:
    """Return what the trace and the description of the capture hold of it."""
    info, trace = t.capture.info, t.trace
    names = tuple(dict.fromkeys(d.name for d in trace.devices if d.name))
    found_by = info.found_steps_by if info else t.steps.found_by or "none"
    return Source(
        path=trace.path,
        command=command_line(info.command) if info else "",
        torch=info.torch if info else "",
        devices=names,
        world_size=trace.world_size,
        found_steps_by=found_by,
        unprofiled_step_ns=tuple(unprofiled_steps(t).round().astype(int).tolist()),
        settled_after=info.settled_after if info else None,
        samples=as_facts(info.nvml) if info else {},
        setup=_setup(info) if info else {},
        loading=as_facts(info.loader.counters) if info else {},
        accelerator=accelerator_of(trace.names) if t.device_id < 0 else "",
    )


def _setup(info: CaptureInfo) -> dict[str, object]:
    """Return what step times depend on besides the code, as far as the capture holds it."""
    optimizers, flags = (info.optimizer, *info.optimizer.others), info.flags
    has_optimizer = info.optimizer.num_params is not None
    autocast = f"{flags.autocast.device} {flags.autocast.dtype}".strip()
    known = {
        "batch_size": info.loader.batch_size,
        "num_params": sum(one.num_params or 0 for one in optimizers) if has_optimizer else None,
        "num_tensors": sum(one.num_tensors or 0 for one in optimizers) if has_optimizer else None,
        "param_dtypes": sorted({dtype for one in optimizers for dtype in one.dtypes}) or None,
        "matmul_precision": flags.matmul_precision,
        "autocast": autocast or ("off" if flags.matmul_precision is not None else None),  # both are noted together
        "num_threads": flags.num_threads,
    }
    return {name: value for name, value in known.items() if value is not None}
