"""HTA's own figures beside ours: every difference is explained by its definitions."""

import json
from pathlib import Path

import pytest

from diagnose.cli.job import JobRequest, analyze_and_answer
from diagnose.integrations import hta
from diagnose.integrations.hta import cross_check_hta
from diagnose.trace_reader import open_captures

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"
OURS = ["item_every_step-planted", "python_between_steps-planted"]
REAL = ["hta_alexnet_a100", "hta_mlp_gp100"]
WAITS = ("host wait", "kernel wait", "other wait")
TOLERANCES = dict.fromkeys(("queue", *WAITS), 0.02)
REAL_FULL = ["kineto_rn50_nw4_a", "hta_ddp_unbucketed_v100"]  # 5 and 12 s


def checked(path):
    (capture,) = open_captures([str(path)])
    return cross_check_hta(capture)


PATHS = [*(ROOT / "fixtures" / "traces" / name for name in OURS), *(SHARED / f"{name}.json.gz" for name in REAL)]
SLOW = [pytest.param(SHARED / f"{name}.json.gz", marks=pytest.mark.full) for name in REAL_FULL]


@pytest.mark.parametrize("path", [*PATHS, *SLOW], ids=lambda path: path.name)
def test_every_difference_is_a_matter_of_definition(path):
    pytest.importorskip("hta")
    if not path.exists():
        pytest.skip(f"{path.name} is among the shared traces, which are not here")
    rows = checked(path)
    assert [row.measure for row in rows] == [*("idle", "compute", "other", "overlap", "queue"), *WAITS]
    for row in rows:
        if row.theirs is not None:
            assert row.by_their_definition == pytest.approx(row.theirs, abs=TOLERANCES.get(row.measure, 0.002))
        assert row.explained
    assert all(row.theirs is not None for row in rows if row.measure != "overlap")


def test_a_difference_that_no_definition_explains_is_stated(monkeypatch):
    pytest.importorskip("hta")
    figures = {"idle": 0.5, "compute": 0.5, "other": 0.0, "queue": 1.0}
    monkeypatch.setattr(hta, "_figures_of", lambda _analysis: figures)
    rows = {row.measure: row for row in checked(PATHS[0])}
    assert not rows["idle"].explained
    assert rows["idle"].explanation.endswith("is left by HTA's own definition and not explained by it.")


def test_the_command_adds_the_figures_to_text_and_json(tmp_path, capsys):
    pytest.importorskip("hta")
    output = tmp_path / "d.json"
    analyze_and_answer(
        [str(PATHS[0])], JobRequest(cross_check="hta", output=str(output), quiet=True, no_cache=True, workers=1)
    )
    text = capsys.readouterr().out
    assert "Cross-check against Holistic Trace Analysis" in text
    assert [row["measure"] for row in json.loads(output.read_text())["cross_check"]][:2] == ["idle", "compute"]


def test_without_a_device_nothing_is_compared():
    pytest.importorskip("hta")
    (row,) = checked(ROOT / "fixtures" / "captures" / "loop_optimizer")
    assert row.explanation == "Not compared: the trace has no device, and HTA's figures are its."
