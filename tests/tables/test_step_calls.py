"""The same call in each step."""

from diagnose.tables.step_calls import step_calls


def test_calls_are_numbered_within_a_step_by_name(recording):
    r = recording(devices=())
    for begin in (0, 1000):
        r.step(1 + begin // 1000, begin, begin + 1000)
        r.op("aten::add", begin + 100, begin + 200)
        r.op("aten::mul", begin + 110, begin + 190)  # within another one
        r.op("aten::add", begin + 300, begin + 400)
        r.annotation("Optimizer.step#SGD.step", begin + 500, begin + 900)
    found, t = step_calls(r.tables()), r.tables()
    starts = {call: (t.trace.events.start[rows] // 1000).tolist() for call, rows in found.rows.items()}
    assert starts == {
        ("aten::add", True, 0, 2): [100, 1100],
        ("aten::add", True, 1, 2): [300, 1300],
        ("Optimizer.step#SGD.step", True, 0, 1): [500, 1500],
    }
    assert [found.of[row] for row in found.rows["aten::add", True, 1, 2].tolist()] == [("aten::add", True, 1, 2)] * 2


def test_a_step_with_another_number_of_calls_is_left_out(recording):
    r = recording(devices=())
    for begin in (0, 1000, 2000):
        r.step(1 + begin // 1000, begin, begin + 1000)
        r.op("aten::add", begin + 100, begin + 200)
    r.op("aten::add", 2300, 2400)  # now and then a step logs
    t = r.tables()
    assert {call: len(rows) for call, rows in step_calls(t).rows.items()} == {("aten::add", True, 0, 1): 2}


def test_calls_are_those_of_the_hosts_steps_however_late_the_device_runs_them(recording):
    r = recording()
    for begin in (0, 100):
        r.step(1 + begin // 100, begin, begin + 100)
        r.op("aten::add", begin + 10, begin + 20)
    r.kernel("before", 0, 500, launched=(-20, -15))
    for begin in (0, 100):
        r.kernel("add", 500 + begin, 600 + begin, launched=(begin + 12, begin + 15))
    t = r.tables()
    assert t.steps.window[0] == 500_000
    assert {call: len(rows) for call, rows in step_calls(t).rows.items()} == {("aten::add", True, 0, 1): 2}


def test_without_operators_there_are_none(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    assert step_calls(r.tables()).rows == {}
    r.op("aten::add", 2000, 2100)  # after the step
    assert step_calls(r.tables()).rows == {}
