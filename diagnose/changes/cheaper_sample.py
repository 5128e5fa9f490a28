"""Make the line of a sample cheaper that most of the loading is spent on.

What it does
    Computes once, before the training, what depends on the sample alone, and in one call of NumPy or of tensors what
    a loop computes value by value. At least half of what the line takes is saved, at most the whole sample: computed
    once, its other lines are gone too.

What to watch
    What is kept takes memory, in each worker too. Random augmentation stays behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.changes.common.loading import number
from diagnose.model.places import Where
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

# Of what the line takes: what is done in C already is halved at best by doing less of it. In one call hardly anything
# is left of a loop in Python, and computed once the whole sample is gone.
LEAST = 0.5
MIN_BESIDE = 0.05  # of loading, in other lines of the sample: less is not worth a word
_AFTER = """# what depends on the sample alone: once, in the dataset's __init__, and looked up in __getitem__
prepared = [preprocess(each) for each in inputs]
# else one call in the place of a loop over values: NumPy, tensors, str.translate, a compiled pattern; a table's columns
# as arrays, once (table[name].to_numpy()), in the place of table.iloc[i] for each sample"""


def _applies(_program: Program, finding: Finding) -> str:
    if not finding.facts.get("single_process"):
        return "workers load, whose lines are not sampled"
    return "" if _line(finding) else "no line of the script takes most of the loading"


def _line(finding: Finding) -> Mapping[str, object]:
    found = finding.facts.get("slow_line")
    return found if isinstance(found, Mapping) else {}


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    line = _line(finding)
    share = float(str(line["share"]))
    place = Where(str(line["file"]), int(str(line["line"])))
    known, whole = own_place(finding), max(number(finding.facts, "sample_share"), share)
    first, last = (int(str(line.get(key, place.line))) for key in ("first", "last"))
    lines = (
        f"{at_line(place)}, which takes"
        if first == last
        else f"{at_line(replace(place, line=first))} to {last}, which take"
    )
    title = f"Make the sample cheaper at {lines} {percent(share, 0)} of loading"
    if whole - share >= MIN_BESIDE:
        title += f" (the whole sample {percent(whole, 0)})"
    code = known.code if known is not None and (known.file, known.line) == (place.file, place.line) else None
    return Advice(
        title=title,
        before=code or "",
        after=_AFTER,
        least=LEAST * share,
        most=whole,
        needs="memory for what is computed once",
    )


CHANGE = Change(
    id="cheaper-sample",
    title="Make the line of a sample cheaper that takes most of the loading",
    numerics=identical("where the sample stays the same"),
    patch=ByHand("what the line computes only the dataset's author knows"),
    edit=ByHand("what the line computes only the dataset's author knows"),
    advice=_advice,
    applies=_applies,
    without_remedy="a line of the dataset's own Python",
)
