"""The Python face: step functions, loops, traces, and what a diagnosis can do."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest

import diagnose
from diagnose.errors import DiagnoseError
from diagnose.model.charts import HostOperator
from diagnose.model.diagnosis import Diagnosis, Finding, Source, Trial, Where
from diagnose.reports import html

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
    source=Source(path="a <b> & 'c'.json"),
    operators=(HostOperator("aten::mm", 4.0, 8e6, 8e6),),
)


def test_the_public_names_are_there_and_importing_them_is_cheap():
    code = "import sys, diagnose; print(sorted({'torch', 'numpy', 'click'} & set(sys.modules)), diagnose.__all__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("[] ")
    for name in diagnose.__all__:
        assert getattr(diagnose, name) is not None
        assert name in dir(diagnose)
    with pytest.raises(AttributeError, match="analyse"):
        _ = diagnose.analyse


def test_the_package_shows_its_public_names_and_nothing_else():
    import diagnose.model.events
    import diagnose.trials.runs

    assert dir(diagnose) == sorted(diagnose.__all__)
    assert all(getattr(diagnose, name) is not None for name in diagnose.__all__)
    assert callable(diagnose.trace)
    assert callable(diagnose.prove)


def test_a_diagnosis_prints_and_writes_itself(tmp_path, capsys):
    HEALTHY.print()
    assert "no rule found avoidable time in the 10.0 ms step" in capsys.readouterr().out
    assert json.loads(HEALTHY.to_json())["verdict"] == "no-gpu"
    assert HEALTHY.to_html(tmp_path / "r.html") == tmp_path / "r.html"
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == HEALTHY.to_html()
    with pytest.raises(diagnose.OutputError, match="cannot be written"):
        HEALTHY.to_html(tmp_path / "nowhere" / "r.html")


class Frame(HTMLParser):
    def handle_starttag(self, tag, attrs):
        setattr(self, tag, dict(attrs))


def shown(diagnosis):
    frame = Frame()
    frame.feed(diagnosis._repr_html_())
    return frame


def test_a_notebook_shows_the_report_without_charts_and_where_they_are(tmp_path, monkeypatch):
    where = Where(file="cell 5", line=3, function="step")
    finding = Finding("host-sync", "It waits", 5e6, where=(where,) * 3, evidence=("x" * 200,) * 9)
    diagnosis = replace(HEALTHY, findings=(finding,) * 20, step_times_ns=(10_000_000,) * 1000)
    frame = shown(diagnosis)
    assert len(diagnosis._repr_html_()) < 400_000
    assert "<script" not in frame.iframe["srcdoc"]
    assert "cell 5:3 in step" in frame.iframe["srcdoc"].replace("<wbr>", "")
    assert not hasattr(frame, "a")
    monkeypatch.chdir(tmp_path)
    diagnosis.to_html("r.html")
    assert shown(diagnosis).a["href"] == "r.html"


@pytest.mark.parametrize("num", [1, 300])
def test_a_notebook_shows_the_text_of_a_report_that_is_too_large_for_it(tmp_path, monkeypatch, num):
    """What makes a page large stands in its tables and drawings; of very many trials a part is left out of the text."""
    where = Where(file="cell 5", line=3, function="step")
    waits = Finding("host-sync", "It waits", 5e6, where=(where,), evidence=('"' * 900,) * 9)
    trial = Trial("defer-sync", (10.0,), (5.0,), 2.0, (1.9, 2.1), "identical", note="<script> " * 150)
    large = replace(HEALTHY, dominant="host-sync", findings=(waits,) * 60, trials=(trial,) * num)
    assert len(html.render(large, charts=False)) > 400_000
    text = large._repr_html_()
    assert 1_000 < len(text.encode()) < 400_000
    assert "<iframe" not in text
    assert "<script" not in text
    assert "It waits" in text
    assert "host-sync" in text
    assert (" lines more" in text) is (num > 1)
    assert 'to_html("report.html")' in text
    monkeypatch.chdir(tmp_path)
    large.to_html("r.html")
    assert '<a href="r.html" target="_blank">r.html</a>' in large._repr_html_()


def test_a_bound_that_makes_no_sense_is_refused_at_the_call():
    with pytest.raises(diagnose.UsageError, match="steps"):
        diagnose.trace(steps=0)
    with pytest.raises(diagnose.UsageError, match="max-seconds"):
        diagnose.analyze(lambda: None, max_seconds=0)


def test_a_trace_that_cannot_be_read_raises_a_sentence(tmp_path):
    with pytest.raises(diagnose.InputError, match=r"missing\.json"):
        diagnose.analyze_trace(tmp_path / "missing.json")


def test_marking_a_step_outside_a_trace_does_nothing():
    diagnose.step()


@pytest.fixture
def train_step():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_step_function_is_diagnosed(train_step, capsys):
    diagnosis = diagnose.analyze(train_step, steps=3, skip=2)
    assert diagnosis.verdict == "no-gpu"
    assert 1 <= diagnosis.steps <= 3  # load can make one unlike the others, which is then left out
    assert any("addmm" in operator.name or "linear" in operator.name for operator in diagnosis.operators)
    assert capsys.readouterr().err == ""


def test_a_loop_is_diagnosed_and_its_capture_kept(train_step, tmp_path):
    with diagnose.trace(steps=3, skip=2, capture=tmp_path / "capture") as t:
        with pytest.raises(DiagnoseError, match="no diagnosis yet"):
            _ = t.diagnosis
        for _ in range(50):
            train_step()
            t.step()
            if t.done:
                break
    assert t.done
    assert 1 <= t.diagnosis.steps <= 3
    assert diagnose.analyze_trace(tmp_path / "capture").to_json() == t.diagnosis.to_json()


def test_what_was_recorded_from_python_is_named_by_its_code(train_step, tmp_path):
    diagnosis = diagnose.analyze(partial(train_step), steps=3, skip=2)
    line = train_step.__code__.co_firstlineno
    assert diagnosis.source.path.endswith(f"test_api.py:{line} in {train_step.__qualname__}")
    assert "diagnose analyze" not in html.render(diagnosis)
    with diagnose.trace(steps=3, skip=2) as t:
        while not t.done:
            train_step()
            t.step()
    assert re.search(r"test_api\.py:\d+$", t.diagnosis.source.path)
    kept = diagnose.analyze(train_step, steps=3, skip=2, capture=tmp_path / "kept")
    assert Path(kept.source.path).exists()


def test_a_loop_that_is_too_short_says_so():
    with pytest.raises(diagnose.CaptureError, match="No step was captured"), diagnose.trace() as t:
        t.step()


def test_the_loop_s_own_exception_goes_on():
    with pytest.raises(ZeroDivisionError), diagnose.trace():
        raise ZeroDivisionError
