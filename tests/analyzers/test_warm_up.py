"""warm-up: calls that a program makes once."""

import pytest


def with_call(r, name, start=300, end=690):
    r.runtime(name, start, end)
    return r


@pytest.mark.parametrize("name", ["cuModuleLoadData", "hipModuleLoad", "cuLibraryLoadData", "cudaStreamCreate"])
def test_code_loading_in_the_only_step(late, name):
    with_call(late, name)
    assert late.booked() == {"warm-up": 390_000, "launch-bound": 10_000}
    finding = late.find("warm-up")
    assert finding.lost_ns == 390_000
    assert f"{name}: 1 call, 390 µs of the idle time." in finding.evidence


def test_capturing_again_is_all_that_is_prescribed(late):
    (again,) = with_call(late, "cuModuleLoadData").prescribe("warm-up")
    assert again.id == "capture-steady-steps"
    assert again.saves_ns == (0.0, 0.0)
    assert again.predicted_step_ns is None
    assert late.diagnosis().dominant == "warm-up"


@pytest.mark.parametrize(("took", "booked"), [(1000, 0), (1001, 1_001_000)])
def test_a_launch_of_over_a_millisecond_loaded_code(recording, took, booked):
    r = recording()
    r.step(1, 0, 3000)
    r.kernel("gemm", 0, 500, launched=(-20, -15))
    r.op("aten::relu", 500, 3000)
    r.kernel("relu", 500 + took, 3000, launched=(500, 500 + took))
    assert r.booked().get("warm-up", 0) == booked
    assert sum(r.booked().values()) == took * 1000


def test_a_slow_copy_call_loaded_nothing(recording):
    r = recording()
    r.step(1, 0, 3000)
    r.kernel("gemm", 0, 500, launched=(-20, -15))
    r.copy("Memcpy HtoD (Pageable -> Device)", 2500, 3000, launched=(500, 2600))
    assert r.booked() == {"exposed-copy": 2_000_000}


def four_steps(recording, name, in_steps):
    """Return four steps of 1000 µs, each idle from 300 to 700; the call fills that gap in some of them."""
    r = recording()
    for i in range(4):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.kernel("gemm", at, at + 300, launched=(at - 20, at - 15))
        r.op("aten::relu", at + 690, at + 970)
        r.kernel("relu", at + 700, at + 1000, launched=(at + 690, at + 695))
        if i in in_steps:
            r.runtime(name, at + 300, at + 690)
        else:
            r.op("aten::mm", at + 300, at + 690)
    return r


@pytest.mark.parametrize(
    ("in_steps", "rule"), [({2}, "warm-up"), ({1, 3}, "recompilation"), ({0, 1, 2}, "recompilation")]
)
def test_what_shows_in_half_of_the_steps_is_no_warm_up(recording, in_steps, rule):
    booked = four_steps(recording, "cuModuleLoadData", in_steps).booked()
    assert booked == {rule: 390_000 * len(in_steps), "launch-bound": 1_600_000 - 390_000 * len(in_steps)}


def test_calls_before_and_after_the_steps_do_not_make_it_recur(recording):
    r = four_steps(recording, "cuModuleLoadData", {2})
    for at in (-900, -500, 4000, 5000):
        r.runtime("cuModuleLoadData", at, at + 390)
    assert r.booked()["warm-up"] == 390_000


@pytest.mark.parametrize(("in_steps", "rule"), [({2}, "warm-up"), ({1, 3}, "allocator-stall")])
def test_the_same_for_allocations(recording, in_steps, rule):
    assert four_steps(recording, "cudaMalloc", in_steps).booked()[rule] == 390_000 * len(in_steps)


@pytest.mark.parametrize(("loading", "rule"), [(99, "allocator-stall"), (101, "warm-up")])
def test_in_one_step_allocations_are_cold_only_beside_code_loads(recording, loading, rule):
    r = recording()
    r.step(1, 0, 3000)
    r.kernel("gemm", 0, 500, launched=(-20, -15))
    r.runtime("cudaMalloc", 500, 1500)  # a tenth of it is 100
    r.runtime("cuModuleLoadData", 1500, 1500 + loading)
    r.op("aten::relu", 1500 + loading, 3000)
    r.kernel("relu", 2000, 3000, launched=(1990, 1995))
    assert r.booked()[rule] >= 1_000_000


