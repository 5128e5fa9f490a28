"""The answer in a sentence and in three lines: every clause follows from the number that it states."""

import pytest
from diagnose.pipeline.headline import HeadlineInputs, headline, summary

from diagnose.model.diagnosis import Finding, Partition, Prescription, Queue, Where

SYNC = Finding("host-sync", "The host waits", 400_000.0, where=(Where("src/train.py", 12),))
STEP = 1_000_000.0


def queue(idle, depth=50.0):
    return Queue(1 - idle, idle, 3, 9, 0.25, 10, 0.2, 1000, depth)


def answer(verdict="gaps", idle=0.4, findings=(SYNC,), **fields):
    return HeadlineInputs(verdict, None if idle is None else queue(idle), STEP, findings=findings, **fields)


@pytest.mark.parametrize(
    ("found", "idle", "start"),
    [
        ("kernel-bound", 0.1, "The GPU is busy 90.0 % of each 1.00 ms step"),
        ("gaps", 0.4, "The GPU is idle 40.0 % of each 1.00 ms step, in gaps of a queue otherwise 50 launches deep"),
        ("cpu-bound", 0.9997, "The GPU is idle >99.9 % of each 1.00 ms step because the host does not keep its queue"),
        ("no-gpu", None, "CPU-only recording: 1.00 ms per step"),
    ],
)
@pytest.mark.parametrize("largest", [SYNC, None])
def test_the_headline_is_one_sentence(found, idle, start, largest):
    said = headline(answer(found, idle), largest)
    end = (
        "; the largest cost: the host waits (40.0 % of the step)." if largest else ", and nothing stands out as waste."
    )
    assert said.startswith(start)
    assert said.endswith(end)


@pytest.mark.parametrize(
    ("idle", "start", "first"),
    [
        (None, "CPU-only recording: 1.00 ms in all;", "CPU-only recording: 1.00 ms in all"),
        (0.4, "The GPU is idle 40.0 % of the 1.00 ms recording, in", "GPU idle 40.0 % of the 1.00 ms recording; queue"),
    ],
)
def test_a_part_of_a_step_is_not_its_length(idle, start, first):
    inputs = answer(idle=idle, has_steps=False)
    assert headline(inputs, SYNC).startswith(start)
    assert summary(inputs, SYNC)[0].startswith(first)


@pytest.mark.parametrize(
    ("title", "said"), [("GPU idles", "GPU idles"), ("AdamW loops", "AdamW loops"), ("The x", "the x")]
)
def test_names_keep_their_capitals(title, said):
    finding = Finding("host-sync", title, 1e5)
    assert f"cost: {said} (" in headline(answer(findings=(finding,)), finding)


def found(rule, lost, relief=None):
    return Finding(rule, "Title", lost, relief_ns=relief)


@pytest.mark.parametrize(
    ("largest", "others", "fields", "words"),
    [
        (found("host-sync", 4e5), [found("data-stall", 1e5)], {}, "the largest cost"),
        (found("host-sync", 1e5), [found("full-precision-matmul", 4e5)], {}, "the main cause"),
        (found("host-sync", 1e5), [found("full-precision-matmul", 4e5)], {"idle_by_cause": {"host-sync": 0.1}},
         "the largest cause of idle time"),
        (found("host-sync", 1e5, 3e5), [found("full-precision-matmul", 4e5, 0.0)], {}, "the largest saving"),
        (found("host-sync", 1e3, 2e5), [found("launch-bound", 1e5, 3e5)], {}, "among the largest savings"),
        (found("host-sync", 2e5), [], {"partition": Partition(0.6, 0, 0, 0.4)}, "the largest avoidable cost"),
        (found("host-sync", 2e5, 0.0), [], {"partition": Partition(0.6, 0, 0, 0.4)}, "the largest hidden cost"),
        (found("warm-up", 2e5), [], {"partition": Partition(0.6, 0, 0, 0.4)}, "the largest cost"),
        (found("slow-kernel", 4e5), [], {"partition": Partition(0.6, 0, 0, 0.4)}, "the largest cost"),
    ],
)  # fmt: skip
def test_what_the_finding_is_the_largest_of(largest, others, fields, words):
    assert f"; {words}: " in headline(answer(findings=(largest, *others), **fields), largest)


