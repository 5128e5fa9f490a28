"""The verdict: shallow, full, or deep with gaps; and the finding that answers."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import META
from diagnose.model.diagnosis import Finding, Partition, Prescription, Queue
from diagnose.pipeline.verdict import dominant, dominant_with_savings, matches_verdict, savings_by_rule, verdict


def queue(idle, *, depth=50.0, late=0.0):
    return Queue(1 - idle, idle, 3.0, 9.0, idle, 100.0, late, 20_000, depth)


def answered(found, causes, *, communication=0.0):
    return verdict(found, Partition(1 - communication - found.idle_share, communication, 0.0, found.idle_share), causes)


@pytest.mark.parametrize(
    ("idle", "depth", "expected"),
    [
        (0.0, 1.0, "kernel-bound"),
        (0.17, 1.0, "kernel-bound"),
        (0.171, 1.0, "cpu-bound"),  # however small the idle share: the host has no lead
        (0.171, 9.0, "gaps"),
        (0.9, 9.0, "gaps"),
        (0.9, 8.0, "cpu-bound"),
    ],
)
def test_idle_first_then_the_depth_while_the_device_works(idle, depth, expected):
    assert answered(queue(idle, depth=depth), {"launch-bound": idle}) == expected


@pytest.mark.parametrize(
    ("idle", "late", "expected"),
    [(0.5, 1.0, "gaps"), (0.501, 0.49, "gaps"), (0.501, 0.5, "cpu-bound"), (1.0, 1.0, "cpu-bound")],
)
def test_without_linked_launches_pauses_stand_for_the_depth(idle, late, expected):
    assert answered(queue(idle, depth=None, late=late), {"launch-bound": idle}) == expected


@pytest.mark.parametrize(("communication", "expected"), [(0.4, "cpu-bound"), (0.41, "gaps")])
def test_a_device_that_waits_longer_for_other_ranks_is_not_limited_by_its_host(communication, expected):
    assert answered(queue(0.4, depth=2.0), {"launch-bound": 0.4}, communication=communication) == expected


@pytest.mark.parametrize(("cold", "expected"), [(0.299, "gaps"), (0.3, "cpu-bound")])
@pytest.mark.parametrize("rule", ["warm-up", "recompilation", "allocator-stall"])
def test_half_of_the_idle_in_a_cold_start_makes_the_host_the_limit(rule, cold, expected):
    assert answered(queue(0.6), {rule: cold, "launch-bound": 0.6 - cold}) == expected


def test_without_a_queue_there_is_no_gpu():
    assert verdict(None, None, {}) == "no-gpu"


def found(rule, share, count=10):
    return Finding(rule, "title", share * 1e6, count)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([found("launch-bound", 0.4), found("data-stall", 0.3)], "data-stall"),  # recording makes launching longer
        ([found("launch-bound", 0.4), found("data-stall", 0.29)], "launch-bound"),
        ([found("launch-bound", 0.4), found("data-stall", 0.3, count=4)], "launch-bound"),  # in 4 of 10 steps
        ([found("launch-bound", 0.4), found("warm-up", 0.39)], "launch-bound"),
        ([found("data-stall", 0.4), found("host-sync", 0.39)], "data-stall"),
        ([found("unexplained-host", 0.5), found("host-sync", 0.1)], "host-sync"),
        ([found("unexplained-host", 0.5), found("host-sync", 0.09)], "unexplained-host"),
        ([found("full-precision-matmul", 0.5)], None),
    ],
)
def test_which_finding_answers(findings, expected):
    answer = dominant("gaps", findings, 1e6, 10)
    assert (answer.rule if answer else None) == expected


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([found("unfused-optimizer", 0.1)], "unfused-optimizer"),
        ([found("unfused-optimizer", 0.099), found("data-stall", 0.03)], None),
        ([found("unfused-optimizer", 0.099), found("data-stall", 0.08)], "data-stall"),
        ([found("data-stall", 0.03)], "data-stall"),
    ],
)
def test_without_a_device_calling_operators_answers_from_a_tenth_on(findings, expected):
    answer = dominant("no-gpu", findings, 1e6, 10)
    assert (answer.rule if answer else None) == expected


def relieved(rule, share, relief):
    return replace(found(rule, share), relief_ns=relief * 1e6)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([relieved("exposed-communication", 0.4, 0.0), relieved("python-stall", 0.15, 0.15)], "python-stall"),
        ([relieved("exposed-communication", 0.4, 0.1), relieved("python-stall", 0.15, 0.149)], "exposed-communication"),
        ([relieved("exposed-communication", 0.4, 0.0), relieved("python-stall", 0.15, 0.09)], "python-stall"),
        ([relieved("launch-bound", 0.2, 0.1), relieved("python-stall", 0.1, 0.15)], "python-stall"),
        ([relieved("launch-bound", 0.2, 0.1), relieved("python-stall", 0.1, 0.149)], "launch-bound"),
        (
            [relieved("launch-bound", 0.2, 0.1), relieved("python-stall", 0.1, 0.2), found("host-sync", 0.03)],
            "launch-bound",
        ),
        ([relieved("exposed-communication", 0.4, 0.0), found("python-stall", 0.15)], "python-stall"),
        ([found("exposed-communication", 0.4), relieved("python-stall", 0.15, 0.15)], "exposed-communication"),
    ],
)
def test_a_cause_gives_way_to_one_that_costs_half_as_much_again(findings, expected):
    assert dominant("gaps", findings, 1e6, 10).rule == expected


@pytest.mark.parametrize(("share", "expected"), [(0.1, "python-stall"), (0.099, None)])
def test_beside_a_full_device_waiting_of_a_tenth_answers(share, expected):
    answer = dominant("kernel-bound", [found("python-stall", share)], 1e6, 10)
    assert (answer.rule if answer else None) == expected


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (relieved("host-sync", 0.01, 0.02), "host-sync"),
        (relieved("host-sync", 0.03, 0.019), None),
        (relieved("launch-bound", 0.03, 0.05), None),  # recording makes it longer
        (relieved("kernel-latency", 0.03, 0.05), None),  # every device has it
        (replace(relieved("unfused-optimizer", 0.03, 0.05), tasks=np.arange(3)), "unfused-optimizer"),
    ],
)
def test_beside_a_full_device_a_wait_answers_that_makes_the_step_longer(finding, expected):
    answer = dominant("kernel-bound", [finding], 1e6, 10)
    assert (answer.rule if answer else None) == expected


@pytest.mark.parametrize(
    ("saved", "waits", "expected"),
    [
        (0.0, relieved("host-sync", 0.05, 0.12), "host-sync"),  # the copies are hidden: without them nothing is saved
        (0.03, relieved("host-sync", 0.05, 0.12), "host-sync"),  # a step without the wait is shorter still
        (0.12, relieved("host-sync", 0.05, 0.12), "exposed-copy"),
        (0.0, relieved("allocator-stall", 0.05, 0.12), "allocator-stall"),
        (0.0, relieved("launch-bound", 0.15, 0.15), "exposed-copy"),  # recording makes it longer
    ],
)
def test_beside_a_full_device_copies_that_save_less_give_way_to_a_wait(saved, waits, expected):
    findings = [relieved("exposed-copy", 0.2, saved), waits]
    assert dominant("kernel-bound", findings, 1e6, 10).rule == expected


@pytest.mark.parametrize(
    ("found", "rule", "expected"),
    [
        ("kernel-bound", "full-precision-matmul", True),
        ("kernel-bound", "launch-bound", False),
        ("gaps", "full-precision-matmul", False),
        ("gaps", "launch-bound", True),
        ("cpu-bound", "host-sync", True),
        ("kernel-bound", "exposed-communication", True),
        ("kernel-bound", "exposed-copy", True),
        ("gaps", "buffer-broadcast", True),
        ("no-gpu", "python-stall", True),
        ("kernel-bound", "throttled", False),
        ("no-gpu", "memory-pressure", False),
    ],
)
def test_what_lies_where_the_verdict_points(found, rule, expected):
    assert matches_verdict(found, META[rule]) == expected


@pytest.mark.parametrize(
    ("verdict_", "share", "expected"),
    [
        ("no-gpu", 0.39, "unfused-optimizer"),  # calls operators one by one, before all calls that are left
        ("no-gpu", 0.2, "launch-bound"),
        ("cpu-bound", 0.39, "launch-bound"),
    ],
)
def test_without_a_device_the_more_exact_of_two_alike_answers(verdict_, share, expected):
    answer = dominant(verdict_, [found("launch-bound", 0.4), found("unfused-optimizer", share)], 1e6, 10)
    assert answer.rule == expected


@pytest.mark.parametrize(
    ("share", "saved", "expected"),
    [
        (0.24, {"launch-bound": 0.12, "data-stall": 0.17}, "data-stall"),  # calling operators cannot be taken away
        (0.24, {"launch-bound": 0.12, "data-stall": 0.09}, "data-stall"),
        (0.24, {"launch-bound": 0.12, "data-stall": 0.08}, "launch-bound"),
        (0.24, {"data-stall": 0.17}, "data-stall"),
        (0.24, {"data-stall": 0.01}, "launch-bound"),
        (0.24, {}, "launch-bound"),
        (0.09, {"data-stall": 0.09}, "launch-bound"),
    ],
)
def test_without_a_device_a_change_that_helps_answers_before_calls_that_stay(share, saved, expected):
    findings = [found("launch-bound", 0.41), found("data-stall", share)]
    rare = [findings[0], found("data-stall", share, count=4)]
    saved_ns = {rule: part * 1e6 for rule, part in saved.items()}
    assert dominant_with_savings("no-gpu", findings, 1e6, 10, saved_ns).rule == expected
    assert dominant_with_savings("gaps", findings, 1e6, 10, saved_ns).rule == "launch-bound"
    assert dominant_with_savings("no-gpu", rare, 1e6, 10, saved_ns).rule == "launch-bound"


def test_the_best_change_of_each_finding_counts():
    def saving(rule, *saves, predicted=1.0):
        return Prescription(rule, "id", "", "", "", saves, predicted, "")

    changes = [saving("data-stall", 1, 3), saving("data-stall", 2, 4), saving("host-sync", 1, 9, predicted=None)]
    assert savings_by_rule(changes) == {"data-stall": 3.0}