@pytest.mark.parametrize(("took", "booked"), [(50, 0), (51, 51_000)])
def test_a_short_setup_call_found_nothing_to_load(late, took, booked):
    late.runtime("cudaFuncGetAttributes", 300, 300 + took)
    assert late.booked().get("warm-up", 0) == booked


def test_compilation_in_one_step_is_warm_up(late):
    late.frame("torch/_dynamo/convert_frame.py(700): _compile", 310, 680)
    assert late.booked()["warm-up"] == 370_000


def test_calls_while_the_device_is_busy_cost_nothing(late):
    late.runtime("cuModuleLoadData", 10, 290)
    assert "warm-up" not in late.booked()


def test_capturing_a_graph_is_warm_up_from_the_enclosing_operator_to_the_first_launch(recording):
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.op("CompiledFunction", 1000, 9000)
    for start in range(1000, 5000, 500):  # recorded into the graph, so nothing runs
        r.op("aten::mm", start, start + 100)
    r.runtime("cudaGraphInstantiateWithFlags", 5000, 5040)
    node = r.kernel("gemm", 6000, 10_000)
    r.runtime("cudaGraphLaunch", 5980, 5990, launches=node)
    assert r.booked() == {"warm-up": 4_980_000, "launch-bound": 20_000}


def capturing(r, *, ends=True):
    """Return a recording whose gap of 400 µs is a graph's capture with one launch, which leaves no task."""
    r.runtime("hipStreamBeginCapture", 300, 305)
    r.op("aten::mm", 310, 500)
    r.runtime("hipLaunchKernel", 320, 330)
    if ends:
        r.runtime("hipStreamEndCapture", 680, 690)
    return r


def test_launches_into_a_graph_are_part_of_its_capture(late):
    assert capturing(late).booked() == {"warm-up": 390_000, "launch-bound": 10_000}
    notes = [note.text for note in late.diagnosis().trust if note.rule in ("warm-up", "lost-records")]
    assert notes == [
        "The recording holds the capture of a graph: 1 launch went into it and did not run, so what the device did "
        "meanwhile is not part of a steady step."
    ]


def test_a_capture_that_the_file_does_not_end_lasts_to_its_end(late):
    assert capturing(late, ends=False).booked() == {"warm-up": 400_000}


def test_another_thread_s_launches_run_during_a_capture(late):
    capturing(late)
    late.runtime("cudaLaunchKernel", 400, 410, thread=2)
    assert [note.rule for note in late.diagnosis().trust if note.rule] == ["warm-up", "lost-records"]


@pytest.mark.parametrize(("load_us", "title"), [(300, "cold start: capture again"), (100, "One-off work is in")])
def test_a_recording_is_cold_where_one_off_work_is_most_of_its_idle_time(recording, load_us, title):
    # The device idles for 700 of 1000 µs, and code is loaded in a part of that.
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.runtime("cuModuleLoadData", 310, 310 + 2 * load_us)
    r.kernel("relu", 1000, 1010, launched=(980, 985))
    assert title in r.find("warm-up").title


@pytest.mark.parametrize("call", ["cudaFuncSetAttribute", "cudaEventRecord", "cudaStreamIsCapturing"])
def test_a_call_that_loads_nothing_is_no_first_use_however_long_it_takes(recording, call):
    """The kernel behind it ran before, and such a call takes microseconds: for 2000 µs the thread had no core."""
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.runtime(call, 1000, 3000)
    r.kernel("gemm", 3010, 10_000, launched=(3000, 3005))
    booked = r.booked()
    assert "warm-up" not in booked
    assert booked["unexplained-host"] == 2_000_000


def test_setting_up_a_kernel_that_never_ran_is_first_use(recording):
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.runtime("cudaFuncSetAttribute", 1000, 3000)
    r.kernel("conv", 3010, 10_000, launched=(3000, 3005))
    assert r.booked()["warm-up"] >= 2_000_000
