"""Files that cannot be read, or not as hoped, through the real command: a sentence and an exit code.

One of each kind is given to the command in a process of its own, its like to the command in this process.
"""

import gzip
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

STEP_US, STEPS = 1000.0, 4


def kineto(*, device=True, marks=True):
    """Return a trace of four steps: one operator, its launch, and a kernel that ends with the step."""
    events = []
    for step in range(STEPS):
        at = step * STEP_US
        host = {"ph": "X", "pid": 1, "tid": 1}
        if marks:
            events.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": STEP_US})
        events.append({**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 10, "dur": 600, "args": {}})
        if device:
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 20, "dur": 10}
            kernel = {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": at + 100, "dur": 880}
            link = {"correlation": step + 1}
            events.append({**host, **launch, "args": link})
            events.append({**kernel, "args": {"device": 0, "stream": 7, **link}})
    properties = [{"id": 0, "name": "Test GPU", "totalGlobalMem": 1 << 30}] if device else []
    return json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events})


def failure(done):
    """Return the sentence of a failed run."""
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("diagnose: error: ")]
    assert len(said) == 1, done.stderr
    assert said[0].endswith(".")
    return said[0]


BROKEN = {
    "empty.json": b"",
    "blank.json": b"  \n",
    "no-json.json": b"loss: 0.3\nloss: 0.2\n",
    "other.json": b'{"name": "diagnose", "version": 3}',
    "list.json": b"[1, 2, 3]",
    "binary.json": bytes(range(256)) * 8,
    "no-events.json": b'{"schemaVersion": 1, "traceEvents": []}',
    "not-gzip.json.gz": b'{"traceEvents": []}'[:7],
    "empty.json.gz": b"",
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_file_that_is_no_trace_is_one_sentence(within, tmp_path, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    done = within("analyze", name, "--json")
    assert name in failure(done)
    assert done.returncode == 4


def test_in_a_process_of_its_own_it_is_the_same_sentence(diagnose, within, tmp_path):
    (tmp_path / "binary.json").write_bytes(BROKEN["binary.json"])
    done, known = (run("analyze", "binary.json", "--json") for run in (diagnose, within))
    assert failure(done) == failure(known)
    assert done.returncode == known.returncode == 4


def test_a_file_or_folder_that_is_not_there(within, tmp_path):
    (tmp_path / "folder").mkdir()
    for path in ("missing.json", "folder"):
        done = within("analyze", path)
        assert path in failure(done)
        assert done.returncode == 4


def test_a_gzip_that_breaks_off_is_read_up_to_there_or_refused(within, tmp_path):
    whole = gzip.compress(kineto().encode())
    for share in (0.2, 0.6, 0.95):
        (tmp_path / "cut.json.gz").write_bytes(whole[: int(len(whole) * share)])
        done = within("analyze", "cut.json.gz", "--json")
        if done.returncode == 0:
            assert any("cut" in note["text"] or "end" in note["text"] for note in json.loads(done.stdout)["trust"])
        else:
            failure(done)
            assert done.returncode == 4


@pytest.mark.parametrize("share", [0.5, 0.75, 0.99])
def test_a_trace_that_breaks_off_is_read_up_to_there(within, tmp_path, share):
    text = kineto()
    (tmp_path / "cut.json").write_text(text[: int(len(text) * share)])
    done = within("analyze", "cut.json", "--json")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["steps"] >= 1
    assert any("cut" in note["text"] or "end" in note["text"] for note in diagnosis["trust"])


def test_a_trace_without_a_gpu_is_diagnosed(within, tmp_path):
    (tmp_path / "cpu.json").write_text(kineto(device=False))
    done = within("analyze", "cpu.json", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "no-gpu"


def test_a_trace_without_steps_is_diagnosed_and_says_so(within, tmp_path):
    (tmp_path / "steps.json").write_text(kineto(marks=False))
    done = within("analyze", "steps.json", "--json")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["verdict"] == "kernel-bound"
    assert any("step" in note["text"] for note in diagnosis["trust"])


def test_captures_of_two_runs_are_not_mixed(within, tmp_path):
    folder = tmp_path / "capture"
    folder.mkdir()
    for rank, run in ((0, "monday"), (1, "tuesday")):
        (folder / f"rank{rank}.light.pt.trace.json").write_text(kineto())
        info = {"schema_version": 1, "run_id": run, "rank": rank, "world_size": 2}
        info["light_file"] = f"rank{rank}.light.pt.trace.json"
        (folder / f"capture.rank{rank}.json").write_text(json.dumps(info))
    done = within("analyze", "capture", "--json")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert [rank["rank"] for rank in diagnosis["ranks"]] == [0]
    assert "capture/rank1.light.pt.trace.json is of another run" in diagnosis["trust"][-1]["text"]


def test_a_report_takes_the_place_of_a_page_of_ours_and_of_nothing_else(diagnose, tmp_path):
    (tmp_path / "trace.json").write_text(kineto())
    first = diagnose("analyze", "trace.json", "--html", "r.html", "-o", "r.json")
    assert first.returncode == 0, first.stderr
    again = diagnose("analyze", "trace.json", "--html", "r.html")
    assert again.returncode == 0, again.stderr
    mine = b"<html><title>my page, made by diagnose</title></html>"
    (tmp_path / "mine.html").write_bytes(mine)
    (tmp_path / "link.html").symlink_to("r.html")
    for name in ("mine.html", "link.html", "r.json"):
        held = (tmp_path / name).read_bytes()
        refused = diagnose("analyze", "trace.json", "-o", name)
        assert refused.returncode == 6
        assert "--force" in failure(refused)
        assert (tmp_path / name).read_bytes() == held
    assert (tmp_path / "link.html").is_symlink()


def test_analysing_imports_no_torch(tmp_path):
    (tmp_path / "trace.json").write_text(kineto())
    code = (
        "import sys; from diagnose.cli import main;"
        "code = main.run(['analyze', 'trace.json', '--html', 'r.html', '--json']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_fault(tmp_path):
    (tmp_path / "trace.json").write_text(kineto())
    command = [sys.executable, "-m", "diagnose", "analyze", "--quiet", "--json", "trace.json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    shown = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert shown == ""
