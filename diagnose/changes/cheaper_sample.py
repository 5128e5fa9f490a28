"""Make the slowest line of a sample cheaper.

What it does
    Names the line that takes most of the loading. Vectorize it, or compute its result once in `__init__`. If samples
    never change, the diff passes a list of all samples to the DataLoader instead.

What to watch
    The list takes memory, in each worker too, and has none of the dataset's attributes. It pays from the second epoch
    on. Code after the first random draw, such as a random crop, must run for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.changes.cheaper_line import share_at_most
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
_SAME_SAMPLES = identical("if a sample stays the same in each epoch and draws no random numbers")


def _applies(_program: Program, finding: Finding) -> bool:
    facts = finding.facts
    is_guess = not (facts.get("idiom") or "cut" in facts or facts.get("kind") == "lists")  # else what to do is known
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
    title = f"Make the sample cheaper at {of_lines}: compute in one call, or once if each epoch gives the same"
    if facts.get("behind_draw"):
        title = f"Make the sample cheaper at {of_lines}: compute in one call"
    common = Proposal(
        title=title,
        before=(known.code or "") if known is not None and at_the_line else "",
        after="",
        least=MIN_CHEAPER_SHARE * share,
        most=share_at_most(share, samples),
        needs="" if facts.get("behind_draw") else "memory for the results that are kept",
    )
    made = None if facts.get("behind_draw") else prepared(facts, program)
    if made is None:
        return common
    most = max(common.most, share_at_most(number(facts, "sample_share"), samples))
    prepared_once = replace(common, most=most, needs=made.needs, numerics=_SAME_SAMPLES)
    if made.edit is None:
        return replace(prepared_once, after=made.code)
    title = f"Prepare all samples once, before training: {of_lines}"
    return replace(prepared_once, title=title, before="", edits=(made.edit,))


CHANGE = Change(
    id="cheaper-sample",
    title="Make the line of a sample cheaper that takes most of the loading",
    numerics=identical("if the edit returns the same sample"),
    proposal=_proposal,
    applies=_applies,
    edits_expressions=True,
    is_within_share=True,
)
