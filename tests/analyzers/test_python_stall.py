"""python-stall: long intervals between operators, where something shows that the thread was in the loop."""

import pytest


def test_python_before_the_late_launch(late):
    assert late.booked() == {"python-stall": 390_000, "launch-bound": 10_000}
    finding = late.find("python-stall")
    assert (finding.lost_ns, finding.count) == (390_000, 1)
    # 490 µs without an operator, 390 of them while the device idles
    assert finding.evidence[1] == "1 interval of over 0.2 ms without an operator, 490 µs a step."


@pytest.mark.parametrize(
    ("until", "booked"), [(490, {"launch-bound": 200_000, "python-stall": 200_000}), (491, {"launch-bound": 400_000})]
)
def test_in_a_short_step_an_interval_is_200_us_long(late, until, booked):
    late.op("aten::mm", 200, until)
    assert late.booked() == booked


@pytest.mark.parametrize(("step", "least"), [(1_000, 200), (4_000, 400), (50_000, 1_000)])
@pytest.mark.parametrize("short_by", [0, 1])
def test_an_interval_is_a_tenth_of_the_step_within_bounds(recording, step, least, short_by):
    r = recording()
    r.step(1, 0, step)
    r.kernel("gemm", 0, 100, launched=(-20, -15))
    r.op("aten::mm", 0, step - 400 - least + short_by)
    r.op("aten::relu", step - 400, step)
    r.kernel("relu", step - 390, step, launched=(step - 400, step - 395))
    assert r.booked().get("python-stall", 0) == (0 if short_by else least * 1000)


def test_the_frame_names_the_line(late):
    late.frame("train.py(40): augment", 210, 680)
    finding = late.find("python-stall")
    assert (finding.where[0].file, finding.where[0].line, finding.where[0].function) == ("train.py", 40, "augment")
    (p,) = late.prescribe("python-stall")
    assert p.id == "python-off-the-loop"
    assert p.title == "Make the Python work at train.py:40 cheaper"
    assert p.saves_ns == (97_500, 370_500)
    assert p.predicted_step_ns == 1_000_000 - (97_500 + 370_500) / 2


def test_frames_of_the_library_are_not_the_users(late):
    late.frame("train.py(40): augment", 210, 680)
    late.frame("/usr/lib/python3.11/site-packages/torchvision/transforms.py(9): resize", 220, 670)
    late.frame("json/decoder.py(337): decode", 230, 660)
    where = late.find("python-stall").where[0]
    assert (where.file, where.line) == ("train.py", 40)


def test_the_sampler_names_the_line_being_executed(late):
    script = "/project/train.py"
    late.lines[script, 2] = "return slow(x)"
    late.frame(f"{script}(1): augment", 210, 680)
    late.samples_every(10, 300, 690, (script, 2, "augment"), running=1)
    where = late.find("python-stall").where[0]
    assert (where.line, where.code) == (2, "return slow(x)")
    (p,) = late.prescribe("python-stall")
    assert (p.before, p.after) == ("", "")  # the title has it all


def test_without_marks_frames_or_samples_nothing_shows_that_it_was_python(recording):
    r = recording()
    r.kernel("gemm", 0, 300, launched=(-300, -295))
    r.kernel("relu", 700, 1000, launched=(690, 695))
    assert "python-stall" not in r.booked()


@pytest.mark.parametrize("show", ["frame", "samples"])
def test_without_marks_a_frame_or_samples_show_it(recording, show):
    r = recording()
    r.kernel("gemm", 0, 300, launched=(-300, -295))
    r.kernel("relu", 700, 1000, launched=(690, 695))
    r.op("aten::relu", 690, 1000)
    if show == "frame":
        r.frame("train.py(40): augment", 0, 1000)
    else:
        r.samples_every(10, 0, 1000, ("train.py", 41, "augment"), running=1)
    assert r.booked() == {"python-stall": 390_000, "launch-bound": 10_000}


def test_loading_is_left_out(late):
    late.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 300, 600)
    assert late.booked() == {"data-stall": 300_000, "launch-bound": 100_000}


def test_what_python_does_after_the_launch_did_not_delay_it(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 695)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.kernel("relu", 700, 1000, launched=(690, 695))
    assert r.booked() == {"launch-bound": 400_000}


def test_without_a_device_every_long_interval_is_lost(recording):
    r = recording(devices=())
    for i in range(2):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.frame("train.py(40): augment", at, at + 300)
        r.op("aten::mm", at + 300, at + 1000)
    assert r.booked() == {"operators": 1_400_000, "python-stall": 600_000}
    finding = r.find("python-stall")
    assert (finding.lost_ns, finding.count, finding.median_ns) == (300_000, 2, 300_000)
    assert finding.where[0].line == 40
    assert r.diagnosis().dominant == "python-stall"


def test_without_a_device_short_python_between_large_operators_is_not_worth_naming(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 400)
    r.op("aten::mm", 599, 1000)
    assert r.booked() == {"operators": 801_000, "outside-operators": 199_000}


