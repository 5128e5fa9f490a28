"""Make the slowest line of a sample cheaper.

What it does
    Names the line that takes most of the loading. Vectorize it, or compute its result once in `__init__`. If samples
    never change, the diff passes a list of all samples to the DataLoader instead.

What to watch
    The list takes memory, in each worker too, and has none of the dataset's attributes. It pays from the second epoch
    on. Code after the first random draw, such as a random crop, must run for each sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, identical
from diagnose.changes.common.loading import prepared
from diagnose.model.locations import Where, at_line, own_place
from diagnose.model.numerics import number
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

# Of what the line takes: what is done in C already is halved at best by doing less of it. In one call hardly anything
# is left of a loop in Python. Of a line that took 13 ms, NumPy saved 7.4 to 9.3 ms and a constant 13.0 to 14.4.
MIN_CHEAPER_SHARE = 0.5
NORMAL_95 = 1.96  # standard errors of a share, 95 %
_SAME_SAMPLES = identical("if a sample stays the same in each epoch and draws no random numbers")
_CHEAPER = """# less in the line: one call of NumPy, of tensors or of a C library, a dict in place of a search
# what depends on the sample alone, before its first random draw: once, in __init__, and kept"""


def _applies(_program: Program, finding: Finding) -> bool:
    facts = finding.facts
    is_guess = "cut" not in facts  # else what to do is known
    return bool(is_guess and facts.get("single_process") and facts.get("slow_line")) and not facts.get("restart_share")


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal:
    line = finding.facts["slow_line"]
    assert isinstance(line, Mapping)
    facts = {**finding.facts, "draws": finding.facts.get("draws") or finding.facts.get("drawn_beside")}
    share, samples = float(line["share"]), number(facts, "line_samples")
    place = Where(line["file"], line["line"])
    first, last = line.get("first", place.line), line.get("last", place.line)
    lines = (
        f"{at_line(place)}, which takes"
        if first == last
        else f"{at_line(replace(place, line=first))} to {last}, which take"
    )
    of_lines = f"{lines} {percent(share, 0)} of loading"
    known = own_place(finding.where)
    at_the_line = known is not None and (known.file, known.line) == (place.file, place.line)
    common = Proposal(
        title=f"Make the sample cheaper at {of_lines}",
        before=(known.code or "") if known is not None and at_the_line else "",
        after=_CHEAPER,
        least=MIN_CHEAPER_SHARE * share,
        most=_most(share, samples),
        needs="" if facts.get("behind_draw") else "memory, where results are kept",
    )
    made = None if facts.get("behind_draw") else prepared(facts, program)
    if made is None:
        return common
    most = max(common.most, _most(number(facts, "sample_share"), samples))
    kept = replace(common, most=most, needs=made.needs, numerics=_SAME_SAMPLES)
    if made.edit is None:
        return replace(kept, after=f"{made.code}\n{_CHEAPER}")
    title = f"Prepare all samples once, before training: {of_lines}"
    beside = f"\n# or, where memory does not hold them all,\n{_CHEAPER}"
    return replace(kept, title=title, before="", after="", beside=beside, edits=(made.edit,))


def _most(share: float, samples: float) -> float:
    """Return the upper end of a share that so many samples show."""
    return min(share + NORMAL_95 * math.sqrt(share * (1 - share) / max(samples, 1.0)), 1.0)


CHANGE = Change(
    id="cheaper-sample",
    title="Make the line of a sample cheaper that takes most of the loading",
    numerics=identical("if the sample stays the same"),
    proposal=_proposal,
    applies=_applies,
    edits_expressions=True,
    is_within_share=True,
)
