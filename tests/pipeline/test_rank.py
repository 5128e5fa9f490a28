"""One rank: every rule speaks, what they found is ordered, and faults of one rule stay its own."""

from dataclasses import replace

import pytest

from diagnose import analyzers
from diagnose.analyzers import host_sync
from diagnose.errors import InputError
from diagnose.pipeline.run import analyze_captures


def broken(*_args):
    raise ZeroDivisionError("by chance")


def ids(findings):
    return [f.rule for f in findings]


def several(late):
    """Give the gap two causes: 100 µs of collection and 290 of Python."""
    late.gc(300, 400)
    return late


def test_findings_come_with_the_most_valuable_first(late):
    answer = several(late).diagnosis()
    assert ids(answer.findings) == ["python-stall", "gc-pause", "launch-bound"]
    assert [f.lost_ns for f in answer.findings] == [290_000, 100_000, 10_000]
    assert answer.dominant == "python-stall"
    assert [round(share, 6) for share in answer.idle_by_cause.values()] == [0.29, 0.1, 0.01]


@pytest.mark.parametrize(("collected", "named"), [(9, False), (10, True)])
def test_less_than_a_hundredth_of_the_step_is_not_named(late, collected, named):
    late.gc(300, 300 + collected)
    answer = late.diagnosis()
    assert ("gc-pause" in ids(answer.findings)) == named
    assert ("gc-pause" in {p.rule for p in answer.prescriptions}) == named
    assert answer.idle_by_cause["gc-pause"] == collected / 1000


def healthy(recording, num=3):
    """Return steps that keep the device busy, with the queue always ahead and pauses of 1 µs."""
    r = recording()
    for i in range(num):
        at = 1000 * i
        r.step(i, at, at + 1000)
        for k in range(10):
            start = at + 100 * k
            r.op("aten::linear", start, start + 100)
            r.kernel("ampere_bf16_s16816gemm", start, start + 99, launched=(start - 500, start - 495))
    return r


def test_a_healthy_recording_yields_nothing(recording):
    answer = healthy(recording).diagnosis()
    assert answer.verdict == "kernel-bound"
    assert answer.findings == ()
    assert answer.prescriptions == ()
    assert answer.dominant is None
    assert answer.headline.endswith("the GPU is busy 99.0 % of each 834 µs step")


def test_on_a_full_device_what_saves_most_answers_too(recording):
    """150 of 1000 µs idle behind a launch; half of 200 µs for products in float32, which the launch hides."""
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("ampere_sgemm_128x64", 0, 200, launched=(-20, -15))
    r.kernel("gemm", 350, 1000, launched=(340, 345))
    answer = r.diagnosis()
    assert answer.verdict == "kernel-bound"
    assert [(f.rule, f.lost_ns, f.worth_ns) for f in answer.findings] == [
        ("launch-bound", 150_000, pytest.approx(147_000)),
        ("full-precision-matmul", 100_000, 0),
    ]
    assert answer.dominant == "launch-bound"


