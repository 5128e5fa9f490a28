"""host-compute: the launching thread is inside one operator that calls nothing."""

import pytest


def silent_for(recording, us, *, name="gemm"):
    """Return a step of 10 ms with an operator that is silent for so long between two kernels."""
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.op("aten::unique", 1000, 1000 + us)
    r.op("aten::mm", 1000 + us, 1020 + us)
    r.kernel(name, 1020 + us, 10_000, launched=(1005 + us, 1010 + us))
    return r


@pytest.mark.parametrize(("us", "rule"), [(999, "launch-bound"), (1000, "host-compute")])
def test_an_operator_that_is_silent_for_a_millisecond_computes(recording, us, rule):
    r = silent_for(recording, us)
    assert max(r.booked(), key=r.booked().get) == rule


def test_the_operator_that_filled_the_gap_is_named(recording):
    finding = silent_for(recording, 4000).find("host-compute")
    assert (finding.lost_ns, finding.count) == (4_000_000, 1)
    assert finding.evidence[1] == "Inside aten::unique (4.00 ms a step)."
    assert finding.examples[0].host == "aten::unique"


def test_what_the_operator_calls_breaks_the_silence(recording):
    r = silent_for(recording, 1500)
    r.runtime("cudaFuncGetAttributes", 1700, 1701)
    assert r.booked()["launch-bound"] > 1_400_000
    assert "host-compute" not in r.booked()


def test_many_operators_that_launch_nothing_compute(recording):
    r = silent_for(recording, 4000)
    for at in range(1000, 5000, 100):
        r.op("aten::sort", at, at + 60)
    assert r.booked()["host-compute"] == 4_000_000
    finding = r.find("host-compute")
    assert finding.facts["operator"] == "aten::unique"


def test_many_views_compute_nothing(recording):
    """Views fill 4000 µs of 6000 without a launch, and one cat takes 300: nothing was computed on the host."""
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    for at in range(1000, 7000, 150):
        r.op("aten::transpose", at, at + 100)
    r.op("aten::cat", 7000, 7300)
    r.op("aten::mm", 7300, 7320)
    r.kernel("gemm", 7320, 10_000, launched=(7305, 7310))
    assert "host-compute" not in r.booked()


def stalled(recording, name, *, calls, silent):
    """Return a step in which the first ones of an operator's calls are silent for 2 ms before their launch."""
    r = recording()
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 20)
    r.kernel("gemm", 10, 1000, launched=(5, 8))
    at = 1000
    for n in range(calls):
        us = 2000 if n < silent else 20
        r.op("aten::add", at, at + us + 40)
        r.op(name, at + 1, at + us + 20)
        inside = name.startswith("aten::mul")
        r.kernel("gemm", at + us + 40, at + us + 60, launched=(at + us + (15 if inside else 30), at + us + 35))
        at += us + 60
    return r


@pytest.mark.parametrize("silent", [1, 4])
def test_an_allocation_computes_nothing(recording, silent):
    booked = stalled(recording, "aten::empty_strided", calls=4, silent=silent).booked()
    assert "host-compute" not in booked
    assert booked["unexplained-host"] == pytest.approx(2_000_000 * silent, rel=0.03)


@pytest.mark.parametrize(("silent", "rule"), [(1, "unexplained-host"), (2, "host-compute")])
def test_an_operator_that_launches_is_not_silent_once_in_a_while(recording, silent, rule):
    booked = stalled(recording, "aten::mul", calls=4, silent=silent).booked()
    assert {"unexplained-host", "host-compute"} & set(booked) == {rule}


@pytest.mark.parametrize(("places", "rule"), [((1, 1, 1, 1), "host-compute"), ((0, 2, 1, 3), "unexplained-host")])
def test_one_call_that_is_silent_in_every_step_computes(recording, places, rule):
    """A plan for each new length, say: the first layer's call makes it, and the others find it."""
    r, at = recording(), 0
    for step, silent in enumerate(places):
        began = at
        for call in range(4):
            us = 2000 if call == silent else 20
            r.op("aten::attention", at, at + us + 20)
            r.kernel("attention", at + us + 15, at + us + 40, launched=(at + us + 10, at + us + 12))
            at += us + 60
        r.step(step, began, at)
    assert {"unexplained-host", "host-compute"} & set(r.booked()) == {rule}


@pytest.mark.parametrize("name", ["autograd::engine::evaluate_function: AddmmBackward0", "aten::empty"])
def test_what_prepares_no_kernel_is_no_first_use_of_one(recording, name):
    r = silent_for(recording, 4000, name="new")
    next(row for row in r.rows if row.name == "aten::unique").name = name
    assert "warm-up" not in r.booked()


def test_before_a_kernel_that_never_ran_it_is_first_use(recording):
    assert silent_for(recording, 4000, name="new").booked()["warm-up"] == 4_000_000


def test_an_operator_that_is_silent_in_every_step_is_no_first_use(recording):
    r = recording()
    for n in range(3):
        at = 10_000 * n
        r.step(n, at, at + 10_000)
        r.kernel("gemm", at, at + 1000, launched=(at - 20, at - 15))
        r.op("aten::unique", at + 1000, at + 5000)
        r.kernel("new", at + 5010, at + 10_000, launched=(at + 5001, at + 5005))
    booked = r.booked()
    assert booked["host-compute"] == 12_000_000
    assert "warm-up" not in booked


def test_where_launches_are_not_linked_silence_shows_nothing(recording):
    r = recording()
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    r.kernel("gemm", 0, 1000)
    r.kernel("gemm", 5000, 10_000)
    assert "host-compute" not in r.booked()


def test_the_operator_is_moved(recording):
    (p,) = silent_for(recording, 4000).prescribe("host-compute")
    assert p.id == "compute-on-device"
    assert p.title == "Move aten::unique to the device or into the loader's workers"
    assert p.saves_ns == (2_000_000, 4_000_000)


def test_an_operator_that_launches_runs_on_the_device_already(recording):
    r = silent_for(recording, 4000)
    assert r.find("host-compute").facts == {"operator": "aten::unique", "on_host": 1.0}
    (p,) = r.prescribe("host-compute")
    assert "Move aten::unique" in p.title
    r.kernel("tail", 5100, 5101, launched=(4998, 4999))  # still inside aten::unique
    assert r.find("host-compute").facts == {"operator": "", "on_host": 0.0}
    assert r.prescribe("host-compute") == []


@pytest.mark.parametrize("name", ["aten::copy_", "autograd::engine::evaluate_function: X", "[param|cuda]"])
def test_copies_and_annotations_compute_nothing(recording, name):
    r = silent_for(recording, 4000)
    next(row for row in r.rows if row.name == "aten::unique").name = name
    assert r.prescribe("host-compute") == []
