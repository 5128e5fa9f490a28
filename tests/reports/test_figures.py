"""Figures of plotly: the numbers of the report, one error where something is missing, and pages that load nothing."""

import json
import sys
from dataclasses import replace

import pytest

from diagnose.answer.screen import answer
from diagnose.cli.main import run
from diagnose.errors import InputError, UsageError
from diagnose.model.diagnosis import Trial
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.figures import NAMES, figure, figures
from tests.pipeline.test_gpu_traces import TRACES

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def loading():
    return analyze_paths([TRACES / "slow_dataset-planted"])


def test_those_that_there_is_data_for(loading):
    assert list(figures(loading)) == ["step", "queue", "waterfall", "kernels", "memory"]
    for name in set(NAMES) - set(figures(loading)):
        with pytest.raises(UsageError, match="no data for the figure"):
            figure(loading, name)
    with pytest.raises(UsageError, match="There is no figure 'steps'; figures are step, queue,"):
        figure(loading, "steps")


def test_the_step_has_the_numbers_of_the_first_screen(loading):
    found, a = figure(loading, "step"), answer(loading)
    *parts, possible = found.data
    assert sum(part.x[0] for part in parts) == pytest.approx(sum(share for _, share in a.parts) * a.now_ns / 1e6)
    assert [part.name for part in parts] == [name for name, _ in a.parts]
    assert possible.x[0] == a.after.after_ns / 1e6
    assert possible.x[0] + possible.error_x.array[0] == pytest.approx(a.after.high_ns / 1e6)


def test_the_queue_is_that_of_the_picture_with_a_part_for_each_gap(loading):
    found = figure(loading, "queue")
    depth = loading.picture.depth
    assert list(zip(found.data[0].x, found.data[0].y, strict=True)) == [(ns / 1e6, num) for ns, num in depth]
    assert [(each.x0, each.x1) for each in found.layout.shapes] == [
        (gap.start_ns / 1e6, gap.end_ns / 1e6) for gap in loading.picture.gaps
    ]


def test_the_waterfall_the_kernels_and_the_memory(loading):
    (bars,) = figure(loading, "waterfall").data
    assert list(bars.x) == [each.step_ns / 1e6 for each in loading.waterfall.forecasts]
    shown = {time for family in figure(loading, "kernels").data for time in family.x}
    assert max(shown) == loading.kernels[0].time_ns / 1e6
    allocated = next(line for line in figure(loading, "memory").data if line.name == "allocated")
    assert max(allocated.y) == pytest.approx(max(size for _, size, _ in loading.memory.timeline) / 1e9)


def test_ranks_add_up_to_their_steps():
    d = analyze_paths([TRACES / "ddp_one_bucket-planted"])
    parts = figure(d, "ranks").data
    for i, rank in enumerate(d.ranks):
        assert sum(part.y[i] for part in parts) == pytest.approx(rank.step_ns / 1e6, rel=1e-6)


def test_trials_show_their_intervals(loading):
    d = replace(loading, trials=(Trial("x", (3.0,), (2.0,), 1.5, (1.3, 1.8), "identical"),))
    (points,) = figure(d, "trials").data
    assert (points.x[0], points.error_x.array[0], points.error_x.arrayminus[0]) == pytest.approx((1.5, 0.3, 0.2))


def test_without_plotly_one_sentence_says_what_to_install(loading, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(InputError, match=r"pip install 'torch-diagnose\[plots\]'"):
        loading.figure("step")


def test_the_command_writes_pages_that_load_nothing(tmp_path, capsys):
    folder = tmp_path / "figures"
    words = ["analyze", "--quiet", "--export", f"figures={folder}", str(TRACES / "slow_dataset-planted")]
    assert run(words) == 0
    pages = sorted(folder.glob("*.html"))
    assert [page.stem for page in pages] == ["kernels", "memory", "queue", "step", "waterfall"]
    for page in pages:
        text = page.read_text("utf-8")
        assert 'src="plotly.min.js"' in text
        assert "https://cdn" not in text
    assert (folder / "plotly.min.js").stat().st_size > 1_000_000
    capsys.readouterr()
    assert run(words) == 6
    assert "is not empty; name another" in capsys.readouterr().err


def test_a_figure_is_json_for_trackers(loading):
    assert json.loads(loading.figure("step").to_json())["data"]
