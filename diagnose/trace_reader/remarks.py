"""The sentences about a file: what could not be read of it, and what to do where nothing could."""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.errors import InputError, NotATraceError
from diagnose.model.events import Note
from diagnose.trace_reader.envelope import Envelope
from diagnose.trace_reader.events import Ending
from diagnose.trace_reader.intern import shortened
from diagnose.trace_reader.kinds import LEFT_OUT
from diagnose.trace_reader.rows import Rows

__all__ = ["notes", "repeated_note", "without_events", "without_times"]

_KINETO_KEYS = frozenset({"schemaVersion", "deviceProperties", "computeProperties", "baseTimeNanoseconds"})
_MAX_LISTED = 5  # categories that are named


def notes(rows: Rows, ending: Ending, fault: str, around: Envelope) -> tuple[Note, ...]:
    """Return one sentence for everything that the file held and the table does not."""
    found = []
    if around.is_cut:
        why = f" ({fault})" if fault else ""
        found.append(f"The file is cut off{why}: {_events(rows.num_events)} read, the end of the trace is missing.")
    elif fault:
        found.append(f"The file is complete, but {fault}: parts of it may be wrong.")
    if around.is_unread:
        found.append("What stands behind the list of events is not JSON, or a second list, and was left out.")
    if ending.num_skipped:
        found.append(f"Could not be parsed and left out: {_events(ending.num_skipped)}.")
    if rows.num_without_length:
        found.append(
            f"With a duration that is negative or no number, taken as zero: {_events(rows.num_without_length)}."
        )
    found += [f"Left out: {_events(count)} of the {what}." for what, count in _left_out(rows)]
    return tuple(Note(text) for text in found)


def repeated_note(count: int) -> tuple[Note, ...]:
    """Return the sentence about events that the file has twice, if it has any."""
    return (Note(f"Counted once, but twice in the file: {_events(count)}."),) if count else ()


def without_events(name: str, rows: Rows, ending: Ending, around: Envelope) -> InputError:
    """Return the error for a file in which no event could be used."""
    if ending.fault:
        return InputError(f"{name} holds no event that can be used: {ending.fault}. Copy or record the trace again.")
    if around.is_cut and rows.categories <= LEFT_OUT:
        return InputError(f"{name} ends before its first event. Copy or record the trace again.")
    if not rows.num_events:
        return InputError(f"{name} holds no events. Let the profiler record at least one step.")
    if _KINETO_KEYS.isdisjoint(around.keys) and "Trace" not in rows.categories:
        return NotATraceError(
            f"{name} is not a trace of torch.profiler: none of its {_events(rows.num_events)} is of a category "
            "that it writes. Name a file that torch.profiler exported."
        )
    return InputError(
        f"{name} holds no operator, runtime call or device task among its {_events(rows.num_events)}. "
        "Let the profiler record at least one step."
    )


def _left_out(rows: Rows) -> Iterator[tuple[str, int]]:
    for what, counts in (("category", rows.left_out), ("phase", rows.phases)):
        most = sorted((+counts).most_common(_MAX_LISTED))
        yield from ((f"{what} '{shortened(name)}'", count) for name, count in most)
        if len(+counts) > _MAX_LISTED:
            yield f"{len(+counts) - _MAX_LISTED:,} other kinds of {what}", counts.total() - sum(n for _, n in most)


def without_times(name: str, rows: Rows) -> InputError:
    """Return the error for a file in which no event has a plausible time."""
    return InputError(
        f"{name} has no event with a plausible time among its {_events(rows.num_events)}. Record the trace again."
    )


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"
