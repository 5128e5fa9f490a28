"""Runs of one name."""

import json
from dataclasses import asdict
from pathlib import Path

from diagnose.monitor.history import history_json, history_text, summary
from diagnose.monitor.run_folder import MonitoredRun, RunInfo, load_runs, names_in
from diagnose.monitor.step_rows import Row

MS = 1_000_000


def run(day, p50_ms, **info):
    rows = [Row(10 * i, 0.0, 10, p50_ms * MS, p50_ms * MS, p50_ms * MS, 2 * p50_ms * MS, 0.0) for i in (1, 2, 3)]
    return MonitoredRun(
        Path(f"run{day}"), RunInfo("net", f"2026-01-0{day}", pid=1, ended="finished", slow=0.2, **info), rows
    )


def test_each_run_is_a_line():
    summaries = [summary(run(day, p50, commit=commit)) for day, p50, commit in ((1, 10.0, "a"), (2, 12.0, "b"))]
    lines = history_text(summaries)
    assert [line.split()[:4] for line in lines[1:]] == [
        ["2026-01-01", "30", "10.0", "ms"],
        ["2026-01-02", "30", "12.0", "ms"],
    ]
    assert [each["commit"] for each in json.loads(history_json("net", summaries))["runs"]] == ["a", "b"]


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
