"""Whatever a trace or a capture holds, no output of it steers a terminal, runs in a page, or reads other than it is."""

from __future__ import annotations

import json
import re

import pytest

from diagnose.cli.main import run

MARK = "\x1b]0;owned\x07\x9b2J<script>alert(1)</script>[/red]\u202egnp.exe\u200f\u200b\u2028\r\nfake line\udc80"
LONG = "n" * 10_000
STEP_US = 1000.0
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def trace(text):
    """Return a trace in which every string that a program can choose is ``text``; the device idles in each step."""
    host = {"ph": "X", "pid": text, "tid": text}
    args = {"Call stack": f"{text}(3): {text}", "Input Dims": [text], "Input type": [text], "Concrete Inputs": [text]}
    events = [{"ph": "M", "name": "thread_name", "pid": text, "tid": text, "args": {"name": text}}]
    for step in range(4):
        at = step * STEP_US
        shape = {"Collective name": text, "dtype": text}
        events += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": STEP_US},
            {**host, "cat": "cpu_op", "name": text, "ts": at + 10, "dur": 600, "args": args},
            {**host, "cat": "cpu_op", "name": "aten::item", "ts": at + 620, "dur": 300, "args": args},
            {**host, "cat": "python_function", "name": f"{text}(7): {text}", "ts": at + 5, "dur": 950},
            {**host, "cat": "user_annotation", "name": f"Optimizer.step#{text}", "ts": at + 930, "dur": 20},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 500, "dur": 10,
             "args": {"correlation": step + 1}},
            {"ph": "X", "cat": "kernel", "name": text, "pid": 0, "tid": 7, "ts": at + 520, "dur": 200,
             "args": {"device": 0, "stream": 7, "correlation": step + 1, **shape}},
            {**host, "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": at + 630, "dur": 280, "args": {}},
        ]  # fmt: skip
    devices = [{"id": 0, "name": text, "totalGlobalMem": 1 << 30}]
    return json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events, text: text})


def capture(folder, text):
    folder.mkdir()
    (folder / "a.json").write_text(trace(text))
    places = [[text, 3, text]]
    times = [1_000_000 + i * 10_000 for i in range(400)]
    samples = {"places": places, "time_ns": times, "place": [0] * 400, "running": [1] * 400}
    (folder / "s.json").write_text(json.dumps(samples))
    info = {
        "schema_version": 1, "run_id": text, "command": [text, text], "cwd": text, "torch": text, "python": text,
        "light_file": "a.json", "attribution_file": "a.json", "samples_file": "s.json", "found_steps_by": text,
        "notes": [text], "loader": {"dataset": text, "num_workers": 0}, "optimizer": {"class": text},
        "nvml": {"reason": text, "gpus": [{"name": text, "uuid": text, "other_processes": [{"pid": 7}]}]},
    }  # fmt: skip
    (folder / "capture.json").write_text(json.dumps(info))


def assert_harmless(text):
    found = RAW.search(text)
    assert found is None, (hex(ord(found[0])), text[max(found.start() - 60, 0) : found.end() + 20])
    assert "n" * 2_000 not in text


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """Return what a command prints: its exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = run(list(arguments))
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("text", [MARK, LONG], ids=["marks", "long"])
def test_nothing_of_a_capture_reaches_an_output_raw(shown, tmp_path, text):
    capture(tmp_path / "capture", text)
    code, out, err = shown("analyze", "capture", "--html", "r.html", "-o", "r.json")
    assert code == 0, err
    for output in (out, err):
        assert_harmless(output)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    own, _, data = page.partition('id="data">')
    assert_harmless(own.replace("\t", ""))
    data, _, scripts = data.partition("</script>")
    assert not RAW.search(data)
    held = json.loads(data)
    held.pop("diagnosis")  # as the JSON has it: in full
    assert_harmless(json.dumps(held, ensure_ascii=False))
    assert_harmless(scripts)
    assert "<script>alert" not in page
    answer = (tmp_path / "r.json").read_text(encoding="utf-8")
    assert answer.isascii()
    assert not RAW.search(answer)  # text of a program's own choosing is there in full, as \u escapes
    if text == MARK:
        code, out, err = shown("analyze", "capture", "--verbose")
        assert code == 0
        assert_harmless(out + err)
        assert r"\x1b]0;owned\x07\x9b2J" in out
        assert r"\u202egnp.exe\u200f" in page
    code, out, err = shown("compare", "r.json", "capture")
    assert code == 0, err
    assert_harmless(out + err)
    code, out, err = shown("what-if", "capture", "--without", "host-sync")
    assert code in (0, 2)
    assert_harmless(out + err)


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", f"{MARK}.json"), ("analyze", LONG), ("compare", MARK, MARK), ("gate", MARK, MARK), (MARK,),
        ("analyze", f"--{MARK}"), ("what-if", "x", "--loader-workers", MARK), ("trace", "--step-on", MARK, "a.py"),
        ("prove", MARK, "--yes"), ("trace", LONG),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("noted")
def test_errors_show_arguments_harmlessly(shown, arguments):
    code, out, err = shown(*arguments)
    assert code not in (0, 70)
    assert_harmless(out + err)
    assert len(err) < 4_000
