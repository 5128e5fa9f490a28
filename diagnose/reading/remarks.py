"""The sentences about a file: what could not be read of it, and what to do where nothing could."""

from __future__ import annotations

from diagnose.errors import InputError, NotATraceError
from diagnose.reading.envelope import Keys
from diagnose.reading.events import Ending
from diagnose.reading.kinds import LEFT_OUT
from diagnose.reading.rows import Rows
from diagnose.reading.source import Source
from diagnose.trace import Note

__all__ = ["notes", "repeated_note", "without_events"]

_KINETO_KEYS = frozenset({"schemaVersion", "deviceProperties", "computeProperties", "baseTimeNanoseconds"})


def notes(rows: Rows, ending: Ending, source: Source, cut: bool) -> tuple[Note, ...]:
    """Return one sentence for everything that the file held and the table does not."""
    found = []
    if cut:
        why = f" ({source.fault})" if source.fault else ""
        found.append(f"The file is cut off{why}: {_events(rows.num_events)} read, the end of the trace is missing.")
    elif source.fault:
        found.append(f"The file is complete, but {source.fault}: parts of it may be wrong.")
    if ending.num_skipped:
        found.append(f"Could not be parsed and left out: {_events(ending.num_skipped)}.")
    found += [f"Left out: {_events(count)} of the category '{name}'." for name, count in _left_out(rows)]
    return tuple(Note(text) for text in found)


def repeated_note(count: int) -> tuple[Note, ...]:
    """Return the sentence about events that the file has twice, if it has any."""
    return (Note(f"Counted once, but twice in the file: {_events(count)}."),) if count else ()


def without_events(name: str, rows: Rows, keys: Keys, cut: bool) -> InputError:
    """Return the error for a file in which no event could be used."""
    if cut and rows.categories <= LEFT_OUT:
        return InputError(f"{name} ends before its first event. Copy or record the trace again.")
    if not rows.num_events:
        return InputError(f"{name} holds no events. Let the profiler record at least one step.")
    if _KINETO_KEYS.isdisjoint(keys) and "Trace" not in rows.categories:
        return NotATraceError(
            f"{name} is not a trace of torch.profiler: none of its {_events(rows.num_events)} is of a category "
            "that it writes. Name a file that torch.profiler exported."
        )
    return InputError(
        f"{name} holds no operator, runtime call or device task among its {_events(rows.num_events)}. "
        "Let the profiler record at least one step."
    )


def _left_out(rows: Rows) -> list[tuple[str, int]]:
    return [(name, count) for name, count in sorted(rows.left_out.items()) if count]


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"
