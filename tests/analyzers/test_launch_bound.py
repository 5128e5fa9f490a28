"""launch-bound: what the framework needs to prepare the next launch."""

import pytest

from diagnose.tables.dispatch import operator_work


def test_operators_before_the_late_launch(late):
    late.op("aten::layer_norm", 200, 690)
    assert late.booked() == {"launch-bound": 400_000}
    finding = late.find("launch-bound")
    assert (finding.lost_ns, finding.count, finding.confidence) == (400_000, 1, "high")
    # of the two launches one lies before the window, and its task started 15 µs after it
    assert finding.evidence[1] == ("2 launches a step; 100 % of the device tasks were launched onto an empty device.")
    assert finding.examples[0].host == "aten::relu > cudaLaunchKernel"
    assert finding.where[0].op == "aten::relu"


def test_short_python_between_operators_belongs_to_it(late):
    for at in range(200, 690, 49):
        late.op("aten::add", at, at + 9)
    assert late.booked() == {"launch-bound": 400_000}


@pytest.mark.parametrize(
    ("start", "booked"), [(704, {"launch-bound": 404_000}), (706, {"launch-bound": 405_000, "kernel-latency": 1_000})]
)
def test_ten_us_after_the_call_are_still_the_launchs(recording, start, booked):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.kernel("relu", start, 1000, launched=(690, 695))
    assert r.booked() == booked


