"""The command without a trace: options, files, exit codes and sentences; reading and analyzing are stand-ins here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import diagnose
from diagnose.cli import main as cli
from diagnose.errors import CaptureError, InputError
from diagnose.model.charts import HostOperator
from diagnose.model.diagnosis import Diagnosis, Source
from diagnose.pipeline import job
from diagnose.trace_reader.inputs import Inputs, RankFiles
from diagnose.trace_reader.stored import Stored

HEALTHY = Diagnosis(
    verdict="no-gpu",
    headline="Nothing holds this step back.",
    dominant=None,
    step_ns=10e6,
    step_times_ns=(10_000_000,) * 5,
    queue=None,
    partition=None,
    idle_by_cause={},
    findings=(),
    prescriptions=(),
    trust=(),
    source=Source(path="trace.json"),
    operators=(HostOperator("aten::mm", 4.0, 8e6, 8e6),),
)


@pytest.fixture
def analyzed(monkeypatch, tmp_path):
    """Let every path be read and be found healthy; return what was asked to be read."""
    asked = []
    one = Inputs((RankFiles(None, Stored("trace.json", "trace.json")),), ())
    monkeypatch.setattr(job, "list_inputs", lambda paths: asked.extend(paths) or one)
    monkeypatch.setattr(job, "diagnosis_of", lambda files, cache, draw, processes=1: HEALTHY)
    monkeypatch.chdir(tmp_path)
    return asked


def test_json_is_all_that_standard_output_holds(analyzed, capsys):
    assert cli.run(["analyze", "a.json", "b.json", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdict"] == "no-gpu"
    assert "reading a.json, b.json" in shown.err
    assert [str(path) for path in analyzed] == ["a.json", "b.json"]


def test_quiet_leaves_standard_error_empty(analyzed, capsys):
    assert cli.run(["analyze", "a.json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert "Nothing to fix" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(("name", "sign"), [("r.html", "<!doctype html>"), ("r.JSON", "{"), ("r.txt", "cpu only")])
def test_the_suffix_chooses_the_format(analyzed, tmp_path, name, sign):
    assert cli.run(["analyze", "a.json", "-o", name]) == 0
    assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(sign)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_existing_report_is_kept_unless_forced(analyzed, tmp_path, capsys):
    report = tmp_path / "r.html"
    report.write_text("mine")
    assert cli.run(["analyze", "a.json", "--html", "r.html"]) == 6
    assert report.read_text() == "mine"
    assert "r.html exists already; give another name, or --force" in capsys.readouterr().err
    assert analyzed == []  # refused before the work began
    assert cli.run(["analyze", "a.json", "--html", "r.html", "--force"]) == 0
    assert report.read_text() != "mine"


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["-o", "r.pdf"], 2, "Invalid --output 'r.pdf': the name must end in .html, .json or .txt."),
        (["--html", "r.txt"], 2, "Invalid --html 'r.txt': the name must end in .html."),
        (["--html", "r.html", "-o", "./r.html"], 2, "both name"),
        (["-o", "nowhere/r.json"], 6, "the folder nowhere does not exist"),
        (["--open"], 2, "--html FILE"),
    ],
)
def test_what_cannot_be_written_is_said_first(analyzed, capsys, options, code, sentence):
    assert cli.run(["analyze", "a.json", *options]) == code
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert analyzed == []


def test_a_folder_that_may_not_be_written_is_said_first(analyzed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert cli.run(["analyze", "a.json", "-o", "r.json"]) == 6
    assert "is not writable" in capsys.readouterr().err


def test_a_disk_that_fills_up_leaves_nothing_behind(analyzed, tmp_path, monkeypatch, capsys):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    assert cli.run(["analyze", "a.json", "-o", "r.json"]) == 6
    shown = capsys.readouterr()
    assert "Nothing to fix" in shown.out  # the answer is not lost
    assert "r.json cannot be written: No space left on device. Free some space or choose another place." in shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_anywhere_else_is_a_sentence_too(analyzed, monkeypatch, capsys):
    def full(files, cache, draw, processes=1):
        raise OSError(28, "No space left on device", "/tmp/diagnose-1/a")

    monkeypatch.setattr(job, "diagnosis_of", full)
    assert cli.run(["analyze", "a.json", "--quiet"]) == 6
    assert capsys.readouterr().err == (
        "diagnose: error: /tmp/diagnose-1/a cannot be written: No space left on device. "
        "Free some space or choose another place.\n"
    )


def test_an_input_is_never_overwritten(analyzed, tmp_path, capsys):
    (tmp_path / "a.json").write_text("mine")
    assert cli.run(["analyze", "a.json", "-o", "./a.json", "--force"]) == 2
    assert "--output names a.json, which is read; give it another name." in capsys.readouterr().err
    assert (tmp_path / "a.json").read_text() == "mine"


@pytest.mark.parametrize(("error", "code"), [(InputError("It is empty."), 4), (CaptureError("No step."), 5)])
def test_every_error_is_one_sentence_with_its_exit_code(analyzed, monkeypatch, capsys, error, code):
    def fail(files, cache, draw, processes=1):
        raise error

    monkeypatch.setattr(job, "diagnosis_of", fail)
    assert cli.run(["analyze", "a.json", "--json", "--quiet"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"diagnose: error: {error}\n"


@pytest.mark.usefixtures("noted")
def test_a_fault_of_our_own_says_how_to_report_it(analyzed, monkeypatch, capsys):
    monkeypatch.setattr(job, "diagnosis_of", lambda files, cache, draw, processes=1: {}["missing"])
    assert cli.run(["analyze", "a.json", "--quiet"]) == 70
    shown = capsys.readouterr().err
    assert shown.startswith("diagnose: error: internal error: KeyError: 'missing'.")
    assert "Traceback" not in shown
    monkeypatch.setenv("DIAGNOSE_DEBUG", "1")
    assert cli.run(["analyze", "a.json", "--quiet"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_no_traceback(analyzed, monkeypatch, capsys):
    def interrupt(files, cache, draw, processes=1):
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "diagnosis_of", interrupt)
    assert cli.run(["analyze", "a.json", "--quiet"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_wrong_usage_exits_with_2(capsys):
    assert cli.run(["analyze"]) == 2
    assert cli.run(["analyse", "x"]) == 2
    assert cli.run(["trace", "--steps", "0", "train.py"]) == 2
    assert cli.run(["trace", "there-is-none.py"]) == 2
    assert "The script there-is-none.py does not exist" in capsys.readouterr().err


def test_without_a_command_the_help_is_shown_as_it_is(capsys):
    assert cli.run([]) == 2
    shown = capsys.readouterr().err
    assert "\n\nCommands:\n  trace       Run a script" in shown


def test_wrong_usage_ends_with_one_sentence_like_every_error(capsys):
    assert cli.run(["trace", "--step", "5", "train.py"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("diagnose: error: No such option")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from diagnose.cli import main; main.run(['--help']);"
        "print(sorted({'torch', 'numpy', 'rich', 'plotly', 'msgspec', 'jinja2'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert "trace" in done.stdout
    assert "analyze" in done.stdout


def test_one_rank_is_answered_without_what_several_ranks_need(tmp_path):
    trace = tmp_path / "trace.json"
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 10, "dur": 5}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 50}
    kernel["args"] = {"device": 0, "stream": 7, "correlation": 1}
    trace.write_text(json.dumps({"traceEvents": [launch | {"args": {"correlation": 1}}, kernel]}))
    code = (
        "import sys; from diagnose.cli import main; main.run(['analyze', sys.argv[1], '--json', '--no-cache']);"
        "heavy = {'torch', 'rich', 'webbrowser', 'secrets', 'diagnose.ranks.comparison', 'diagnose.model.job'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(trace)], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command():
    shown = subprocess.run([sys.executable, "-m", "diagnose", "--version"], check=True, capture_output=True, text=True)
    assert shown.stdout.startswith("diagnose ")


LEAVING = """
import atexit, sys, threading
from diagnose.cli import main as command
atexit.register(print, "registered", flush=True)
command.run = lambda: print("answer") or 7
{before}
command.main()
"""
THREAD = "threading.Thread(target=lambda: threading.main_thread().join() or print('thread', flush=True)).start()"


@pytest.mark.parametrize(
    ("before", "expected"), [("", "answer\nregistered\n"), (THREAD, "answer\nthread\nregistered\n")]
)
def test_nothing_written_or_registered_is_lost_at_the_end(before, expected):
    left = subprocess.run(
        [sys.executable, "-c", LEAVING.format(before=before)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (left.returncode, left.stdout, left.stderr) == (7, expected, "")


def test_the_end_of_a_full_device_is_pythons_own():
    with Path("/dev/full").open("w") as full:
        left = subprocess.run(
            [sys.executable, "-c", LEAVING.format(before="")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert left.returncode != 0
    assert "No space left" in left.stderr


def test_files_of_another_package_of_the_name_are_reported(tmp_path):
    package = tmp_path / "diagnose"
    package.mkdir()
    for path in Path(diagnose.__file__).parent.iterdir():
        (package / path.name).symlink_to(path)
    (package / "__init__.py").unlink()
    for name in ("__init__.py", "patchlib.py"):  # installed last, the other package's has no version
        (package / name).touch()
    code = "from diagnose.cli.main import main; main()"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip uninstall -y diagnose torch-diagnose, then pip install torch-diagnose." in done.stderr
    assert "Traceback" not in done.stderr
