"""Make the line of a sample cheaper that most of the loading is spent on.

What it does
    Computes once, before the training, what depends on the sample alone and comes before its first random draw, and
    makes the line itself cheaper. The lines that are shown fit what its recorded text does: a loop over values, text,
    parsing, rows of a table, images. At least half of what the line takes is saved, at most all of it: its share of
    the loading, as exactly as so many samples show a share, and never more than the step waits for.

What to watch
    What is kept takes memory, in each worker too. What follows the first random draw, as a random crop, must run for
    each sample: a line there is not computed once, and only made cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.changes.common.loading import is_iterable, number
from diagnose.model.locations import Where
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.tables.program import Program

# Of what the line takes: what is done in C already is halved at best by doing less of it. In one call hardly anything
# is left of a loop in Python. Of a line that took 13 ms, NumPy saved 7.4 to 9.3 ms and a constant 13.0 to 14.4.
MIN_SAVED_SHARE = 0.5
NORMAL_95 = 1.96  # standard errors of a share, 95 %
_BEHIND_DRAW = "# it follows a random draw ({draw}): it has to run for each sample, and cannot be computed once"
_WITHOUT_DRAW = "# or, where it needs nothing of the random draw at {draw}:"
# Lines to show, by what the slow line does; the first ones are of what is computed once.
_ONCE_BY_WORK = {
    "parsing": '# text parsed once and saved as arrays: np.save(...), then np.load(..., mmap_mode="r") in the dataset',
    "image": "# images decoded and resized once, and saved at the size that is trained on",
}
_BY_WORK = {
    "loop": "# one call of NumPy or of tensors in place of the loop over values",
    "table": "# values = table[names].to_numpy(), once, in __init__: values[i] in place of table.iloc[i]",
    "text": "# one call over the whole text: str.translate, a pattern compiled once, a tokenizer written in C",
    "parsing": "# a faster parser, such as orjson.loads or pyarrow.csv.read_csv",
    "image": '# decoded at a smaller size: image.draft("RGB", (width, height)) of a JPEG before its pixels are read',
    "": "# else less in the line: one call of NumPy, of tensors or of a library written in C",
}


def _applies(_program: Program, finding: Finding) -> str:
    if not finding.facts.get("single_process"):
        return "workers load, whose lines are not sampled"
    if finding.facts.get("restart_share"):
        return "the loader restarts for each batch, which takes time"
    return "" if _line(finding) else "no line of the script takes most of the loading"


def _line(finding: Finding) -> Mapping[str, object]:
    found = finding.facts.get("slow_line")
    return found if isinstance(found, Mapping) else {}


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    line, facts = _line(finding), finding.facts
    share = float(str(line["share"]))
    place = Where(str(line["file"]), int(str(line["line"])))
    known = own_place(finding)
    first, last = (int(str(line.get(key, place.line))) for key in ("first", "last"))
    lines = (
        f"{at_line(place)}, which takes"
        if first == last
        else f"{at_line(replace(place, line=first))} to {last}, which take"
    )
    title = f"Make the sample cheaper at {lines} {percent(share, 0)} of loading"
    code = known.code if known is not None and (known.file, known.line) == (place.file, place.line) else None
    is_random = bool(facts.get("behind_draw"))
    return Advice(
        title=title,
        before=code or "",
        after=_after(facts),
        least=MIN_SAVED_SHARE * share,
        most=_most(share, number(facts, "line_samples")),
        needs="" if is_random else "memory, where results are kept",
    )


def _most(share: float, samples: float) -> float:
    """Return the upper end of a share that so many samples show."""
    return min(share + NORMAL_95 * math.sqrt(share * (1 - share) / max(samples, 1.0)), 1.0)


def _after(facts: Facts) -> str:
    """Return the lines that fit what the slow line does, with those of what is computed once.

    Where samples draw at random, what the slow line needs of that is not known: the lines for it come first.
    """
    work = str(facts.get("sample_work") or "")
    cheaper = _BY_WORK.get(work)
    if facts.get("behind_draw"):
        return f"{_BEHIND_DRAW.format(draw=_draw(facts))}\n{cheaper or _BY_WORK['']}"
    once = "\n".join(filter(None, (_once(facts), _ONCE_BY_WORK.get(work))))
    if facts.get("draws"):
        first = (cheaper or _BY_WORK[""]).replace("# else ", "# ")
        return f"{first}\n{_WITHOUT_DRAW.format(draw=_draw(facts))}\n{once}"
    return f"{once}\n{cheaper}" if cheaper else once


def _once(facts: Facts) -> str:
    """Return what is computed once, before the first random draw, in the words of the dataset's kind."""
    read = "yielded in __iter__, where all fits in memory" if is_iterable(facts) else "looked up in __getitem__"
    return (
        f"prepared = [preprocess(each) for each in inputs]   # once, in __init__; {read}\n"
        f"# preprocess: only what depends on the sample alone and comes before the first random draw"
    )


def _draw(facts: Facts) -> str:
    """Return the line at which samples draw random numbers, "" where none was seen."""
    found = facts.get("draws")
    return at_line(Where(str(found["file"]), int(str(found["line"])))) if isinstance(found, Mapping) else ""


CHANGE = Change(
    id="cheaper-sample",
    title="Make the line of a sample cheaper that takes most of the loading",
    numerics=identical("where the sample stays the same"),
    patch=ByHand("what the line computes only the dataset's author knows"),
    edit=ByHand("what the line computes only the dataset's author knows"),
    advice=_advice,
    applies=_applies,
    is_within_share=True,
    without_remedy="a line of the dataset's own Python",
)
