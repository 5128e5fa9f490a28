"""Describes a session in a CaptureInfo."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diagnose import __version__
from diagnose.capture.record.allocator import allocator_counters, allocator_map, counted_between
from diagnose.capture.record.window import recorded_kinds
from diagnose.model.accelerators import unrecorded_note
from diagnose.model.capture import CaptureInfo
from diagnose.model.records import (
    AllocatorRecord,
    AutocastRecord,
    DdpRecord,
    FlagsRecord,
    GpuRecord,
    LoaderRecord,
    NvmlRecord,
    OptimizerRecord,
    SamplerRecord,
    fitting,
)
from diagnose.text.masking import mask_command, mask_text

if TYPE_CHECKING:
    from diagnose.capture.record.session import Session

__all__ = ["describe"]


def describe(session: Session, ended: str, exit_code: int | None) -> CaptureInfo:
    """Return the description of the session's capture as it stands."""
    measured = session.measured
    torch = sys.modules.get("torch")
    counted = counted_between(session.allocator_before, allocator_counters())
    session.script_config.count_loading()  # a window has just ended
    return CaptureInfo(
        run_id=session.run_id,
        tool_version=__version__,
        command=mask_command(session.command),
        cwd=session.cwd,
        started_at=session.started_at,
        python=platform.python_version(),
        torch=str(torch.__version__) if torch else "",
        cuda=str(torch.version.cuda or "") if torch else "",
        rank=session.rank,
        world_size=session.num_ranks,
        gpus=tuple(fitting(GpuRecord, gpu) for gpu in session.gpus),
        light_file=measured.files.get("light", ""),
        attribution_file=measured.files.get("attribution", ""),
        samples_file=session.samples_file,
        lines_file=session.lines_file,
        steps_file=session.steps_file,
        dataflow_file=measured.dataflow_file,
        flags=_flags(session),
        found_steps_by=session.listener.choice.chosen or "",
        events_per_step=session.listener.finder.events_per_step,
        settled_after=measured.converged_after,
        unprofiled_ms=_ms(measured.step_ns("unprofiled")),
        light_ms=_ms(measured.step_ns("light")),
        attribution_ms=_ms(measured.step_ns("attribution")),
        sampler=fitting(SamplerRecord, session.sampler_summary),
        nvml=fitting(NvmlRecord, session.nvml_summary),
        memory=fitting(AllocatorRecord, counted | allocator_map()),
        loader=fitting(LoaderRecord, session.script_config.loader),
        optimizer=fitting(OptimizerRecord, session.script_config.optimizer),
        loaded=measured.loaded,
        stack_ns=measured.stack_ns,
        notes=tuple(map(mask_text, [*session.all_notes, *_unrecorded(session)])),
        ended=ended,
        exit_code=exit_code,
    )


def _flags(session: Session) -> FlagsRecord:
    measured = session.measured
    noted = {
        **measured.flags,
        **session.process_flags,
        "ddp": fitting(DdpRecord, session.script_config.ddp),
        "autocast": fitting(AutocastRecord, session.script_config.autocast),
        "anomaly": session.script_config.anomaly,
        "spans_ns": measured.spans,
        "light_mb": round(measured.mb.get("light", 0.0), 3),
    }
    return fitting(FlagsRecord, noted)


def _ms(times: Sequence[int]) -> tuple[float, ...]:
    return tuple(round(t / 1e6, 4) for t in times)


def _unrecorded(session: Session) -> list[str]:
    """Return a note on an accelerator that torch's profiler does not record: the host alone is not all there was."""
    devices = session.script_config.optimizer.get("devices")
    note = unrecorded_note(devices, recorded_kinds()) if isinstance(devices, list) and devices else ""
    return [note] if note else []
