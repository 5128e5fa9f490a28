"""The catalogue of slow forms of Python: each is a pattern in the tree of the line that samples name.

Each function of ``IDIOMS`` takes the ``Source`` of a line and returns its faster form with the user's own names, None
if the line has no such form. `idiom_facts` tries them on the line at which most of the samples are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from diagnose.analyzers.common.idioms.arrays import cut_of_file, few_of_sorted, growing_array, stacked_arrays
from diagnose.analyzers.common.idioms.draws import weighted_draws
from diagnose.analyzers.common.idioms.host_calls import GoneThrough, observed_at, types_at
from diagnose.analyzers.common.idioms.lists import cut_front, indexed_deque, searched_list
from diagnose.analyzers.common.idioms.observed import observed_idiom
from diagnose.analyzers.common.idioms.once import made_each_time, table_rows
from diagnose.analyzers.common.idioms.source import Idiom, Source, source_at
from diagnose.analyzers.common.locate import MAX_LINES_APART
from diagnose.model.assignments import Binding, StoredSource
from diagnose.model.diagnosis import Facts
from diagnose.model.locations import is_own_file
from diagnose.tables import Tables

__all__ = ["IDIOMS", "CallCause", "call_cause", "idiom_at", "idiom_facts", "idiom_of", "known_idiom", "statement_at"]

IDIOMS: tuple[Callable[[Source], Idiom | None], ...] = (
    weighted_draws,
    cut_front,
    searched_list,
    indexed_deque,
    table_rows,
    growing_array,
    cut_of_file,
    made_each_time,
    few_of_sorted,
    stacked_arrays,
)
MIN_IDIOM_SHARE = 0.3  # of the samples, at the line: with fewer another line takes the time


def idiom_of(source: Source) -> Idiom | None:
    """Return the faster form of a line."""
    return next((found for idiom in IDIOMS if (found := idiom(source)) is not None), None)


class CallCause(NamedTuple):
    """What is wrong with the call of a line."""

    title: str
    text: str
    place: tuple[str, int]


def call_cause(facts: Facts) -> CallCause | None:
    """Return what is wrong with the call of the line that most of the samples are at or near, None if it is unknown."""
    idiom, cause = facts.get("idiom"), facts.get("call_cause")
    is_most = isinstance(idiom, Mapping) and 2 * max(idiom["share"], idiom["share_around"]) > 1
    return cause if is_most and isinstance(cause, CallCause) else None


def idiom_facts(t: Tables, seen: Mapping[tuple[str, int, str], int], total: int | None = None) -> Facts:
    """Return the idiom of the line that samples are at most often, with its share of them; {} if it has none.

    Args:
        t: tables of one rank.
        seen: how often the sampler saw each file, line and function.
        total: samples of which it is a share, those of ``seen`` if it is None.
    """
    all_samples = max(total or sum(seen.values()), 1)
    at, functions = Counter[tuple[str, int]](), dict[tuple[str, int], set[str]]()
    for (file, line, function), num in seen.items():
        at[file, line] += num
        functions.setdefault((file, line), set()).add(function)
    for (file, line), num in at.most_common():
        if num < MIN_IDIOM_SHARE * all_samples:
            break
        if not is_own_file(file):
            continue
        own = functions[file, line]
        sampled = {place[1] for place in seen if place[0] == file and place[2] in own}
        found, call = idiom_at(t, file, line, sampled)
        if found is not None:
            near = (n for (name, other), n in at.items() if name == file and abs(other - line) <= MAX_LINES_APART)
            share = {"file": file, "line": line, "share": num / all_samples, "share_around": sum(near) / all_samples}
            return known_idiom(found, call, {**share, "samples": all_samples})
    return {}


def idiom_at(t: Tables, file: str, line: int, sampled: Set[int]) -> tuple[Idiom | None, GoneThrough | None]:
    """Return the faster form of a line, and what its call was seen to go through.

    ``sampled`` are lines of its function, which stand for it where the recording does not hold it.
    """
    source = statement_at(t, file, line, sampled)
    found, call = idiom_of(source) if source is not None else None, observed_at(t, file, line, source)
    if call is not None and (found is None or call.keeps_result or call.idiom is not None):
        found = observed_idiom(source, call)
    return found, call


def statement_at(t: Tables, file: str, line: int, sampled: Set[int] = frozenset()) -> Source | None:
    """Return the statement at a line, with what the recording shows of its names."""
    around = {head for head, last in t.capture.loops.get(file, ()) if head < line <= last}
    texts = {each: t.capture.lines.get((file, each), "") for each in {line, *sampled, *around}}
    stored = t.capture.sources.get(file, StoredSource())
    deques = [Binding(one.name, "", f"{one.name} = deque()") for one in t.capture.deques.get(file, ())]
    source = source_at(line, stored.functions, texts, stored.bindings or deques)
    return replace(source, seen=types_at(t, file, line)) if source is not None else None


def known_idiom(found: Idiom, call: GoneThrough | None, seen: Facts) -> Facts:
    """Return an idiom with what the samples show of its line, as facts of a finding."""
    cause = CallCause(call.title, call.text, (call.call.file, call.call.line)) if call is not None else None
    return {"idiom": {**found._asdict(), **seen}, **({"call_cause": cause} if cause is not None else {})}
