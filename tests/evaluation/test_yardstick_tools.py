"""The adapters of the yardstick: what each tool prints, turned into the same fields; the outputs are made here."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.environments import install, python_of
from yardstick.processes import ended, last_line
from yardstick.tools import NOT_RUN, TOOLS, families, py_spy
from yardstick.tools.marking import mark
from yardstick.tools.tool import plain_script, timed_trace, trace_with_shapes, unpacked


def read(tool, raw):
    return TOOLS[tool].read(raw if isinstance(raw, str) else json.dumps(raw))


WHERE = {"file": "src/train.py", "line": 40, "last_line": None}
FOUND = {
    "dominant": "data-stall",
    "step_ms": 100.0,
    "findings": [{"rule": "data-stall", "title": "The step waits for the DataLoader", "where": [WHERE]}],
    "prescriptions": [
        {"rule": "data-stall", "id": "load-in-workers", "title": "Load in workers", "saves_ms": [40, 60]}
        | {"edits": [{"file": "train.py", "line": 56, "last_line": 58}]}
    ],
    "answer": {"cards": ["load-in-workers"]},
}


def test_diagnose_answers_with_its_first_finding_and_card():
    assert read("diagnose", FOUND) == Answer(
        "The step waits for the DataLoader",
        ("data-stall",),
        (("train.py", 40, 40), ("train.py", 56, 58)),
        "Load in workers",
        "load-in-workers",
        0.5,
    )
    assert read("diagnose", FOUND | {"dominant": None}) == Answer()
    assert read("diagnose", FOUND | {"answer": {"cards": []}}).saving is None


def hta(idle, compute, other, waits):
    kinds = {str(place): kind for place, kind in enumerate(waits)}
    times = {str(place): time for place, time in enumerate(waits.values())}
    shares = {"idle_time_pctg": {"0": idle}, "compute_time_pctg": {"0": compute}, "non_compute_time_pctg": {"0": other}}
    return f"{json.dumps(shares)}\n{json.dumps({'idle_category': kinds, 'idle_time': times})}\n{{}}\n"


def test_holistic_trace_analysis_answers_with_the_largest_part():
    waits = {"host_wait": 9, "kernel_wait": 1}
    assert read("hta", hta(80, 15, 5, waits)).names == families.HOST
    assert read("hta", hta(10, 80, 10, waits)).names == families.KERNELS
    assert "exposed-communication" in read("hta", hta(10, 20, 70, waits)).names
    assert read("hta", hta(80, 15, 5, {"host_wait": 1, "kernel_wait": 9})).names == ("kernel-latency",)


def test_gpu_idle_answers_with_its_first_finding_or_is_silent():
    first = {"cause": "dataloader", "evidence": "92% in the DataLoader", "fix": "num_workers=8"}
    assert read("gpu-idle", {"findings": [first]}) == Answer(first["evidence"], ("data-stall",), change=first["fix"])
    assert read("gpu-idle", {"findings": []}) == Answer()
    assert "data-stall" not in read("gpu-idle", {"findings": [first | {"cause": "unattributed"}]}).names


def test_the_plugin_answers_with_its_first_recommendation():
    said = "This run has high time cost on input data loading. You could try num_workers."
    answer = read("tensorboard", f"a warning\n{json.dumps([said, 'another'])}")
    assert (answer.names, answer.change) == (("data-stall",), "You could try num_workers.")
    assert read("tensorboard", "[]") == Answer()


def test_tracelens_answers_with_the_largest_part_of_the_timeline():
    def report(idle, computation, *categories):
        parts = {"idle_time": idle, "computation_time": computation, "busy_time": 99}
        timeline = [{"type": part, "percent": str(share)} for part, share in parts.items()]
        rows = [{"op category": name} for name in categories]
        return {"gpu_timeline": timeline, "ops_summary_by_category": rows}

    assert read("tracelens", report(87, 12)).names == families.HOST
    assert "full-precision-matmul" in read("tracelens", report(5, 90, "GEMM", "elementwise")).names
    assert read("tracelens", report(5, 90)).names == families.KERNELS


def test_traceml_answers_with_its_primary_diagnosis():
    found = {"kind": "INPUT_BOUND", "status": "INPUT-BOUND", "summary": "64%", "action": "Increase workers"}
    assert read("traceml", found) == Answer("INPUT-BOUND: 64%", families.LOADING, change="Increase workers")
    assert read("traceml", found | {"kind": "COMPUTE_BOUND"}) == Answer()
    with pytest.raises(NoAnswerError, match="INPUT-BOUND"):
        read("traceml", found | {"kind": "INSUFFICIENT_STEP_TIME_DATA"})


def test_fournex_answers_with_its_primary_bottleneck():
    found = {"primary_bottleneck": "input_bound", "recommendations": [{"title": "More workers"}]}
    assert read("fournex", found) == Answer("input_bound", families.LOADING, change="More workers")
    assert read("fournex", found | {"primary_bottleneck": "inconclusive"}) == Answer()
    with pytest.raises(NoAnswerError, match="insufficient"):
        read("fournex", found | {"primary_bottleneck": "insufficient_telemetry"})


def test_hotpath_answers_with_its_most_severe_warning():
    def finding(line, impact, severity="warning", rule="KP003"):
        return {"rule_id": rule, "title": "item", "severity": severity, "impact": impact, "line": line} | {
            "recommendation": "less often"
        }

    listed = [finding(1, "high", "info"), finding(9, "medium"), finding(12, "high"), finding(30, "high")]
    answer = read("hotpath", {"files": [{"path": "/x/a.py", "findings": listed}]})
    assert (answer.places, answer.names[0]) == ((("a.py", 12, 12),), "host-sync")
    assert read("hotpath", {"files": [{"path": "a.py", "findings": listed[:1]}]}) == Answer()


def test_profilers_answer_with_the_line_that_takes_most():
    assert read("py-spy", "a.py:7 90\nb.py:3 10").places == (("a.py", 7, 7),)
    assert read("scalene", {"a.py": {"3": 10.0, "7": 60.5}}).places == (("a.py", 7, 7),)
    for tool in ("py-spy", "scalene"):
        with pytest.raises(NoAnswerError):
            read(tool, "" if tool == "py-spy" else {})


def test_samples_go_to_the_innermost_line_of_the_script():
    samples = """main (/x/a.py:9);step (/x/a.py:4);conv (/torch/nn.py:80) 5
