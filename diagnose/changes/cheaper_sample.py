"""Make the line of a sample cheaper that most of the loading is spent on.

What it does
    Computes once, before the training, what depends on the sample alone and comes before its first random draw, or
    makes the line itself cheaper. Where the script hands a dataset with an index to the DataLoader by a variable, and
    no line of it is known to draw random numbers, a list of all samples takes the dataset's place: one argument of the
    call, as a diff where its length and its sampler are known. The lines shown with it fit what the slow
    line's recorded text does: a loop over values, text, parsing, rows of a table, images. Where the line tests whether
    values are in a list that its class or module builds once, the list becomes a set: as a diff, where nothing else in
    the file reads it.

    At least half of what the line takes is saved, at most all of it: its share of the loading, as exactly as so many
    samples show a share; of samples that are prepared once, at most that of the whole sample. Without a device the
    rest of the step may gain as well, at most three tenths of what is saved.

What to watch
    What is kept takes memory, in each worker too. What follows the first random draw, as a random crop, must run for
    each sample: a line there is not computed once, and only made cheaper. Computing once moves the cost to the start:
    it pays from the second epoch on, where the DataLoader is made once. A list has none of the dataset's attributes:
    `loader.dataset` is the list then. A set takes values that have a hash, keeps no order and each value once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.changes.common.loading import draws_at, is_iterable, number
from diagnose.changes.common.lookups import lookup_code, lookup_of
from diagnose.changes.common.prepared import prepared
from diagnose.model.locations import Where
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.changes.common.call_edits import EditedCall
    from diagnose.changes.common.prepared import Prepared
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.tables.program import Program

# Of what the line takes: what is done in C already is halved at best by doing less of it. In one call hardly anything
# is left of a loop in Python. Of a line that took 13 ms, NumPy saved 7.4 to 9.3 ms and a constant 13.0 to 14.4.
MIN_SAVED_SHARE = 0.5
NORMAL_95 = 1.96  # standard errors of a share, 95 %
_BEHIND_DRAW = "# it follows a random draw ({draw}): it has to run for each sample, and cannot be computed once"
_WITHOUT_DRAW = "# or, where it needs nothing of the random draw at {draw}:"
# What the dataset's author does where the variable is not known that the script hands to the DataLoader.
_ALL = "# at the end of __init__, once: self.prepared = a list of all samples, as {method} makes them now"
_PAYS = "; it pays from the second epoch on"
_GIVES = {
    "__getitem__": "def __getitem__(self, index): return self.prepared[index]",
    "__iter__": "def __iter__(self): yield from self.prepared",
}
_BEFORE_DRAW = (
    "# in __init__: self.prepared = a list of what each sample needs before that draw" + _PAYS + "\n"
    "# and in {method}: {given} in the place of the lines that make it"
)
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
    "values": "# of a list of Python's it takes each value: computed by tensors or NumPy from the start, none is made",
    "": "# else less in the line: one call of NumPy, of tensors or of a library written in C",
}
_CUT_FIRST = (
    "# the part that the sample uses is cut out first, and only that part is computed: the results are the same"
)
_ONE_CALL = "# else less in the line: fewer values, or a type of fewer bytes"  # where it is one of NumPy already
# Where the object is a list: what goes through all of it, or moves all of it, each time.
_OF_LISTS = {
    "pop": "# of a list, pop(0) moves all that is left: collections.deque and its popleft() move nothing",
    "insert": "# into a list, insert(0, ...) moves all of it: collections.deque and its appendleft() move nothing",
    "index": "# of a list, index() goes through it: once, at = {x: i for i, x in enumerate(values)}, then at[x]",
}


def _applies(_program: Program, finding: Finding) -> str:
    if not finding.facts.get("single_process"):
        return "workers load, whose lines are not sampled"
    if finding.facts.get("restart_share"):
        return "the loader restarts for each batch, which takes time"
    return "" if _line(finding) else "no line of the script takes most of the loading"


def _line(finding: Finding) -> Mapping[str, object]:
    return _of(finding.facts, "slow_line")


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice:
    line = _line(finding)
    facts = {**finding.facts, "draws": finding.facts.get("draws") or finding.facts.get("drawn_beside")}
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
    most = _most(share, number(facts, "line_samples"))
    if edit := _as_set(facts):
        return _of_set(facts, edit, f"{lines} {percent(share, 0)} of loading", (MIN_SAVED_SHARE * share, most))
    code = known.code if known is not None and (known.file, known.line) == (place.file, place.line) else None
    is_random = bool(facts.get("behind_draw"))
    made = None if is_random else prepared(facts, program)
    if made is not None:
        most = max(most, _most(number(facts, "sample_share"), number(facts, "line_samples")))
        if made.edit is not None:
            return _of_all(facts, made, f"{lines} {percent(share, 0)} of loading", (MIN_SAVED_SHARE * share, most))
    return Advice(
        title=title,
        before=code or "",
        after="\n".join(filter(None, (_cut_first(facts), lookup_code(facts), _of_list(facts), _after(facts, made)))),
        least=MIN_SAVED_SHARE * share,
        most=most,
        needs="" if is_random else made.needs if made is not None else "memory, where results are kept",
        numerics=_SAME_SAMPLES if made is not None else None,
    )


_SAME_SAMPLES = identical("where a sample stays the same in each epoch and draws no random numbers")


def _of_all(facts: Facts, made: Prepared, lines: str, saved: tuple[float, float]) -> Advice:
    """Return the advice to make all samples once: the dataset is replaced in the call of the DataLoader."""
    cheaper = _cheaper(facts).removeprefix("# ").removeprefix("else ")
    beside = (
        _cut_first(facts),
        lookup_code(facts),
        _of_list(facts),
        f"# or, where memory does not hold them all, {cheaper}",
    )
    return Advice(
        title=f"Prepare all samples once, before training: {lines}",
        after="",
        beside="\n" + "\n".join(filter(None, beside)),
        edits=(made.edit,) if made.edit is not None else (),
        least=saved[0],
        most=saved[1],
        needs=made.needs,
        numerics=_SAME_SAMPLES,
    )


def _as_set(facts: Facts) -> EditedCall | None:
    """Return the expression that builds the list which a slow line looks up in, as a set; None where it cannot be."""
    from diagnose.changes.common.call_edits import EditedCall, call_of, text_of

    made = call_of(lookup_of(facts).get("made"))
    text = text_of(made) if made is not None else ""
    if made is None or not text.startswith(("[", "list")):
        return None
    return EditedCall(made, f"{{{text[1:-1]}}}" if text[0] == "[" else f"set{text.removeprefix('list')}")


def _of_set(facts: Facts, edit: EditedCall, lines: str, saved: tuple[float, float]) -> Advice:
    """Return the advice to build a set in the place of a list: one expression is edited."""
    name = str(lookup_of(facts).get("name"))
    at = at_line(Where(edit.call.file, edit.call.begin[0]))
    return Advice(
        title=f"Make {name} a set at {at}: {lines}",
        after="",
        edits=(edit,),
        least=saved[0],
        most=saved[1],
        numerics=identical(f"where each value in {name} has a hash and no other file needs its order or repetitions"),
    )


def _of_list(facts: Facts) -> str:
    """Return the line for an operation that goes through a whole list each time, by the slow line's text."""
    return _OF_LISTS.get(str(facts.get("list_work") or ""), "")