@pytest.mark.parametrize(
    ("rule", "idle", "words"),
    [("data-stall", None, "the largest avoidable cost"), ("launch-bound", None, "the main cause"),
     ("data-stall", 0.4, "the main cause")],
)  # fmt: skip
def test_without_a_device_the_cost_that_the_first_change_avoids(rule, idle, words):
    largest, first = found("data-stall", 2e5), Prescription(rule, "id", "", "", "", (1e5, 2e5), 8e5, "same numbers")
    inputs = answer(idle=idle, findings=(largest, found("launch-bound", 4e5)), prescriptions=(first,))
    assert f"; {words}: " in headline(inputs, largest)


@pytest.mark.parametrize(
    ("rule", "computed", "words"),
    [("data-stall", 0.6, "the largest avoidable cost"), ("data-stall", 0.2, "the largest cost"),
     ("warm-up", 0.6, "the largest cost")],
)  # fmt: skip
def test_without_a_device_more_of_the_step_may_be_necessary(rule, computed, words):
    largest = found(rule, 3e5)
    told = answer(idle=None, findings=(largest,), host_by_cause={rule: 0.3, "operators": computed})
    assert f"; {words}: title (30.0 % of the step)." in headline(told, largest)


def test_the_largest_saving_is_a_number_of_what_is_saved():
    largest = found("host-sync", 1e5, 3e5)
    inputs = answer(findings=(largest, found("full-precision-matmul", 4e5, 0.0)))
    assert headline(inputs, largest).endswith("; the largest saving: title (30.0 % of the step).")
    assert summary(inputs, largest)[1].startswith("Largest saving: host-sync 300 µs (30.0 %), without it 700 µs")


def change(saves):
    return Prescription(
        "host-sync", "defer-sync", "Stop waiting", "", "x", saves, STEP - sum(saves) / 2, "same numbers"
    )


@pytest.mark.parametrize(
    ("saves", "words"),
    [((2e5, 4e5), " (saves 200 µs to 400 µs)"), ((0, 4e5), " (saves up to 400 µs)"), ((4e5, 4e5), " (saves 400 µs)")],
)
def test_three_lines(saves, words):
    assert summary(answer(prescriptions=[change(saves)]), SYNC) == (
        "GPU idle 40.0 % of each 1.00 ms step; queue 50 deep while it works, empty 25.0 %",
        "Largest cost: host-sync 400 µs (40.0 %), avoidable, train.py:12",
        f"First change: Stop waiting{words}",
    )


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (found("host-sync", 4e5, 3e5), "without it 700 µs"),
        (found("host-sync", 4e5, 0.0), "other work takes as long"),
        (found("host-sync", 4e5), "no change is known"),
        (found("unexplained-host", 4e5, 3e5), "of unknown cause"),
        (found("warm-up", 4e5, 3e5), "of this recording, not of the program"),
    ],
)
def test_whether_a_cost_can_be_avoided(largest, words):
    assert summary(answer(findings=(largest,)), largest)[1].endswith(f"400 µs (40.0 %), {words}")


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ((), "No rule found a cost of 1.0 % of the step or more"),
        (
            (found("kernel-latency", 8e4),),
            "Nothing stands out as waste; the largest finding: kernel-latency 80.0 µs (8.0 %)",
        ),
    ],
)
def test_without_waste_the_second_line_names_the_largest_finding(findings, words):
    assert summary(answer("kernel-bound", 0.1, findings), None) == (
        "GPU busy 90.0 % of each 1.00 ms step; queue 50 deep while it works, empty 25.0 %",
        words,
    )


def test_a_change_that_gains_nothing_makes_no_cost_avoidable():
    inputs = summary(answer(prescriptions=[change((0.0, 0.0))]), SYNC)
    assert inputs[1] == "Largest cost: host-sync 400 µs (40.0 %), no change helps on its own, train.py:12"


def test_of_an_incomplete_recording_nothing_is_said_to_be_avoidable():
    cost = found("host-sync", 4e5, 3e5)
    inputs = summary(answer(findings=(cost,), is_incomplete=True), cost)
    assert inputs[1] == "Largest cost: host-sync 400 µs (40.0 %), in an incomplete recording"