def test_with_gaps_and_wasteful_kernels_the_one_that_saves_more_answers(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    for i in range(20):
        r.kernel("ampere_sgemm_128x64", 35 * i, 35 * (i + 1), launched=(-40 + i, -39 + i))
    r.kernel("gemm", 900, 1000, launched=(890, 895))
    answer = r.diagnosis()
    assert answer.verdict == "gaps"
    assert [(f.rule, f.lost_ns) for f in answer.findings] == [
        ("launch-bound", 200_000),
        ("full-precision-matmul", 350_000),
    ]
    assert answer.dominant == "launch-bound"


@pytest.mark.parametrize(("idle", "answers"), [(15, False), (23, True), (100, True)])
def test_on_a_full_device_waiting_of_a_fiftieth_of_the_step_answers(recording, idle, answers):
    """Of what a launch takes 3 µs are its own."""
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.kernel("gemm", 0, 500, launched=(-20, -15))
    r.kernel("gemm", 500 + idle, 1000, launched=(490 + idle, 495 + idle))
    answer = r.diagnosis()
    assert answer.verdict == "kernel-bound"
    assert ids(answer.findings) == ["launch-bound"]
    assert answer.dominant == ("launch-bound" if answers else None)


def test_a_copy_that_computation_would_hide_gives_way_to_the_stall_that_holds_the_host(recording):
    r = recording()
    for step in range(4):
        at = 10_000 * step
        r.step(step + 1, at, at + 10_000)
        r.op("aten::mm", at, at + 5000)
        r.copy("Memcpy DtoH (Device -> Pinned)", at + 100, at + 5000, launched=(at + 50, at + 60))
        r.kernel("gemm", at + 5000, at + 6500, launched=(at + 80, at + 90))
    answer = r.diagnosis()
    relief = {f.rule: f.relief_ns for f in answer.findings}
    assert relief["exposed-copy"] <= 100_000
    assert relief["python-stall"] >= 3_000_000
    assert answer.dominant == "python-stall"


@pytest.mark.parametrize(("took", "answers"), [(9_990, False), (10_010, True)])
def test_without_a_device_less_than_a_tenth_of_the_step_is_listed_but_no_answer(recording, took, answers):
    r = recording(devices=())
    r.step(1, 0, 100_000)
    r.op("aten::mm", 0, 100_000 - took)
    r.annotation("gloo:barrier", 100_000 - took, 100_000)
    answer = r.diagnosis()
    assert ids(answer.findings) == ["host-collective"]
    assert answer.dominant == ("host-collective" if answers else None)
    said = "The training thread waits for other ranks on the host (costs 10.0 % of the step)"
    assert answer.headline.startswith(said if answers else "Little found")


def test_prescriptions_come_with_the_largest_saving_first_and_once(late):
    answer = several(late).diagnosis()
    again, *others = answer.prescriptions  # of so few tasks the first advice is to record more, and no saving is stated
    assert again.id == "capture-complete-records"
    assert [sum(p.saves_ns) for p in others] == [0, 0]
    assert [p.id for p in others] == ["schedule-gc", "compile-graphs"]  # which Python runs was not recorded


def test_lines_come_from_the_attribution_window_and_timing_does_not(late, recording):
    slow = recording()
    slow.step(9, 0, 5000)
    slow.kernel("gemm", 0, 1000, launched=(-20, -15))
    slow.frame("train.py(40): augment", 1000, 4990)
    slow.op("aten::relu", 4990, 5000)
    slow.kernel("relu", 5000, 5000, launched=(4990, 4995))
    answer = late.diagnosis(attribution=slow)
    finding = answer.findings[0]
    assert (finding.rule, finding.lost_ns) == ("python-stall", 390_000)
    assert [(w.file, w.line) for w in finding.where] == [("train.py", 40)]
    assert answer.step_ns == 1_000_000


def test_sampled_lines_stand_before_those_of_the_attribution_window(late, recording):
    late.samples_every(10, 300, 690, ("data.py", 7, "decode"), running=1)
    slow = recording()
    slow.step(9, 0, 1000)
    slow.kernel("gemm", 0, 300, launched=(-20, -15))
    slow.frame("train.py(40): augment", 300, 690)
    slow.op("aten::relu", 690, 1000)
    slow.kernel("relu", 700, 1000, launched=(690, 695))
    where = late.diagnosis(attribution=slow).findings[0].where
    assert [(w.file, w.line) for w in where if w.file] == [("data.py", 7), ("train.py", 40)]


def test_a_rule_that_speaks_only_of_the_attribution_window_is_not_found(late, recording):
    slow = recording()
    slow.step(9, 0, 1000)
    slow.kernel("gemm", 0, 300, launched=(-20, -15))
    slow.gc(300, 690)
    slow.op("aten::relu", 690, 1000)
    slow.kernel("relu", 700, 1000, launched=(690, 695))
    assert "gc-pause" not in ids(late.diagnosis(attribution=slow).findings)


def test_few_device_tasks_lower_the_confidence(late, recording):
    answer = late.diagnosis()
    assert {f.confidence for f in answer.findings} == {"low"}
    assert any("only 2 device tasks" in note.text for note in answer.trust)
    many = healthy(recording)
    many.kernel("late", 4000, 4100, launched=(2990, 2995))
    assert not any("device tasks: too few" in note.text for note in many.diagnosis().trust)


def inflate(r, *, light, unprofiled):
    r.with_info(light_ms=(light,), unprofiled_ms=(unprofiled,))
    return r.diagnosis()


def test_what_recording_added_is_no_idle_time(late):
    """The step takes 15 µs less without the profiler, of 400 in which the device was idle."""
    answer = inflate(late, light=1.0, unprofiled=0.985)
    (stall,) = answer.findings  # 390 of the 400, the launch has the rest
    assert answer.step_ns == pytest.approx(985_000)
    assert stall.lost_ns == pytest.approx(390_000 * 385 / 400)
    assert answer.partition.compute == pytest.approx(600 / 985)
    assert answer.profiler_overhead == pytest.approx(15 / 985)


def test_a_cause_has_one_share_in_findings_bars_and_flame_graph(late):
    late.op("aten::mm", 200, 690)
    for i in range(10):
        late.op("aten::add", 310 + i, 311 + i)
    answer = inflate(late, light=1.0, unprofiled=0.985)
    (finding,) = answer.findings
    assert finding.lost_ns == pytest.approx(385_000)
    assert answer.idle_by_cause[finding.rule] * answer.step_ns == pytest.approx(finding.lost_ns)
    assert sum(answer.idle_by_cause.values()) == pytest.approx(answer.partition.idle)
    assert [f.time_ns for f in answer.picture.flames if f.cause == finding.rule] == [pytest.approx(finding.lost_ns)]


def test_a_shorter_recorded_step_is_made_longer(late):
    late.op("aten::mm", 200, 690)
    answer = inflate(late, light=1.0, unprofiled=1.1)
    assert answer.findings[0].lost_ns == pytest.approx(500_000)
    assert answer.profiler_overhead == pytest.approx(-100 / 1100)


def test_without_a_device_shares_are_of_a_step_that_is_not_recorded(recording):
    r = recording(devices=())
    for step in range(3):
        begin = 3000 * step
        r.step(step + 1, begin, begin + 3000)
        r.frame("train.py(40): rank", begin, begin + 1000)
        for i in range(500):  # of 4 µs, of which recording takes 2
            r.op("aten::add", begin + 1000 + 4 * i, begin + 1003 + 4 * i)
    answer = inflate(r, light=3.0, unprofiled=2.0)
    assert answer.step_ns == pytest.approx(2_000_000)
    (finding,) = (f for f in answer.findings if f.rule == "python-stall")
    assert finding.lost_ns == pytest.approx(1_000_000, rel=0.02)  # of it nothing was recorded
    assert any("Recorded steps took 3.00 ms, 50.0 % longer" in note.text for note in answer.trust)


def test_the_source_says_where_steps_came_from(late, recording):
    assert late.diagnosis().source.found_steps_by == "profiler marks"
    unmarked = recording()
    unmarked.kernel("gemm", 0, 100, launched=(-10, -5))
    assert unmarked.diagnosis().source.found_steps_by == "none"
    late.with_info(found_steps_by="optimizer", command=("train.py", "--lr", "1"), torch="2.13.0", unprofiled_ms=(1.5,))
    source = late.diagnosis().source
    assert (source.found_steps_by, source.command, source.torch) == ("optimizer", "train.py --lr 1", "2.13.0")
    assert source.unprofiled_step_ns == (1_500_000,)
    assert source.devices == ("NVIDIA A100",)


def test_the_slowest_rank_answers_with_every_ranks_numbers_beside_it(recording, late):
    fast = healthy(recording, num=1)
    slow = late  # a tail makes its step longer
    slow.kernel("gemm", 1000, 1500, launched=(900, 905))
    of_rank = [replace(c, trace=replace(c.trace, rank=n)) for n, c in enumerate((fast.capture(), slow.capture()))]
    answer = analyze_captures(of_rank)
    assert answer.step_ns == 1_500_000
    assert answer.dominant == "python-stall"
    assert [(r.verdict, r.step_ns) for r in answer.ranks] == [("kernel-bound", 501_000), ("cpu-bound", 1_500_000)]
    assert [r.dominant for r in answer.ranks] == [None, "python-stall"]
    assert answer.ranks[1].idle_by_cause == answer.idle_by_cause
    assert analyze_captures([slow.capture()]).ranks == ()


def test_no_capture_at_all_is_said_in_a_sentence():
    with pytest.raises(InputError, match="no trace was given"):
        analyze_captures([])


def test_without_a_device_only_the_hosts_rules_are_asked(recording, monkeypatch):
    monkeypatch.setattr(host_sync, "find", broken)
    assert host_sync not in analyzers.HOST_RULES
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    answer = r.diagnosis()
    assert (answer.verdict, answer.queue, answer.partition, dict(answer.idle_by_cause)) == ("no-gpu", None, None, {})
    assert answer.trust[0].text == "The file has no device task: only the host can be diagnosed."
    assert [op.name for op in answer.operators] == ["aten::mm"]


@pytest.mark.parametrize(("marked", "words"), [(True, "2 kernels a step: "), (False, "2 kernels in all: ")])
def test_evidence_of_a_recording_without_steps_counts_in_all(recording, marked, words):
    r = recording()
    if marked:
        r.step(1, 0, 1000)
    for i in range(2):
        r.kernel("cudnn::ops::nchwToNhwcKernel<float>", 200 * i, 200 * i + 200, launched=(-20 + 5 * i, -18 + 5 * i))
    for i in range(12):
        r.kernel("gemm", 400 + 50 * i, 450 + 50 * i, launched=(-5 + i / 4, -4.9 + i / 4))
    found = next(f for f in r.diagnosis().findings if f.rule == "layout-copy")
    assert found.evidence[0].startswith(words)