@pytest.mark.parametrize(("ready", "booked"), [(None, 390_000), (0.38, 390_000), (0.40, 0)])
def test_a_thread_that_had_no_core_for_as_long_is_not_blamed(late, ready, booked):
    late.with_info(sampler={"ready_share": ready})
    assert late.booked().get("python-stall", 0) == booked
    assert sum(late.booked().values()) == 400_000


@pytest.mark.parametrize(("places", "booked"), [((1, 1, 1, 1), 1_160_000), ((1, 0, 1, 1), 870_000), ((0, 1, 2, 3), 0)])
def test_without_a_core_what_comes_back_at_its_place_is_the_programs(recording, places, booked):
    r = recording(devices=())
    r.with_info(sampler={"ready_share": 0.7})
    for step, place in enumerate(places):
        begin = 1000 * step
        r.step(step + 1, begin, begin + 1000)
        for i in range(4):  # of 150 µs each; 290 µs before one of them, 10 before the others
            at = begin + 160 * i + 20 + 280 * (i >= place)
            r.op("aten::mm", at, at + 150)
        r.op("aten::relu", begin + 940, begin + 1000)
    r.sample(10, ("train.py", 40, "main"))
    assert r.booked().get("python-stall", 0) == booked


@pytest.mark.parametrize(("times", "confidence"), [(4, "medium"), (3, "low"), (2, "low")])
def test_an_interval_between_operators_of_the_launching_thread_is_in_its_loop(recording, times, confidence):
    r = recording()
    for i in range(times):
        r.kernel("gemm", 1000 * i + 610, 1000 * i + 700, launched=(1000 * i + 600, 1000 * i + 605))
        r.op("aten::mm", 1000 * i + 600, 1000 * i + 610)
    assert r.booked()["python-stall"] == 900_000 * (times - 1)
    assert "unexplained-host" not in r.booked()
    assert r.find("python-stall").confidence == confidence


@pytest.mark.parametrize(("before", "after"), [("main", "other"), ("other", "main")])
def test_an_interval_that_no_launching_thread_surrounds_is_unexplained(recording, before, after):
    r = recording()
    r.op("aten::mm", 0, 300, thread=before)
    r.kernel("gemm", 310, 400, launched=(290, 295), thread=before)
    r.op("aten::mm", 1300, 1400, thread=after)
    r.kernel("gemm", 1320, 1400, launched=(1310, 1315), thread=after)
    booked = r.booked()
    assert booked["unexplained-host"] == 900_000
    assert "python-stall" not in booked


def sliced(recording, num, us, *, name="aten::slice"):
    """Return a step with a wait and 5 ms of Python behind it that calls ``num`` operators of ``us`` µs."""
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.runtime("cudaStreamSynchronize", 100, 1010)
    for n in range(num):
        r.op(name, 1010 + n * 5000 // num, 1010 + n * 5000 // num + us)
    r.op("aten::mm", 6010, 6030)
    r.kernel("relu", 6040, 10_000, launched=(6015, 6020))
    return r


def test_operators_that_launch_nothing_do_not_end_an_interval_of_python(recording):
    r = sliced(recording, 50, 14)
    assert r.booked()["python-stall"] == 5_000_000
    finding = r.find("python-stall")
    assert finding.confidence == "medium"
    assert finding.evidence[2] == "Operators that launch nothing cover 14.0 % of them: aten::slice (50×)."


def test_where_such_operators_take_most_of_the_time_they_compute(recording):
    booked = sliced(recording, 50, 80, name="aten::sort").booked()
    assert booked["host-compute"] == 5_000_000
    assert "python-stall" not in booked


def test_an_operator_that_launches_ends_the_interval(recording):
    r = sliced(recording, 50, 14)
    for at in range(1010, 6010, 500):
        r.runtime("cudaEventRecord", at + 2, at + 3)
    assert max(r.booked(), key=r.booked().get) == "host-sync"


def hidden(recording):
    """Four steps of 1000 µs: 440 of Python under a kernel, then 300 of loading that the device waits for."""
    r = recording()
    for i in range(4):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 300)
        r.op("aten::mm", at + 310, at + 360)
        r.kernel("gemm", at + 330, at + 830, launched=(at + 320, at + 325))
        r.frame("train.py(40): log", at + 370, at + 790)
        r.op("aten::detach", at + 800, at + 990)
    return r


def test_python_under_a_busy_device_is_seen_and_no_answer_as_recording_makes_it_longer(recording):
    r = hidden(recording)
    finding = r.find("python-stall")
    assert (finding.lost_ns, finding.count) == (0, 4)
    assert "440 µs of the step (44.0 %), while the device was still busy" in finding.evidence[0]
    assert "python-stall" not in {f.rule for f in r.diagnosis().findings}
    assert (finding.where[0].file, finding.where[0].line) == ("train.py", 40)