main (/x/a.py:9);<module> (/x/a.py:2);_find_and_load (<frozen importlib._bootstrap>:1) 50
main (/x/a.py:9) 2
main (a.py:11);backward (/torch/autograd/a.py:3) 1
start (/threading.py:3) 9"""
    assert py_spy._shortened(samples, Path("/x")) == ["a.py:4 5", "a.py:9 2", "a.py:11 1"]


LOOP = """import torch
from torch.utils.data import DataLoader

def train(net, batch, opt):
    net(batch).backward()
    opt.step()

def main():
    net = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(2):
        for batch in DataLoader([1]):
            train(net, batch, opt)
"""


def test_steps_are_marked_around_the_innermost_loop_that_trains(tmp_path):
    script = tmp_path / "a.py"
    script.write_text(LOOP)
    mark(script, "import tool\ntool.init()", "tool.step({model})", "tool.source", loader="tool.watch")
    text = script.read_text()
    assert text.index("import tool") > text.index("DataLoader")
    assert "for batch in tool.source(tool.watch(DataLoader([1]))):\n            with tool.step(net):" in text
    compile(text, "a.py", "exec")
    script.write_text("for epoch in range(2):\n    trainer.fit()\n")
    with pytest.raises(NoAnswerError, match="could be marked"):
        mark(script, "", "tool.step({model})", "tool.source")


def test_a_script_is_copied_without_what_is_beside_it(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "a.py").write_text("pass")
    (tmp_path / "here" / "truth.json").write_text("[]")
    cwd = plain_script(Script(tmp_path / "here" / "a.py"), tmp_path / "there")
    assert [file.name for file in cwd.iterdir()] == ["a.py"]
    with pytest.raises(NoAnswerError, match="torchrun"):
        plain_script(Script(tmp_path / "here" / "a.py", ranks=2), tmp_path / "there")


def test_a_project_is_copied_and_prepared(tmp_path):
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "a.py").write_text("pass")
    (project / "make.py").write_text("from pathlib import Path\nPath(__file__).with_name('made').touch()")
    (project / "catalogue.py").touch()
    script = Script(project / "src" / "a.py", project, "src", (), prepare="make.py", leave=("catalogue.py",))
    (tmp_path / "work").mkdir()
    cwd = script.copied(tmp_path / "work")
    assert (cwd.name, sorted(file.name for file in cwd.parent.iterdir())) == ("src", ["made", "make.py", "src"])


def test_each_tool_gets_the_trace_that_suits_it(tmp_path):
    for window in ("light", "attribution"):
        (tmp_path / f"rank0.{window}.pt.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    recording = Recording(tmp_path)
    assert "light" in timed_trace(recording, tmp_path).name
    assert "attribution" in trace_with_shapes(recording, tmp_path).name
    assert unpacked(timed_trace(recording, tmp_path), tmp_path).read_text() == "{}"
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoAnswerError, match="no trace"):
        timed_trace(Recording(tmp_path / "empty"), tmp_path)


def test_a_command_ends_with_its_time(tmp_path):
    run = ended((sys.executable, "-c", "import os, sys; sys.exit(os.environ['OMP_NUM_THREADS'])"), tmp_path)
    assert (run.returncode, last_line(run)) == (1, "1")
    with pytest.raises(NoAnswerError, match="more than"):
        ended((sys.executable, "-c", "import time; time.sleep(60)"), tmp_path, seconds=0.2)


def test_what_a_command_starts_in_another_session_ends_too(tmp_path):
    child = "import time; time.sleep(60)"
    parent = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    parent += "; open('pid', 'w').write(str(p.pid)); p.wait()"
    with pytest.raises(NoAnswerError):
        ended((sys.executable, "-c", parent), tmp_path, seconds=3)
    stat = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_every_tool_has_pinned_packages_and_a_form(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    for tool in TOOLS.values():
        assert tool.form
        assert tool.name == "diagnose" or "==" in "".join(tool.requirements)
    (tmp_path / "hta").mkdir()
    install(TOOLS["hta"], tmp_path)
    assert commands[-1][-1] == "traceinsight==0.6.1"
    with pytest.raises(SystemExit, match="--install --tool hta"):
        python_of(TOOLS["hta"], tmp_path)
    assert all(NOT_RUN.values())


@pytest.mark.parametrize(
    "script",
    [
        "for _ in range(2):\n    loss.backward()\nopt.step()\n",
        "for epoch in range(2):\n    trainer.fit()\n",
    ],
)
def test_a_script_without_a_loop_that_trains_is_not_marked(tmp_path, script):
    (tmp_path / "a.py").write_text(script)
    with pytest.raises(NoAnswerError, match="could be marked"):
        mark(tmp_path / "a.py", "", "tool.step({model})", "tool.source")


METHODS = """class T:
    def __init__(self):
        self.opt = Adam([p for net in self.nets for p in net.parameters()] + list(self.net.parameters()))
    def one(self):
        self.loss.backward()
        self.opt.step()
    def fit(self):
        for i in range(9):
            self.one()
"""


def test_a_step_in_a_method_is_marked(tmp_path):
    script = tmp_path / "a.py"
    script.write_text(METHODS)
    mark(script, "", "tool.step({model})", "tool.source")
    marked = "for i in tool.source(range(9)):\n            with tool.step(self.net):\n                self.one()"
    assert marked in script.read_text()
