"""kept-graph: a backward pass that goes back through earlier steps. Times in µs."""

FUNCTION = "autograd::engine::evaluate_function: "


def carried(recording, *, kept=True, devices=()):
    """Return three steps of 1000 µs: four products forward, and back again those of this step and of the one before."""
    r = recording(devices=devices) if devices == () else recording()
    for step in range(3):
        at, number = 1000 * step, 100 + 4 * step
        r.step(step, at, at + 1000)
        for i in range(4):
            r.op("aten::mm", at + 20 * i, at + 20 * i + 15, sequence=number + i)
        for n, i in enumerate(reversed(range(-4 if kept else 0, 4))):
            begin = at + 100 + 100 * n
            r.op(f"{FUNCTION}MmBackward0", begin, begin + 90, "autograd", sequence=number + i)
            if devices != ():
                r.kernel("gemm", begin + 5, begin + 95, launched=(begin + 2, begin + 4), thread="autograd")
        r.op(f"{FUNCTION}torch::autograd::AccumulateGrad", at + 950, at + 960, "autograd", sequence=1)
    return r


def test_numbers_below_that_of_the_first_operator_are_of_earlier_steps(recording):
    """Four of eight functions are of the step before: four kernels of 90 µs, and 5 µs of idle before each."""
    r = carried(recording, devices="one")
    finding = r.find("kept-graph")
    assert (len(finding.tasks), finding.lost_ns) == (12, 380_000)
    assert finding.evidence[1] == "4 of 8 functions of the backward pass are of a forward that ran in earlier steps."
    (change,) = r.prescribe("kept-graph")
    assert change.id == "detach-state"
    assert "state.detach()" in change.after


def test_a_backward_pass_of_its_own_step_is_not(recording):
    assert carried(recording, kept=False, devices="one").find("kept-graph") is None


def test_once_is_not_each_step(recording):
    r = carried(recording, kept=False, devices="one")
    r.op(f"{FUNCTION}MmBackward0", 700, 900, "autograd", sequence=99)
    assert r.find("kept-graph") is None


def test_where_two_threads_count_by_themselves_nothing_is_known(recording):
    r = carried(recording, devices="one")
    r.op("aten::mm", 85, 95, "replica", sequence=3)
    assert r.find("kept-graph") is None


def test_without_a_device_it_is_the_time_of_the_host(recording):
    r = recording(devices=())
    for step in range(3):
        at, number = 1000 * step, 100 + 4 * step
        r.step(step, at, at + 1000)
        r.op("aten::mm", at, at + 100, sequence=number)
        r.op(f"{FUNCTION}MmBackward0", at + 100, at + 500, sequence=number)
        r.op(f"{FUNCTION}MmBackward0", at + 500, at + 900, sequence=number - 4)
    assert r.find("kept-graph").lost_ns == 400_000
