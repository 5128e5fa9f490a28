"""Exports of Nsight Systems: the answers are those to the same runs in Kineto's files."""

import sqlite3
import stat
import sys
from contextlib import closing

import pytest
from simulation.forms import NSIGHT
from simulation.kineto import write_run

import diagnose
from diagnose.errors import InputError
from diagnose.model.events import Kind
from diagnose.trace_reader import open_captures, read_trace


@pytest.fixture
def profile(tmp_path):
    """Return the export of a run on one GPU."""
    run, dialect = NSIGHT.first(lambda run, dialect: len(run.ranks) == 1 and dialect.marks)
    return NSIGHT.write(run, dialect, tmp_path / "profile.sqlite")


def test_answers_are_those_to_the_same_runs(tmp_path):
    found, num = NSIGHT.differing(7, range(6), tmp_path)
    assert num >= 3
    assert not found


@pytest.mark.full
def test_answers_are_those_to_the_same_two_hundred_runs(tmp_path):
    found, num = NSIGHT.differing(20261128, range(320), tmp_path)
    assert num >= 200
    assert len(found) <= 0.02 * num, found


def test_each_process_that_used_a_gpu_is_a_rank(tmp_path):
    run, dialect = NSIGHT.first(lambda run, _: len(run.ranks) > 1)
    captures = open_captures([NSIGHT.write(run, dialect, tmp_path / "job.sqlite")])
    assert [capture.trace.rank for capture in captures] == list(range(len(run.ranks)))
    assert {capture.trace.world_size for capture in captures} == {len(run.ranks)}
    for log, capture in zip(run.ranks, captures, strict=True):
        events = capture.trace.events
        assert (events.kind == Kind.KERNEL).sum() == sum(task.kind in ("kernel", "collective") for task in log.tasks)
        assert capture.trace.path.startswith(f"{tmp_path}/job.sqlite (process 100")


def test_operators_have_their_sequence_numbers_and_shapes(tmp_path):
    run, dialect = NSIGHT.first(lambda run, dialect: dialect.shapes and len(run.ranks) == 1)
    folder = tmp_path / "kineto"
    folder.mkdir()
    (path,) = write_run(run, dialect, folder)
    one, other = read_trace(path), read_trace(NSIGHT.write(run, dialect, tmp_path / "profile.sqlite"))
    for kind in (Kind.OP, Kind.ANNOTATION, Kind.KERNEL, Kind.MEMCPY, Kind.RUNTIME):
        a, b = (trace.events.rows(trace.events.kind == kind) for trace in (one, other))
        assert [one.names[n] for n in a.name.tolist()] == [other.names[n] for n in b.name.tolist()], kind.name
        assert abs((a.end - a.start) - (b.end - b.start)).max(initial=0) <= 1000
        assert (a.sequence == b.sequence).all()
        assert (a.grid == b.grid).all()
        if kind == Kind.OP:
            texts = ([trace.names[n] for n in x.shapes.tolist() if n >= 0] for trace, x in ((one, a), (other, b)))
            known, found = ([text for text in each if text != "[]"] for each in texts)
            assert known == found
    assert {device.name for device in one.devices} == {device.name for device in other.devices}


def test_numbered_ranges_of_the_program_s_own_part_steps(profile):
    with closing(sqlite3.connect(profile)) as base:
        base.execute("UPDATE NVTX_EVENTS SET text = REPLACE(text, 'ProfilerStep#', 'iteration ')")
        base.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'Optimizer%' OR text LIKE 'enumerate%'")
        base.commit()
    found = diagnose.analyze_trace(profile)
    assert found.steps >= 3
    assert any("iteration" in note.text for note in found.trust)


def test_a_profile_without_ranges_is_answered_and_says_what_it_lacks(profile):
    with closing(sqlite3.connect(profile)) as base:
        base.execute("DROP TABLE NVTX_EVENTS")
        base.commit()
    found = diagnose.analyze_trace(profile)
    assert found.verdict
    assert any("--pytorch=autograd-shapes-nvtx" in note.text for note in found.trust)


def test_a_release_with_fewer_columns_is_read(profile):
    with closing(sqlite3.connect(profile)) as base:
        for column in ("gridX", "gridY", "gridZ"):
            base.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")
        base.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN srcKind")
        base.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")
        base.execute("DROP TABLE TARGET_INFO_GPU")
        base.commit()
    trace = read_trace(profile)
    assert (trace.events.grid == -1).all()
    assert (trace.epoch_ns, trace.devices) == (0, ())
    assert not {name for name in trace.names if name.startswith("Memcpy") and "->" not in name}


def test_reading_leaves_no_file_behind(profile):
    read_trace(profile)
    assert [file.name for file in profile.parent.iterdir()] == [profile.name]


def test_damaged_and_foreign_databases_are_errors_in_a_sentence(tmp_path, profile):
    other = tmp_path / "mlflow.sqlite"
    with closing(sqlite3.connect(other)) as base:
        base.execute("CREATE TABLE runs (id INT)")
        base.commit()
    with pytest.raises(InputError, match="neither an export of Nsight Systems"):
        open_captures([other])
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(profile.read_bytes()[:20_000])
    with pytest.raises(InputError, match="cannot be read"):
        open_captures([cut])
    with closing(sqlite3.connect(profile)) as base:
        base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'")
        base.commit()
    with pytest.raises(InputError, match="cannot be read"):
        open_captures([profile])


def test_a_report_is_exported_by_nsys(tmp_path, profile, monkeypatch):
    made = profile.read_bytes()
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"report")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(InputError, match=r"nsys export --type sqlite .*run\.nsys-rep"):
        open_captures([report])
    source = tmp_path / "made"
    source.write_bytes(made)
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nassert sys.argv[1:4] == ['export', '--type', 'sqlite']\n"
        f"shutil.copy({str(source)!r}, sys.argv[sys.argv.index('--output') + 1])\n"
    )
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    (capture,) = open_captures([report])
    assert len(capture.trace.events)
    nsys.write_text(f"#!{sys.executable}\nraise SystemExit('it is of a newer release')\n")
    with pytest.raises(InputError, match="newer release"):
        open_captures([report])
