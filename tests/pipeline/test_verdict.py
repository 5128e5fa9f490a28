"""The verdict: sparse, full, or dense with gaps; and its sentence."""

import pytest

from diagnose.analyzers import META
from diagnose.model.diagnosis import Finding, Queue
from diagnose.pipeline.verdict import headline, matches_verdict, verdict


def queue(idle, late=0.0):
    return Queue(1 - idle, idle, 3.0, 9.0, idle, 100.0, late, 20_000)


@pytest.mark.parametrize(
    ("idle", "late", "expected"),
    [
        (0.0, 1.0, "kernel-bound"),
        (0.17, 1.0, "kernel-bound"),
        (0.171, 0.0, "gaps"),
        (0.5, 1.0, "gaps"),
        (0.501, 0.49, "gaps"),
        (0.501, 0.5, "cpu-bound"),
        (1.0, 1.0, "cpu-bound"),
    ],
)
def test_idle_first_then_how_many_tasks_are_late(idle, late, expected):
    assert verdict(queue(idle, late), {"launch-bound": idle}) == expected


@pytest.mark.parametrize(("cold", "expected"), [(0.299, "gaps"), (0.3, "cpu-bound")])
@pytest.mark.parametrize("rule", ["warm-up", "recompilation", "allocator-stall"])
def test_half_of_the_idle_in_a_cold_start_makes_the_host_the_limit(rule, cold, expected):
    assert verdict(queue(0.6), {rule: cold, "launch-bound": 0.6 - cold}) == expected


def test_without_a_queue_there_is_no_gpu():
    assert verdict(None, {}) == "no-gpu"


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


SYNC = Finding("host-sync", "The host waits", 400_000.0)


@pytest.mark.parametrize(
    ("found", "idle", "start"),
    [
        ("kernel-bound", 0.1, "The GPU is busy 90% of each 1.0 ms step"),
        ("gaps", 0.4, "The GPU is idle 40% of each 1.0 ms step although its queue is dense"),
        ("cpu-bound", 0.8, "The GPU is idle 80% of each 1.0 ms step because the host does not keep its queue filled"),
        ("no-gpu", None, "Without a GPU in this recording the host takes all of each 1.0 ms step"),
    ],
)
@pytest.mark.parametrize("largest", [SYNC, None])
def test_the_headline_is_one_sentence(found, idle, start, largest):
    said = headline(found, None if idle is None else queue(idle), 1_000_000.0, largest)
    end = "; the largest cause: the host waits (40% of the step)." if largest else ", and nothing stands out as waste."
    assert said == start + end


@pytest.mark.parametrize(
    ("title", "said"), [("GPU idles", "GPU idles"), ("AdamW loops", "AdamW loops"), ("The x", "the x")]
)
def test_names_keep_their_capitals(title, said):
    assert f"cause: {said} (" in headline("gaps", queue(0.4), 1e6, Finding("r", title, 1e5))
