"""The answer: one ranking of the findings, the cards, the step predicted after them, the words of the first screen.

What a step without a finding saves decides its place, and whether it is the answer. There is no other choice anywhere.
The headline is the first finding, the first card is the change for it, and below one floor the answer is that there is
little to gain. What this rule gets wrong is to be corrected in what findings cost, in the causes, or in the replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta

FLOOR, HOST_FLOOR = 0.02, 0.1  # of the step: with a device, and without one; less is little to gain
MIN_EXPLAINED = 0.5  # of what the pace of launches is worth: a large part


def worth_ns(finding: Finding, rule: RuleMeta) -> float:
    """Return what a step without the finding saves, ns: as replayed, else what it costs.

    It is 0 for what the program cannot avoid: the state of the machine, time without a known cause, pauses and kernels
    for which no edit is known to help. It is 0 for what came once in the run, as how often it recurs is not known.
    """
    if rule.kind == "state" or not (rule.explains and rule.is_avoidable):
        return 0.0
    if finding.share is not None and finding.confidence == "low":
        return 0.0
    return finding.gain_ns


def worth_share(finding: Finding, step_ns: float) -> float:
    """Return what a step without the finding saves, as a share of the step, or of the run that it was found in."""
    if finding.share is not None:
        return min(finding.share, 1.0) if finding.worth_ns else 0.0
    return min(finding.worth_ns / step_ns, 1.0) if step_ns > 0 else 0.0


def beside_lines(findings: Sequence[Finding], rules: Mapping[str, RuleMeta]) -> list[Finding]:
    """Return the findings with the pace of launches worth no more than operators that explain a large part of it.

    A replay leaves the host's pace as it was recorded. Without such operators the host gets ahead of the device, and
    less of the pace is left than it shows; nor does a change of the pace take all of it.
    """
    most = max((f.worth_ns for f in findings if f.without is not None), default=0.0)
    return [
        replace(f, worth_ns=most) if rules[f.rule].is_pace and f.worth_ns > most >= MIN_EXPLAINED * f.worth_ns else f
        for f in findings
    ]


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the largest worth first; of equal ones that of known operators, or that costs more."""
    return sorted(findings, key=lambda f: (-f.worth_ns, f.without is None, -f.lost_ns))


def answering(findings: Sequence[Finding], step_ns: float, *, has_device: bool) -> Finding | None:
    """Return the first of the ordered findings if it is worth as much as the floor, else None: little to gain."""
    first = next(iter(findings), None)
    floor_ns = (FLOOR if has_device else HOST_FLOOR) * step_ns
    return first if first is not None and first.worth_ns >= floor_ns else None