@pytest.mark.parametrize(
    ("num_bytes", "title"), [(4096, "Do the Python work at train.py:9 on the device"), (4, "train.py:9 cheaper")]
)
def test_python_after_a_copy_to_the_host_works_on_the_steps_own_results(recording, num_bytes, title):
    # 400 of each 1000 µs run at train.py:9, after a copy to the host: of data, or of a number that is printed.
    r = recording()
    for i in range(4):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.op("aten::mm", at, at + 60)
        r.kernel("gemm", at + 20, at + 500, launched=(at + 10, at + 15))
        r.copy("Memcpy DtoH (Device -> Pageable)", at + 500, at + 505, size=num_bytes, launched=(at + 30, at + 508))
        r.frame("train.py(9): rank", at + 510, at + 990)
    (p,) = (p for p in r.diagnosis().prescriptions if p.rule == "python-stall")
    assert title in p.title


def test_inference_has_no_training_thread(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    for i in range(10):
        r.op("aten::mm", 60 * i, 60 * i + 50)
    r.frame("infer.py(9): load", 600, 990)
    (finding,) = (f for f in r.diagnosis().findings if f.rule == "python-stall")
    assert "of the thread that runs the model in 1 step: " in finding.evidence[0]


def test_what_happens_in_one_of_many_steps_is_no_cost_of_each(recording):
    r = recording()
    for i in range(6):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        r.op("aten::mm", at, at + 60)
        r.kernel("gemm", at + 20, at + (400 if i == 2 else 1015), launched=(at + 10, at + 15))
    r.frame("train.py(9): log", 2070, 2990)
    (finding,) = (f for f in r.diagnosis().findings if f.rule == "python-stall")
    assert finding.evidence[0].startswith("1 idle gap in 1 of 6 steps: ")
    assert " of the mean step (" in finding.evidence[0]


@pytest.mark.parametrize(("python", "backward", "in_pass"), [(400, 900, 1.0), (900, 400, 0.0)])
def test_python_between_forward_and_backward_is_needed_at_once(recording, python, backward, in_pass):
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    r = recording(devices=())
    for step in range(2):
        begin = 2000 * step
        r.step(step + 1, begin, begin + 2000)
        r.op("aten::linear", begin, begin + 400, sequence=step)
        r.frame("train.py(40): weights", begin + python, begin + python + 500)
        r.op(node, begin + backward, begin + backward + 500, sequence=step)
        r.op("aten::mm", begin + backward + 10, begin + backward + 490, sequence=step)
        r.op("aten::detach", begin + 900, begin + 904, sequence=step + 1)  # as the next one with a gradient
        r.op("aten::add_", begin + 1400, begin + 2000)
    finding = r.find("python-stall")
    assert finding.where[0].line == 40
    assert finding.facts["in_pass"] == pytest.approx(in_pass)
    (p,) = r.prescribe("python-stall")
    assert p.title.startswith("Vectorise" if in_pass else "Make")


def test_a_line_that_samples_show_has_the_caller_that_frames_show(late, recording):
    named = recording()
    named.rows = list(late.rows)
    for name, start in (("nn.Module: Net_0", 205), ("model.py(40): forward", 210)):
        named.frame(name, start, 680)
    late.samples_every(10, 300, 690, ("model.py", 44, "forward"), running=1)
    answer = late.diagnosis(named)
    finding = next(f for f in answer.findings if f.rule == "python-stall")
    assert (finding.where[0].line, finding.where[0].caller) == (44, "module")
    titles = [p.title for p in answer.prescriptions]
    assert any(title.startswith("Vectorise the Python work at model.py:44") for title in titles)


EVALUATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def within_backward(recording, *operators):
    """Return steps without a device of 1000 µs: the first operators, 800 µs of nothing, the last one."""
    r = recording(devices=())
    for i in range(2):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.annotation("## backward ##", at, at + 1000)
        for j, name in enumerate(operators[:-1]):
            r.op(name, at + 25 * j, at + 25 * j + 20)
        r.op("aten::fill_", at + 5, at + 10)
        r.op(operators[-1], at + 850, at + 1000)
    return r.booked()


@pytest.mark.parametrize("before", [("aten::ones_like",), ("aten::ones_like", EVALUATES)])
def test_a_thread_within_backward_waits_for_autograds_other_threads(recording, before):
    assert "python-stall" not in within_backward(recording, *before, EVALUATES)


@pytest.mark.parametrize(
    "operators", [("aten::mse_loss", EVALUATES), ("aten::ones_like", "aten::mm"), (EVALUATES, EVALUATES)]
)
def test_python_before_backward_is_python(recording, operators):
    assert within_backward(recording, *operators)["python-stall"] > 1_600_000


def test_between_two_passes_a_thread_of_autograds_own_waits_for_the_step(recording):
    r = recording()
    for i in range(3):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.op("aten::ones_like", at, at + 10)
        r.op(EVALUATES, at + 10, at + 100, "autograd")
        r.kernel("gemm", at + 50, at + 110, launched=(at + 40, at + 45), thread="autograd")
    assert r.booked()["python-stall"] > 1_500_000
