"""Questions in SQL about a recording."""

import json

import pytest

from diagnose.cli.main import cli
from diagnose.errors import UsageError
from diagnose.pipeline import query as module
from diagnose.pipeline.query import MAX_ROWS, query


@pytest.fixture
def capture(recording):
    r = recording()
    for step in range(3):
        r.annotation(f"ProfilerStep#{step}", 100 * step, 100 * step + 100)
        r.op("aten::mm", 100 * step + 10, 100 * step + 30)
        r.kernel("gemm", 100 * step + 40, 100 * step + 90, launched=(100 * step + 20, 100 * step + 25))
    return r.capture()


def test_events_have_their_steps_and_launches(capture):
    found = query(
        [capture],
        "SELECT k.step, k.name, k.end_ns - k.start_ns, c.kind FROM events k JOIN events c ON c.id = k.launched_by "
        "WHERE k.kind = 'kernel' ORDER BY k.start_ns",
    )
    assert found.rows == tuple((step, "gemm", 50_000, "runtime") for step in range(3))
    assert query([capture], "SELECT step, end_ns - start_ns FROM steps").rows[0] == (0, 100_000)
    assert query([capture], "SELECT name, shapes FROM events WHERE kind = 'op'").rows[0] == ("aten::mm", None)


def test_no_more_rows_than_can_be_read(capture):
    found = query([capture], "SELECT a.id FROM events a, events b, events c")
    assert (len(found.rows), found.is_cut) == (MAX_ROWS, True)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM events",
        "ATTACH 'file.db' AS other",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT * FROM nothing",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_only_reading_is_answered(capture, sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not sql:
        assert query([capture], sql).rows == ()
        return
    with pytest.raises(UsageError, match="only read, in events"):
        query([capture], sql)
    assert not list(tmp_path.iterdir())


def test_a_query_without_end_is_ended(capture, monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", iter(range(0, 10**6, 1000)).__next__)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    with pytest.raises(UsageError, match="interrupted"):
        query([capture], endless)


def test_the_command_prints_rows_and_json(tmp_path, capsys, recording):
    path = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0 * i, "dur": 5.0, "args": {}}
        for i in range(3)
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    sql = "SELECT name, COUNT(*) AS n FROM events GROUP BY name"
    cli.main(["analyze", "--query", sql, str(path)], standalone_mode=False)
    assert capsys.readouterr().out == "name\tn\naten::mm\t3\n"
    cli.main(["analyze", "--json", "--query", sql, str(path)], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"columns": ["name", "n"], "rows": [["aten::mm", 3]], "is_cut": False}


def test_options_of_a_diagnosis_are_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("[]")
    command = ["analyze", "--query", "SELECT 1", "--html", str(tmp_path / "r.html"), "--keep", "k.json", str(path)]
    with pytest.raises(UsageError, match="leave out --html and --keep"):
        cli.main(command, standalone_mode=False)
