"""What the lines do that the sampler saw while a batch was loaded, by their text and their function."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from diagnose.analyzers.common.locate import MAX_LINES_APART
from diagnose.model.diagnosis import Facts
from diagnose.model.locations import RANDOM_DRAW
from diagnose.model.own_source import parsed_statement
from diagnose.tables import Tables

_IMAGE = re.compile(r"\b(?:Image|PIL|cv2|imageio)\.\w+|\b(?:imread|read_image|decode_(?:image|jpeg|png))\(")
_TABLE = re.compile(r"\.(?:iloc|loc|iat|at)\[|\.(?:iterrows|itertuples)\(")
_PARSING = re.compile(r"\b(?:json|csv|yaml|ast|xml|ET)\.\w+|\b(?:np|numpy)\.(?:loadtxt|genfromtxt)\(")
_TEXT = re.compile(
    r"\bre\.\w+\(|\.(?:r?strip|lstrip|splitlines|lower|upper|title|isalpha|isalnum|isdigit)\(|\b(?:ord|chr)\("
    r"|\.r?split\((?:\)|None|[\"'])|\.(?:replace|join)\("
)
# All that a line does is to make one array of values that have a name: of Python's own, it takes them one by one.
_VALUES = re.compile(
    r"^(?:\w+\s*=\s*|return\s+|yield\s+)(?:torch\.(?:as_)?tensor|(?:np|numpy)\.(?:as)?array)"
    r"\(\w+(?:,\s*(?:dtype=)?[\w.]+)?\)(?:\.\w+\([\w.]*\))*$"
)
_SHOWN = {"image": _IMAGE, "table": _TABLE, "parsing": _PARSING, "text": _TEXT, "values": _VALUES}
_LOOP = r"^(?:async )?(?:for|while)\b|\bfor\b.+\bin\b"
_HEAD = r"^(?:for|while)\b.*:\s*(?:#.*)?$"
_COMPREHENSIONS = frozenset({"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"})
_PER_SAMPLE = frozenset({"__iter__", "__next__", "__getitems__"})  # their own loop goes over samples, not over values
_CALL = r"([A-Za-z_][\w.]*|[\])]\.\w+)\s*\("
_KEYWORDS = frozenset(
    {"if", "elif", "else", "in", "and", "or", "not", "return", "yield", "lambda", "while", "for", "is"}
)
_OF_PYTHON = re.compile(
    r"^(?:abs|all|any|bool|bytes|chr|dict|divmod|enumerate|float|frozenset|hash|int|isinstance|len|list|max|min|ord|pow"
    r"|range|reversed|round|set|sorted|str|sum|tuple|zip|math\.\w+"
    r"|.*\.(?:append|extend|get|items|keys|values|count|index|pop|add|setdefault))$"
)
_OF_ARRAYS = r"^(?:np|numpy|torch)\.|\.(?:item|tolist|sum|mean|max|min)$"
_COUNTER = r"(?:async )?for (?:(\w+)\b.* in range\(|(\w+), .* in enumerate\()"
_INDEX = re.compile(r"[ijkmn]|(?:item_?)?(?:idx|index|ix|no|num|number)")  # names that numbers alone have
_SCALAR_PARTS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Name, ast.Load,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_ARITHMETIC = r"[-+*/@]"
# torch's own samplers draw the order of the samples: in the training process, also where workers make these.
_SAMPLER = r"(^|/)torch/utils/data/sampler\.py$"


class SampledLine(NamedTuple):
    """A line of the user's own."""

    text: str
    function: str
    in_loop: bool = False  # of the function's own
    heads: tuple[str, ...] = ()  # of the loops around it


def sample_work(line: SampledLine) -> str:
    """Return what a line does: "image", "table", "parsing", "text", "values", "loop"; "" where its text shows none."""
    for work, shown in _SHOWN.items():
        if shown.search(line.text):
            return work
    known = all(_OF_PYTHON.search(call) or re.search(_OF_ARRAYS, call) for call in _calls(line.text))
    is_of_samples = line.function in _PER_SAMPLE
    is_loop = line.function in _COMPREHENSIONS or (line.in_loop and not is_of_samples)
    is_loop |= bool(re.search(_LOOP, line.text)) and not (is_of_samples and re.match(_HEAD, line.text))
    return "loop" if known and is_loop else ""


