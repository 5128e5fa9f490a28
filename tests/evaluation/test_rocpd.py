"""Databases of rocprofv3: the answers are those to the same runs in Kineto's files."""

import sqlite3
from contextlib import closing

import pytest
from simulation.forms import ROCPD
from simulation.kineto import write_run

from diagnose.errors import InputError
from diagnose.model.events import Kind
from diagnose.model.intervals import among
from diagnose.trace_reader import open_captures, read_trace


def test_answers_are_those_to_the_same_runs(tmp_path):
    found, num = ROCPD.differing(7, range(12), tmp_path)
    assert num >= 3
    assert not found


@pytest.mark.full
def test_answers_are_those_to_the_same_runs_of_another_seed(tmp_path):
    found, num = ROCPD.differing(20261128, range(320), tmp_path)
    assert num >= 100
    assert len(found) <= 0.02 * num, found


def test_tasks_are_on_their_devices_and_have_their_calls(tmp_path):
    run, dialect = ROCPD.first(lambda run, _: len(run.ranks) > 1)
    for rank, capture in enumerate(open_captures([ROCPD.write(run, dialect, tmp_path / "job.db")])):
        events = capture.trace.events
        tasks = events.rows((events.kind == Kind.KERNEL) | (events.kind == Kind.MEMCPY))
        assert set(tasks.device.tolist()) == {rank}
        assert (tasks.cause >= 0).mean() > 0.9
        assert capture.trace.path == f"{tmp_path}/job.db (process {1000 + rank})"


def test_names_grids_and_copies_are_those_of_the_profiler(tmp_path):
    run, dialect = ROCPD.first(lambda run, dialect: len(run.ranks) == 1 and dialect.grids)
    folder = tmp_path / "kineto"
    folder.mkdir()
    (path,) = write_run(run, dialect, folder)
    one, other = read_trace(path), read_trace(ROCPD.write(run, dialect, tmp_path / "profile.db"))
    for kinds in ((Kind.OP, Kind.ANNOTATION), (Kind.KERNEL,), (Kind.MEMCPY,), (Kind.RUNTIME,)):
        a, b = (trace.events.rows(among(trace.events.kind, kinds)) for trace in (one, other))
        names = [[trace.names[n] for n in x.name.tolist()] for trace, x in ((one, a), (other, b))]
        assert sorted(names[0]) == sorted(names[1]), kinds
        assert sorted(a.grid.tolist()) == sorted(b.grid.tolist())
        assert sorted(a.sequence.tolist()) == sorted(b.sequence.tolist())


def test_a_database_without_kernels_is_an_error_in_a_sentence(tmp_path):
    run, dialect = ROCPD.first(lambda run, _: len(run.ranks) == 1)
    path = ROCPD.write(run, dialect, tmp_path / "profile.db")
    with closing(sqlite3.connect(path)) as base:
        base.execute("DELETE FROM kernels")
        base.commit()
    with pytest.raises(InputError, match="rocprofv3 --hip-trace"):
        open_captures([path])