def _cut_first(facts: Facts) -> str:
    return _CUT_FIRST if facts.get("kind") == "cut" else ""


def _of(facts: Facts, key: str) -> Mapping[str, object]:
    found = facts.get(key)
    return found if isinstance(found, Mapping) else {}


def _most(share: float, samples: float) -> float:
    """Return the upper end of a share that so many samples show."""
    return min(share + NORMAL_95 * math.sqrt(share * (1 - share) / max(samples, 1.0)), 1.0)


def _after(facts: Facts, made: Prepared | None) -> str:
    """Return the lines that fit what the slow line does, with those of what is computed once.

    Where samples draw at random, what the slow line needs of that is not known: the lines for it come first.
    """
    work = str(facts.get("sample_work") or "")
    cheaper = _cheaper(facts)
    if facts.get("behind_draw"):
        return f"{_BEHIND_DRAW.format(draw=draws_at(facts))}\n{cheaper}"
    if facts.get("draws"):
        first = cheaper.replace("# else ", "# ")
        return f"{first}\n{_WITHOUT_DRAW.format(draw=draws_at(facts))}\n{_before_draw(facts)}"
    return "\n".join(filter(None, (made.code if made else _once(facts), _ONCE_BY_WORK.get(work), cheaper)))


def _cheaper(facts: Facts) -> str:
    """Return the line that makes the slow one cheaper: one call of NumPy is advised where it is none yet."""
    work = str(facts.get("sample_work") or "")
    return _BY_WORK.get(work) or _BY_WORK[""] if work or not facts.get("is_array_call") else _ONE_CALL


def _method(facts: Facts) -> str:
    return "__iter__" if is_iterable(facts) else "__getitem__"


def _once(facts: Facts) -> str:
    """Return how the dataset keeps all samples, in the words of its kind."""
    method = _method(facts)
    return f"{_ALL.format(method=method)}{_PAYS}\n{_GIVES[method]}"


def _before_draw(facts: Facts) -> str:
    given = "each of self.prepared" if is_iterable(facts) else "self.prepared[index]"
    return _BEFORE_DRAW.format(method=_method(facts), given=given)


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