def holds_lock(line: SampledLine) -> bool:
    """Return whether a line computes in Python for certain, as Python's own calls in a loop and parsers do.

    NumPy and tensors may give the lock free, and arithmetic may be theirs, unless it is that of a loop's own counter.
    Python takes turns where a loop jumps back: the sampler sees its head where the body held the lock.
    """
    work, calls, text = sample_work(line), _calls(line.text), line.text
    of_python = all(map(_OF_PYTHON.search, calls))
    if re.match(_HEAD, text):
        return of_python
    if work != "loop":
        return work in ("table", "parsing", "text")
    return bool(text) and of_python and bool(calls or not re.search(_ARITHMETIC, text) or _counts(line))


def _counts(line: SampledLine) -> bool:
    """Return whether a statement computes with the counters of its loops, indices and constants alone."""
    statement = parsed_statement(line.text)
    if not isinstance(statement, ast.Assign | ast.AugAssign):
        return False
    parts = list(ast.walk(statement.value))
    counters = {name for head in line.heads if (found := re.match(_COUNTER, head)) for name in found.groups() if name}
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    target = statement.target if isinstance(statement, ast.AugAssign) else None
    own = {target.id} if isinstance(target, ast.Name) else set()
    others = names - counters - own
    plain = all(isinstance(part, _SCALAR_PARTS) for part in parts)
    return plain and bool(names & counters) and all(map(_INDEX.fullmatch, others))


def _calls(text: str) -> list[str]:
    return [name for name in re.findall(_CALL, text.partition("#")[0]) if name not in _KEYWORDS]


def work_facts(
    t: Tables,
    seen: Mapping[tuple[str, int, str], int],
    total: int,
    slow: Sequence[tuple[str, int]],
    choosing: Set[tuple[str, int]] = frozenset(),
) -> Facts:
    """Return what the slow lines do, whether loading holds Python's lock, and where samples draw.

    Args:
        t: tables of one rank.
        seen: how often the sampler saw each file, line and function within loading, those left out in which it waited.
        total: samples within loading, those included.
        slow: file and line of those that most of the loading is spent on, if any, the one that is named first.
        choosing: file and line of those that choose the samples.
    """
    lines = {}
    for file, line, function in seen:
        around = [head for head, last in t.capture.loops.get(file, ()) if head < line <= last]
        text, *heads = (t.capture.lines.get((file, each), "").strip() for each in (line, *around))
        lines[file, line, function] = SampledLine(text, function, bool(around), tuple(heads))
    locked = sum(num for place, num in seen.items() if holds_lock(lines[place]))
    drawn = (place for place in seen if RANDOM_DRAW.search(lines[place].text) and place[:2] not in choosing)
    # Workers change nothing of what is drawn from a seed of each sample, or for the samples' order.
    seeded = {
        place for place in seen if place[1] in t.capture.seeded.get(place[0], ()) or re.search(_SAMPLER, place[0])
    }
    draws = sorted(set(drawn) - seeded)
    named = [place[:2] for place in draws] or [
        (file, line) for file in sorted({file for file, _ in slow}) for line in t.capture.draws.get(file, ())
    ]
    # The file that makes the loader may make the samples' transforms too.
    made = t.capture.known.loader.made
    loaded = [one for one in t.capture.known.loaded.expressions if (one.file, one.line) in slow]
    varies = bool(loaded) and not any(one.is_repeated for one in loaded)  # where the samples were loaded again
    beside = t.capture.draws.get(made.file, ()) if made is not None else ()
    return {
        "holds_lock": 2 * locked >= max(total, 1),  # with less of it a thread has something to gain
        **({"draws": {"file": named[0][0], "line": named[0][1]}} if named else {}),
        **({"drawn_beside": {"file": made.file, "line": beside[0]}} if made is not None and beside else {}),
        "behind_draw": (varies and bool(named))
        or any(_is_behind(place, draw) for place in seen if place[:2] in slow for draw in draws),
    }


def _is_behind(place: tuple[str, int, str], draw: tuple[str, int, str]) -> bool:
    """Return whether a line stands at a draw of random numbers or below it, in the same function."""
    if place[0] != draw[0] or place[1] < draw[1]:
        return False
    inner = bool({place[2], draw[2]} & _COMPREHENSIONS) and place[1] - draw[1] <= MAX_LINES_APART
    return place[2] == draw[2] or inner
