"""growing-steps: each step takes longer than the one before, at one place. Times in ms."""

import numpy as np
import pytest

from diagnose.model.events import Device
from diagnose.pipeline.true_step import true_step

STEPS = 80
COPY, MODEL, LOOP = ("train.py", 9, "sample"), ("train.py", 20, "forward"), ("train.py", 30, "main")
GROWING = [10 + 0.2 * i for i in range(STEPS)]  # 10 ms to 25.8 ms


@pytest.fixture
def ran(recording, run_steps):
    def make(took, copies, *, devices=(), recorded=4, every=0.5, **known):
        """Return a run with ``copies(i)`` ms of step ``i`` in the copy, the rest in the model, and samples of it."""
        r = recording(devices=devices)
        r.step(1, 0, 10_000)
        r.op("aten::mm", 0, 10_000)
        if devices:
            r.kernel("gemm", 10, 9_000, launched=(1, 5))
        start, sampled = 0.0, []
        for i, ms in enumerate(took):
            sampled += [
                (start + at, (COPY if at < copies(i) else MODEL, LOOP))
                for at in np.arange(every / 2, ms, every).tolist()
            ]
            start += ms
        state = [0] * 10 + [3] + [1] * recorded + [3] + [0] * (STEPS - recorded - 12)
        r.run = run_steps(took, state=state, sampled=sampled)
        r.lines[COPY[:2]] = "stored = values[:size].copy()"
        r.with_info(**known)
        return r

    return make


def copied(i):
    return 2 + 0.2 * i


def test_the_place_that_grows_is_named_and_costs_what_the_mean_step_takes_longer_than_the_first_ones(ran, presentable):
    r = ran(GROWING, copied)
    finding = r.find("growing-steps")
    mean = np.mean([ms for i, ms in enumerate(GROWING) if 2 <= i < 10 or i >= 16])
    first = np.median([GROWING[i] for i in [*range(2, 10), *range(16, 24)]])
    assert finding.lost_ns == pytest.approx((mean - first) * 1e6, rel=1e-6)
    assert finding.share == pytest.approx(1 - first / mean)
    where, caller = finding.where
    assert (where.file, where.line, where.code) == ("train.py", 9, "stored = values[:size].copy()")
    assert caller.line == 30
    assert "from 12.5 ms to 24.3 ms" in finding.evidence[0]
    (change,) = r.prescribe("growing-steps")
    presentable(change)
    assert change.title.startswith("Keep the work at train.py:9 from growing: use only what is new, or compute")
    assert change.saves_ns == (pytest.approx(0.7 * finding.lost_ns), pytest.approx(finding.lost_ns))


def test_what_steps_grow_by_after_the_recording_is_no_part_of_what_the_recorded_ones_show(ran):
    """Recorded steps are the 12th to 15th: the step is longer by what grew after them, and only that rule has it."""
    r = ran(GROWING, copied, unprofiled_ms=[12.0], light_ms=[10.0])
    mean = np.mean([ms for i, ms in enumerate(GROWING) if 2 <= i < 10 or i >= 16]) * 1e6
    nearest = np.median([GROWING[i] for i in [*range(2, 10), *range(16, 24)]]) * 1e6
    step = true_step(r.tables())
    assert (step.mean_ns, step.usual_ns) == (pytest.approx(mean), pytest.approx(nearest))
    d = r.diagnosis()
    assert (d.dominant, d.step_ns) == ("growing-steps", pytest.approx(mean))


def spell(i):
    return 8.0 * (40 <= i < 60)


@pytest.mark.parametrize(
    "change",
    [
        {"copies": lambda i: 0.2 * GROWING[i]},  # the machine slows everything
        {"copies": lambda i: 5 + 0.15 * i},  # and this place a little more
        {"every": 8.0},  # so few samples may lie there by chance
        {"took": [10.0] * STEPS, "copies": lambda i: 0.05 * i},  # steps are equal
        {"took": [10 + spell(i) for i in range(STEPS)], "copies": lambda i: 2 + spell(i)},  # longer for a while
        {"devices": (Device(0, "NVIDIA A100"),)},
        {"rank": 0, "world_size": 2},
    ],
)
def test_what_is_no_finding(ran, change):
    assert ran(**{"took": GROWING, "copies": copied, **change}).find("growing-steps") is None
