"""The log folder for TensorBoard, read by the plugin's own loader and by TensorBoard's own reader of events."""

from pathlib import Path

import numpy as np
import pytest

from diagnose.cli.job import JobRequest, analyze_and_answer
from diagnose.errors import OutputError
from diagnose.integrations.tensorboard import step_scalars
from diagnose.model.events import Kind
from diagnose.model.intervals import total, union
from diagnose.pipeline.find import build_tables
from diagnose.trace_reader import open_captures

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"
TRACES = [
    ROOT / "fixtures" / "traces" / "item_every_step-planted",
    pytest.param(ROOT / "fixtures" / "traces" / "fp32_matmul-planted", marks=pytest.mark.full),
    pytest.param(SHARED / "kineto_rn50_nw4_a.json.gz", marks=pytest.mark.full),  # categories of 2020: 8 s
    SHARED / "hta_alexnet_a100.json.gz",
]


def into(folder):
    return JobRequest(exports=(f"tensorboard={folder}",), quiet=True, no_cache=True, workers=1)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_the_plugin_reads_our_steps_utilisation_and_kernels(tmp_path, path):
    loader = pytest.importorskip("torch_tb_profiler.profiler.data")
    if not path.exists():
        pytest.skip(f"{path.name} is among the shared traces, which are not here")
    analyze_and_answer([str(path)], into(tmp_path / "log"))
    (capture,) = open_captures([str(path)])
    t = build_tables(capture, capture.trace)
    file = tmp_path / "log" / f"rank{capture.trace.rank}.pt.trace.json.gz"
    read = loader.RunProfileData.parse(f"rank{capture.trace.rank}", None, str(file), str(tmp_path))

    assert read.steps_names == [str(max(n, 0)) for n in t.steps.number.tolist()]
    assert sum(cost.costs[-1] for cost in read.steps_costs) == pytest.approx(
        (t.steps.window_end - t.steps.window_start) / 1e3, rel=1e-5
    )  # the plugin begins the first step behind tasks whose launch is not in the file
    events, tasks = t.trace.events, t.tasks
    kernels = events.kind[tasks.row] == Kind.KERNEL
    busy = total(union((tasks.start[kernels], tasks.end[kernels])))
    window = t.steps.window_end - t.steps.window_start
    assert read.gpu_metrics_parser.gpu_utilization[t.device_id] == pytest.approx(busy / window, rel=1e-5)
    ours = {}
    for row, start, end in zip(tasks.row[kernels], tasks.start[kernels], tasks.end[kernels], strict=True):
        count, time = ours.get(t.name(int(row)), (0, 0.0))
        ours[t.name(int(row))] = (count + 1, time + (end - start) / 1e3)
    theirs = {name: (row["count"], row["sum"]) for name, row in read.kernel_stat.iterrows()}
    assert {name: count for name, (count, _) in theirs.items()} == {name: count for name, (count, _) in ours.items()}
    assert [theirs[name][1] for name in ours] == pytest.approx([time for _, time in ours.values()], rel=1e-6)


def test_scalars_of_each_step_are_read_by_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    analyze_and_answer([str(TRACES[0])], into(tmp_path / "log"))
    read = accumulator.EventAccumulator(str(tmp_path / "log"))
    read.Reload()
    (capture,) = open_captures([str(TRACES[0])])
    series = step_scalars(capture)
    assert set(read.Tags()["scalars"]) == set(series)
    for tag, values in series.items():
        kept = [(event.step, event.value) for event in read.Scalars(tag)]
        assert [step for step, _ in kept] == [step for step, _ in values]
        np.testing.assert_allclose([value for _, value in kept], [value for _, value in values], rtol=1e-6)
    idle = [value for _, value in series["diagnose/idle_ms"]]
    causes = [v for tag, v in series.items() if "by_cause" in tag]
    np.testing.assert_allclose(idle, np.sum([[value for _, value in one] for one in causes], axis=0), atol=1e-6)
    with pytest.raises(OutputError, match="is not empty"):
        analyze_and_answer([str(TRACES[0])], into(tmp_path / "log"))
