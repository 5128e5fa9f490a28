"""Nobody changes what others read: the columns of a trace and of its tables cannot be written to."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from diagnose.model.arrays import read_only
from diagnose.pipeline.find import find_in_rank
from diagnose.replay.build import step_subset
from diagnose.trace_reader import open_captures

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"


def arrays_in(name, value) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays that a value holds, through tuples and dictionaries, with how each is reached."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, dict | tuple):
        keys = value if isinstance(value, dict) else getattr(value, "_fields", range(len(value)))
        parts = value.values() if isinstance(value, dict) else value
        for key, part in zip(keys, parts, strict=True):
            yield from arrays_in(f"{name}.{key}", part)


def arrays_of(t) -> dict[str, np.ndarray]:
    """Return the columns of the trace, and those of every table that was computed."""
    events = {f"events.{f.name}": getattr(t.trace.events, f.name) for f in fields(t.trace.events)}
    tables = {name: value for name, value in vars(t).items() if name not in ("capture", "trace", "claims", "whole")}
    return events | dict(arrays_in("t", tables))


@pytest.fixture(scope="module")
def t():
    (capture,) = open_captures([TRACES / "slow_dataset-planted"])
    return find_in_rank(capture).tables


def test_no_column_of_a_trace_or_of_a_table_can_be_written_to(t):
    found = arrays_of(t)
    assert {"events.start", "t.tasks.start", "t.steps.start", "t.causes.rule", "t.gaps.start"} <= found.keys()
    assert len(found) > 60
    assert [name for name, array in found.items() if array.flags.writeable] == []
    for name in ("events.start", "t.tasks.start", "t.causes.rule"):
        with pytest.raises(ValueError, match="read-only"):
            found[name][0] = 1


def test_the_steps_that_are_replayed_and_the_trace_without_recording_are_read_only_too(t):
    part = step_subset(t, 100)
    assert part is not t
    assert [name for name, a in arrays_in("part", (part.tasks, part.steps)) if a.flags.writeable] == []
    chosen = t.trace.events.rows(np.arange(5))
    assert [f.name for f in fields(chosen) if getattr(chosen, f.name).flags.writeable] == []


def test_what_is_no_table_is_left_as_it_is():
    inner = np.zeros(3)
    for value in (None, 7, "text", [inner], {"key": [inner]}, (1, "a")):
        assert read_only(value) is value
    inner[0] = 1
    nested = {"a": (np.zeros(2), {"b": np.ones(1)})}
    assert read_only(nested) is nested
    assert not any(array.flags.writeable for _, array in arrays_in("", nested))
