"""The forms of other tools, from a picture whose bars can be counted; the command once on a recorded trace."""

import csv
import io
import json
from pathlib import Path

import pytest

from diagnose.cli.main import run
from diagnose.errors import OutputError
from diagnose.model.charts import Gap, KernelTime, Picture, Span
from diagnose.model.diagnosis import Diagnosis, Finding, Source, Where
from diagnose.model.rules import Legend
from diagnose.reports import exports

TRACE = Path(__file__).parents[2] / "fixtures" / "traces" / "emptied_cache-planted"
US = 1000
PICTURE = Picture(
    step=3,
    step_ns=100 * US,
    spans=(
        Span("GPU 0 stream 7", 40 * US, 90 * US, "gemm", "compute"),
        Span("host 11", 0, 60 * US, "aten::mm", "operator"),
        Span("host 11 +1", 10 * US, 30 * US, "launch;it", "runtime"),
        Span("host 11 +1", 50 * US, 70 * US, "late", "runtime"),
    ),
    gaps=(Gap(0, 40 * US, "host-sync", "aten::item", "train.py:4"),),
    depth=((0, 0), (30 * US, 1)),
    titles={"host 11": "training thread"},
    kernels=(KernelTime("gemm", "gemm", 1.0, 50 * US, 1.0, where=Where(file="train.py", line=4)),),
)
FINDING = Finding("host-sync", "=It waits", 40 * US, where=(Where(file="train.py", line=4),), evidence=("a", "b"))
DIAGNOSIS = Diagnosis(
    verdict="gaps", headline="It waits.", dominant="host-sync", step_ns=100 * US, step_times_ns=(100 * US,), queue=None,
    partition=None, idle_by_cause={}, prescriptions=(), trust=(), source=Source(path="t.json"),
    findings=(FINDING,),
    legends={"host-sync": Legend("waiting for the device", "#000000")},
)  # fmt: skip


def test_perfetto_has_streams_threads_causes_depth_and_findings():
    trace = json.loads(exports.perfetto(DIAGNOSIS, PICTURE))
    slices = {(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    assert slices == {
        (1, 1, "gemm", 40.0, 50.0),
        (2, 2, "aten::mm", 0.0, 60.0),
        (2, 2, "launch;it", 10.0, 20.0),
        (2, 2, "late", 50.0, 20.0),
        (3, 1, "waiting for the device", 0.0, 40.0),
    }
    assert [(e["ts"], e["args"]) for e in trace["traceEvents"] if e["ph"] == "C"] == [
        (0.0, {"launches": 0}), (30.0, {"launches": 1}),
    ]  # fmt: skip
    (found,) = (e for e in trace["traceEvents"] if e["ph"] == "i")
    assert (found["name"], found["args"]) == (
        "=It waits",
        {"rule": "host-sync", "lost_ms": 0.04, "evidence": ["a", "b"]},
    )


def test_host_time_is_nested_and_its_self_times_add_up():
    assert exports.collapsed(PICTURE) == (
        "training thread;aten::mm 30\ntraining thread;aten::mm;launch,it 20\ntraining thread;aten::mm;late 10\n"
    )
    (profile,) = json.loads(exports.speedscope(DIAGNOSIS, PICTURE))["profiles"]
    assert [(e["type"], e["frame"], e["at"]) for e in profile["events"]] == [
        ("O", 0, 0.0), ("O", 1, 10.0), ("C", 1, 30.0), ("O", 2, 50.0), ("C", 2, 60.0), ("C", 0, 60.0),
    ]  # fmt: skip


def test_tables_have_a_row_each_and_no_formula():
    (row,) = csv.DictReader(io.StringIO(exports.csv_table(exports.findings_table(DIAGNOSIS))))
    assert (row["rule"], row["title"], row["lost_ms"], row["lost_share"]) == ("host-sync", "'=It waits", "0.04", "0.4")
    kernels = exports.kernels_table(DIAGNOSIS, PICTURE)
    assert (kernels["name"], kernels["ms_per_step"], kernels["line"]) == (["gemm"], [0.05], [4])


def test_the_command_writes_every_form_of_a_recorded_trace(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    forms = ("perfetto=p.json", "speedscope=s.json", "collapsed=c.txt", "findings=f.csv", "kernels=k.csv")
    exports_of = [word for form in (*forms, "markdown=m.md") for word in ("--export", form)]
    assert run(["analyze", "-q", str(TRACE), *exports_of]) == 0
    assert capsys.readouterr().out.startswith("GPU stalls")
    events = json.loads(Path("p.json").read_text())["traceEvents"]
    assert {event["args"]["rule"] for event in events if event.get("cat") == "idle"} >= {"allocator-stall"}
    assert Path("k.csv").read_text().startswith(",".join(exports.kernels_table(DIAGNOSIS, PICTURE)))
    assert Path("m.md").read_text().startswith("**")
    assert Path("f.csv").read_text().count("\n") > 1


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["markdown=there.md"], 6, "there.md exists already"),
        (["kernels=k.txt"], 2, "Invalid --export kernels 'k.txt': the name must end in .csv."),
        (["pdf=r.pdf"], 2, "Invalid --export 'pdf=r.pdf': use KIND=FILE with a KIND of perfetto, speedscope, "),
        (["perfetto"], 2, "Invalid --export 'perfetto': use KIND=FILE"),
        (["markdown=a.md", "markdown=b.md"], 2, "--export markdown is given twice; leave one of them out."),
        (["markdown=a.md", "perfetto=a.md"], 2, "--export markdown and --export perfetto both name a.md"),
        (["markdown=absent"], 2, "--export markdown names absent, which is read"),
        (["tensorboard=there.md"], 6, "there.md is a file; name a folder"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_read(
    words, code, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("there.md").write_text("mine")
    assert run(["analyze", *(word for form in words for word in ("--export", form)), "absent"]) == code
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_standard_input_cannot_be_exported(capsys):
    assert run(["analyze", "-", "--export", "markdown=m.md"]) == 2
    assert "--export reads the recording twice, which standard input cannot; name a file." in capsys.readouterr().err


def test_a_form_that_cannot_be_written_costs_no_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def full(_file, _data, force):
        raise OutputError("m.md cannot be written.")

    monkeypatch.setattr("diagnose.cli.job.write_bytes", full)
    assert run(["analyze", "-q", str(TRACE), "--export", "markdown=m.md"]) == 6
    shown = capsys.readouterr()
    assert shown.out.startswith("GPU stalls")
    assert "m.md cannot be written." in shown.err
