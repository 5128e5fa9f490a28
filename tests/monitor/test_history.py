"""Runs of one name: from which on they are slower, and what was different."""

import json
from dataclasses import asdict
from pathlib import Path

from diagnose.monitor.history import history_json, history_text, shift, summary
from diagnose.monitor.run_folder import MonitoredRun, RunInfo, load_runs, names_in
from diagnose.monitor.step_rows import Row

MS = 1_000_000


def run(day, p50_ms, **info):
    rows = [Row(10 * i, 0.0, 10, p50_ms * MS, p50_ms * MS, p50_ms * MS, 2 * p50_ms * MS, 0.0) for i in (1, 2, 3)]
    return MonitoredRun(
        Path(f"run{day}"), RunInfo("net", f"2026-01-0{day}", pid=1, ended="finished", slow=0.2, **info), rows
    )


def test_the_run_from_which_on_steps_are_slower_and_what_differs_there():
    summaries = [summary(run(day, p50, commit=commit)) for day, p50, commit in
                 ((1, 10.0, "a"), (2, 10.2, "a"), (3, 9.9, "a"), (4, 12.0, "b"), (5, 12.1, "b"))]  # fmt: skip
    found = shift(summaries)
    assert (found.first, found.before_ns, found.after_ns) == (3, 10.0 * MS, 12.05 * MS)
    assert found.differences == ("commit: a before, b after",)
    assert "net is 20.5 % slower since 2026-01-04: 10.0 ms before, 12.1 ms after." in history_text("net", summaries)
    assert json.loads(history_json("net", summaries))["shift"]["since"] == "2026-01-04"


def test_runs_that_vary_as_much_on_either_side_keep_their_level():
    assert (
        shift([summary(run(day, p50)) for day, p50 in ((1, 10.0), (2, 11.0), (3, 10.0), (4, 11.0), (5, 10.9))]) is None
    )
    assert shift([summary(run(1, 10.0))]) is None


def test_a_damaged_description_and_a_run_without_rows_are_no_obstacle(tmp_path):
    for name, text in (("a", json.dumps(asdict(run(1, 10.0).info))), ("b", "{"), ("c", "[]")):
        folder = tmp_path / "net" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(text)
        (folder / "rows.jsonl").touch()
    (found,) = load_runs(tmp_path, "net")
    assert found.info.started_at == "2026-01-01"
    assert summary(found).p50_ns is None
    assert names_in(tmp_path) == ["net"]
    assert names_in(tmp_path / "none") == []