def test_a_launch_in_flight_as_the_queue_empties(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.kernel("relu", 340, 1000, launched=(290, 335))
    assert r.booked() == {"launch-bound": 35_000, "kernel-latency": 5_000}


def test_what_is_queued_already_is_not_the_hosts(queued):
    r = queued()
    r.op("aten::mm", 0, 1000)
    assert r.booked() == {"unexplained-device": 400_000}


def test_graphs_are_prescribed(late):
    late.op("aten::layer_norm", 200, 690)
    (p,) = late.prescribe("launch-bound")
    assert p.id == "compile-graphs"
    assert p.title == "Compile the model and replay its launches as one CUDA graph"
    assert 'mode="reduce-overhead"' in p.after
    assert p.saves_ns == (pytest.approx(120_000), pytest.approx(360_000))
    assert p.predicted_step_ns == pytest.approx(760_000)


def tiny(recording, *, took, every=20.0, num=50):
    """Return a step without a device that calls operators of the given length."""
    r = recording(devices=())
    r.step(1, 0, every * num)
    for i in range(num):
        r.op("aten::add", i * every, i * every + took)
    return r


def test_without_a_device_tiny_operators_and_the_python_between_them(recording):
    r = tiny(recording, took=10)
    assert r.booked() == {"launch-bound": 1_000_000}
    finding = r.find("launch-bound")
    assert finding.evidence[1] == "50 operators a step; 100 % of them are over in less than 15 µs."
    (p,) = r.prescribe("launch-bound")
    assert p.id == "compile-model"
    assert "cuda" not in p.after.lower()
    assert (p.saves_ns, p.predicted_step_ns) == ((0, 0), None)  # of a CPU only a trial shows it


def test_a_compiled_call_costs_more_than_few_small_operators(recording):
    r = tiny(recording, took=10, num=16)
    assert r.booked() == {"launch-bound": 320_000}
    assert not r.prescribe("launch-bound")


def test_without_a_device_and_without_operators_there_are_no_calls(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.annotation("epoch", 10, 900)
    assert not len(operator_work(r.tables()).start)
    assert "launch-bound" not in r.booked()


@pytest.mark.parametrize(("took", "booked"), [(14.9, 1_000_000), (15, 0)])
def test_an_operator_of_15_us_did_work(recording, took, booked):
    assert tiny(recording, took=took).booked().get("launch-bound", 0) == booked


@pytest.mark.parametrize(("work", "booked"), [(700, 300_000), (701, 0)])
def test_without_a_device_it_must_be_three_tenths_of_the_step(recording, work, booked):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, work)
    at = float(work)
    while at < 1000:
        r.op("aten::add", at, min(at + 10, 1000))
        at += 10
    assert r.booked().get("launch-bound", 0) == booked


def test_without_a_device_one_healthy_operator_has_none(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    assert r.booked() == {"operators": 1_000_000}
    assert r.diagnosis().findings == ()


def test_launches_without_a_device_show_that_it_was_only_not_recorded(recording):
    r = tiny(recording, took=10)
    r.runtime("cudaLaunchKernel", 2, 8)
    assert r.booked() == {"operators": 500_000, "outside-operators": 500_000}


def loop(recording, *, took=40.0, num=120, frame="many.py(17): update", around=(), read=True):
    """Return a step without a device in which one function calls operators that take longer than a tiny one."""
    r = recording(devices=())
    r.step(1, 0, 100.0 * num)
    for name in (*around, frame):
        r.frame(name, 0, 50.0 * num)
    for i in range(num):
        r.op("aten::item" if read and i % 2 else "aten::sum", i * 50.0, i * 50.0 + took)
    r.op("aten::mm", 50.0 * num, 100.0 * num)
    return r


def test_a_loop_of_the_scripts_own_is_named_with_its_count(recording):
    r = loop(recording)
    assert r.booked() == {"launch-bound": 5_990_000, "operators": 6_000_000, "outside-operators": 10_000}
    finding = r.find("launch-bound")
    assert (finding.where[0].file, finding.where[0].line, finding.where[0].function) == ("many.py", 17, "update")
    assert finding.evidence[2] == (
        "update (many.py:17) calls 120 of the operators of a step itself (99 %), most of them aten::sum, aten::item; "
        "60 of them read one number each."
    )
    (p,) = r.prescribe("launch-bound")  # compiling the model would not reach the loop
    assert p.id == "vectorise-loop"
    # a read waits for nothing there: one transfer in the place of 60 would save nothing
    assert p.title == "Vectorise the loop at many.py:17 (120 operators a step): let few operators work on all rows"


def test_operators_that_work_are_no_loop_of_calls(recording):
    assert "launch-bound" not in loop(recording, took=210.0, num=120).booked()


def test_a_model_of_many_layers_is_compiled(recording):
    module = ("torch/nn/modules/module.py(1500): _call_impl",)
    assert "launch-bound" not in loop(recording, around=module, read=False).booked()
    many = loop(recording, around=module, num=240, read=False)
    assert [p.id for p in many.prescribe("launch-bound")] == ["vectorise-loop", "compile-model"]


def test_operators_of_a_layer_are_no_call_of_the_function_above_it(recording):
    r = recording(devices=())
    r.step(1, 0, 12_000)
    for name in ("train.py(3): main", "nn.Module: Linear_0", "torch/nn/functional.py(5): linear"):
        r.frame(name, 0, 12_000)
    for i in range(120):
        r.op("aten::linear", i * 100.0, i * 100.0 + 95)
    assert "launch-bound" not in r.booked()


def test_a_backward_pass_is_no_loop_of_the_function_that_starts_it(recording):
    r = recording(devices=())
    r.step(1, 0, 12_000)
    r.frame("train.py(3): main", 0, 12_000)
    r.frame("torch/autograd/__init__.py(243): backward", 0, 11_900)
    for i in range(119):
        r.op("autograd::engine::evaluate_function: MulBackward0" if i % 2 else "aten::mul", i * 100.0, i * 100.0 + 95)
    assert "launch-bound" not in r.booked()


def test_a_loop_of_torchs_own_optimizer_is_no_loop_of_its_caller(recording):
    own = loop(recording, around=("many.py(17): update",), frame="torch/optim/lbfgs.py(330): step")
    assert "launch-bound" not in own.booked()
    closure = loop(recording, around=("torch/optim/lbfgs.py(330): step",), frame="many.py(17): closure")
    assert closure.find("launch-bound").where[0].function == "closure"


def waiting(recording, *, every):
    """Return a step of 40 launches that the device waits for, with a wait behind each so many of them."""
    r = recording()
    r.step(1, 0, 4000)
    for n in range(40):
        at = 100 * n
        r.op("aten::mm", at, at + 90)
        r.kernel("gemm", at + 65, at + 70, launched=(at + 50, at + 60))
        if n % every == every - 1:
            r.runtime("cudaStreamSynchronize", at + 72, at + 73)
    return r


@pytest.mark.parametrize(
    ("every", "share", "changes"), [(10, 1.0, ["compile-graphs"]), (9, 0.0, []), (40, 1.0, ["compile-graphs"])]
)
def test_a_graph_holds_only_launches_without_a_wait_between_them(recording, every, share, changes):
    r = waiting(recording, every=every)
    finding = r.find("launch-bound")
    assert finding.facts["graphable"] == pytest.approx(share, abs=0.01)
    assert [p.id for p in r.prescribe("launch-bound")] == changes
    stated = "100.0 % of it lies in intervals of fewer than 10 launches between two blocking calls (4 a step)"
    assert any(line.startswith(stated) for line in finding.evidence) == (share == 0)


def test_graphs_save_in_the_intervals_without_a_wait_alone(recording):
    r = waiting(recording, every=40)
    for n in range(10):
        r.runtime("cudaStreamSynchronize", 100 * n + 72, 100 * n + 73)
    finding = r.find("launch-bound")
    (p,) = r.prescribe("launch-bound")
    assert finding.facts["graphable"] == pytest.approx(0.75, abs=0.02)
    assert p.saves_ns[1] == pytest.approx(0.9 * finding.lost_ns * finding.facts["graphable"])


def test_a_loop_of_the_scripts_own_is_named_beside_a_device_too(late):
    late.frame("many.py(17): update", 300, 690)
    for number in range(120):
        late.op("aten::sum", 310 + 3 * number, 312 + 3 * number)
    finding = late.find("launch-bound")
    assert (finding.where[0].file, finding.where[0].line) == ("many.py", 17)
    assert next(p.id for p in late.prescribe("launch-bound")) == "vectorise-loop"


def test_no_graph_holds_operators_whose_sizes_depend_on_data(late):
    for number in range(4):
        late.op("aten::nonzero", 310 + 30 * number, 330 + 30 * number)
    assert "compile-graphs" not in [p.id for p in late.prescribe("launch-bound")]
    late.rows = [row for row in late.rows if row.name != "aten::nonzero"]
    assert "compile-graphs" in [p.id for p in late.prescribe("launch-bound")]


def averaging(recording):
    """Return four steps of 4 ms in each of which `average` calls 120 operators in 1.9 ms, seen by samples alone."""
    r = recording()
    for step in range(4):
        begin = 4000 * step
        r.step(step, begin, begin + 4000)
        r.op("aten::linear", begin, begin + 100, sequence=step)
        r.kernel("gemm", begin + 20, begin + 2000, launched=(begin + 10, begin + 15))
        for number in range(120):
            at = begin + 2000 + 16 * number
            r.op("aten::mul_" if number % 2 else "aten::copy_", at, at + 15)
            r.kernel("mul", at + 12, at + 14, launched=(at + 5, at + 10))
        r.samples_every(100, begin + 50, begin + 1900, ("train.py", 7, "main"), 1)
        r.samples_every(100, begin + 1990, begin + 3900, ("train.py", 22, "average"), 1)
    return r


def test_a_loop_that_only_samples_show_is_named_and_no_model_compiled_for_it(recording):
    r = averaging(recording)
    finding = r.find("launch-bound")
    assert (finding.where[0].line, finding.where[0].function) == (22, "average")
    changes = r.prescribe("launch-bound")
    assert [p.id for p in changes] == ["vectorise-loop"]
    assert (
        changes[0].title
        == "Vectorise the loop at train.py:22 (119 operators a step): let few operators work on all rows"
    )


def test_its_operators_and_their_small_kernels_go_away(recording):
    (fix,) = (p for p in averaging(recording).diagnosis().prescriptions if p.id == "vectorise-loop")
    assert (fix.basis, fix.saves_ns[0] < 1_000_000, fix.saves_ns[1] > 1_500_000) == ("replay", True, True)


def test_a_method_of_a_module_that_is_no_call_of_it_belongs_to_its_caller(recording):
    r = loop(recording, frame="torch/nn/modules/module.py(2200): state_dict", around=("ema.py(9): update",))
    assert r.find("launch-bound").where[0].function == "update"


def graphed(recording, *, region_end=420):
    """Return steps of 1000 µs: a compiled function launches its graph after 300, and its kernel runs from 320 on."""
    r = recording()
    for i in range(4):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.op("Torch-Compiled Region: 0/0", at, at + region_end)
        r.op("CompiledFunction", at + 150, at + region_end)
        r.kernel("gemm", at + 320, at + 1000, launched=(at + 300, at + 315), call="cudaGraphLaunch")
    return r


def test_what_a_compiled_function_does_before_its_graph_is_named_with_what_helps(recording):
    answer = graphed(recording).diagnosis()
    (finding,) = (f for f in answer.findings if f.rule == "launch-bound")
    assert finding.title == "A compiled function works on the host before it launches its graph"
    assert "guards, arguments and the checks of CUDA graph trees, 300 µs for each of 1 a step." in finding.evidence[2]
    (fix,) = (p for p in answer.prescriptions if p.rule == "launch-bound")
    assert fix.id == "fewer-guards"
    assert "skip_guard_on_inbuilt_nn_modules_unsafe" in fix.after
    assert 0 <= fix.saves_ns[0] < fix.saves_ns[1] < 300_000


def test_a_graph_that_no_compiled_function_launches_has_no_guards(recording):
    answer = graphed(recording, region_end=200).diagnosis()
    assert {f.title for f in answer.findings if f.rule == "launch-bound"} == {"The GPU waits for kernel launches"}
    assert [p.id for p in answer.prescriptions if p.id == "fewer-guards"] == []
