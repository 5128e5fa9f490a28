"""The files of a new rule or change, to be filled in; {id}, {words}, {Title} and other names in braces are replaced."""

from __future__ import annotations

__all__ = ["CHANGE", "CHANGE_TEST", "FIXTURE", "IDLE_RULE", "IDLE_RULE_TEST", "RULE", "RULE_TEST"]

RULE = '''"""{Title}: one sentence that names the bottleneck.

What it looks for
    Kernels whose name holds `{words}`: at least 5 % of the busy time.

Why it costs
    What the device or the host does in this time, and what it could do instead.

What to do
    The change, in a sentence.

How sure
    What is measured, what is inferred, and where nothing is claimed.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="{id}",
    kind="kernel",
    order={order},
    changes=(),
)
MIN_BUSY_SHARE = 0.05  # of the busy time: why this much, and where it was calibrated
_KERNELS = re.compile(r"{words}")


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of these kernels."""
    tasks = np.flatnonzero(free & t.tasks_matching(_KERNELS))
    rule = KernelRule(META.id, "Kernels of {words} take time", MIN_BUSY_SHARE, evidence=top_kernels(t, tasks))
    return kernel_finding(t, rule, tasks)
'''

RULE_TEST = '''"""{id}: its kernels take 5 % of the busy time. Times in µs."""

import pytest


def computing(recording, took, name="{words}_kernel"):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


def test_what_it_costs(recording):
    finding = computing(recording, 100).find("{id}")
    assert (finding.lost_ns, finding.count) == (pytest.approx(100_000), 1)


@pytest.mark.parametrize(("took", "fires"), [(49, False), (51, True)])
def test_a_twentieth_of_the_busy_time(recording, took, fires):
    assert (computing(recording, took).find("{id}") is not None) == fires


def test_other_kernels_do_not_count(recording):
    assert computing(recording, 100, "add_kernel").find("{id}") is None
'''

IDLE_RULE = '''"""{Title}: one sentence that names the bottleneck.

What it looks for
    Idle time of the device while the host is in an operator or annotation whose name holds `{words}`.

Why it costs
    What the host does in this time, and what it could do instead.

What to do
    The change, in a sentence.

How sure
    What is measured, what is inferred, and where nothing is claimed.
"""

from __future__ import annotations

import re

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="{id}",
    kind="idle",
    order={order},  # before the rules that take any time of the host; earlier where it would lose time to another
    legend=Legend("the host was in {words}"),
    changes=(),
    cause="host-work",  # what a replay takes away
)
_CALLS = re.compile(r"{words}")


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle while the host is in these calls."""
    calls = t.covering(t.calls(_CALLS, Kind.OP, Kind.ANNOTATION))
    return intersect(intersect(left, t.gaps.host_part()), calls)


def find(t: Tables) -> list[Finding]:
    """Name the idle time of these calls."""
    return idle_finding(t, IdleRule(META.id, "The host is in {words} while the device waits", probe="middle"))
'''

IDLE_RULE_TEST = '''"""{id}: idle time within its calls. Times in µs.

In `late` the device is idle from 300 to 700, and the launch that ends this begins at 690.
"""


def test_what_it_costs(late):
    late.op("{words}", 300, 500)
    assert late.booked() == {"{id}": 200_000, "launch-bound": 200_000}
    finding = late.find("{id}")
    assert (finding.lost_ns, finding.count) == (200_000, 1)
    assert finding.where[0].op == "{words}"


def test_other_calls_do_not_count(late):
    late.op("aten::mm", 300, 500)
    assert late.booked() == {"launch-bound": 400_000}
'''

FIXTURE = '''# expect: gpu={id} cpu=-
# fixed: gpu=none cpu=-
"""A residual MLP with one bottleneck planted.

Planted: what people write, and why it is slow.
Fixed: the same without it, and nothing else changed.
"""

from __future__ import annotations

import harness
import torch
from models import ResMLP
from torch.nn import functional


def main() -> None:
    options = harness.parse(__doc__)
    width, batch = options.pick(small=64, gpu=2048), options.pick(small=64, gpu=16384)
    model = ResMLP(width, num_blocks=options.pick(small=2, gpu=12)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(8, batch, width, device=options.device)
    y = torch.randint(10, (8, batch), device=options.device)

    clock = harness.StepClock(options)
    for step in range(options.steps):
        loss = functional.cross_entropy(model(x[step % 8]), y[step % 8])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not options.fixed:
            pass  # plant it here
        clock.tick()
    clock.report(loss)


if __name__ == "__main__":
    main()
'''

CHANGE = '''"""{Title}: one sentence in the imperative.

What it does
    What is different in the script, and in the steps.

What to watch
    What it needs, and where it does not help.
"""

from __future__ import annotations

from diagnose.changes.common.change import Change, Patch, Proposal, identical

CHANGE = Change(
    id="{id}",
    title="Use {words}",
    numerics=identical(),  # or rounding, reduced, other_training: the words and the promise that a trial checks
    proposal=Proposal(before="", after="pass  # code to paste", least=0.1),  # or a function of the finding
    patch=Patch(environment={"FASTER_THING": "1"}),  # or a function of diagnose/changes/patches
    # edit=SetArguments, AddStatement or EditLoop writes it into a script; remedy="diagnose.kernels...." is its module
)
'''

CHANGE_TEST = '''"""{id}: what is prescribed, and what it saves."""

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding


def test_what_is_prescribed():
    p = next(p for p in prescribe(Finding("{rule}", "", 1e6), 1e7) if p.id == "{id}")
    assert (p.title, p.safety) == ("Use {words}", "same numbers")
    assert p.saves_ns == (pytest.approx(0.1e6), pytest.approx(1e6))
'''
