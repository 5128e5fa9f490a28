"""Reductions over ranks of which only a later sum is read: one reduction of that sum would do.

A sum over ranks is linear: what is reduced, added to another reduced value and reduced again, or added up after each
was reduced, equals one reduction of what the rank has added up itself. The data flow shows what each reduced value goes
into. A norm, an optimizer or Python that reads it before the others have been added to it needs its reduction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from diagnose.model.dataflow import Dataflow, Operator, Use
from diagnose.model.shapes import num_elements

_REDUCES = ("allreduce", "all_reduce", "reduce_scatter")
_ADDS = frozenset({"add", "sub", "_foreach_add", "_foreach_sub"})
_SCALES = frozenset({"mul", "div", "neg", "clone", "_to_copy", "_foreach_mul", "_foreach_div", "wait_tensor"})
_COPIES = frozenset({"copy", "_foreach_copy"})
_NONE: frozenset[int] = frozenset()


class ReducedAgain(NamedTuple):
    """Reductions of the last step that one after the others would replace."""

    last: Operator  # the reduction that is needed
    num: int  # reductions whose results are one sum, with it
    share: float  # of the step's reductions of these tensors that are not needed


class _Contents:
    """Which reductions the parts of each storage hold."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._parts: dict[int, dict[tuple[int, int], frozenset[int]]] = defaultdict(dict)

    def of(self, use: Use) -> frozenset[int]:
        """Return the reductions that a part of a storage holds."""
        begin, end = _extent(use)
        parts = self._parts[self._flow.values[use.value].storage]
        return _NONE.union(*(held for (b, e), held in parts.items() if b < end and begin < e))

    def write(self, use: Use, held: frozenset[int]) -> None:
        """Take down what is written into a part of a storage."""
        begin, end = _extent(use)
        parts = self._parts[self._flow.values[use.value].storage]
        for b, e in [each for each in parts if each[0] < end and begin < each[1]]:
            old = parts.pop((b, e))
            parts |= {part: old for part in ((b, begin), (end, e)) if part[0] < part[1]}
        parts[begin, end] = held


def reduced_again(flow: Dataflow) -> ReducedAgain | None:
    """Return the reductions of the last step of which only a later sum is read, None where there are none."""
    step = max((one.step for one in flow.operators), default=0)
    contents, kinds = _Contents(flow), dict[int, tuple[object, ...]]()
    summed, needed, num = set[int](), set[int](), 1
    for i, one in enumerate(flow.operators):
        if one.step != step or one.is_view:
            continue
        if _reduces(one):
            kinds[i] = (one.name, *(use.shape for use in one.reads))
        for reads, write in _calls(flow, one):
            held = [contents.of(use) for use in reads]
            if one.is_collective or _is_linear(one, held):
                whole = _NONE.union(*held, (i,) if i in kinds else ())
                summed |= {each for each in whole if any(kinds[n] == kinds[each] for n in whole if n > each)}
                num = max(num, *Counter(kinds[each] for each in whole).values(), 1)
            else:
                whole = _NONE
                needed |= {
                    each for part in held for each in part if all(kinds[n] != kinds[each] for n in part if n > each)
                }
            if write is not None:
                contents.write(write, whole)
    avoidable = summed - needed
    if not avoidable:
        return None
    alike = [i for i in kinds if any(kinds[i] == kinds[each] for each in avoidable)]
    return ReducedAgain(flow.operators[alike[-1]], num, len(avoidable) / len(alike))


def _reduces(one: Operator) -> bool:
    """Return whether an operator adds up over ranks."""
    return one.is_collective and any(part in one.name for part in _REDUCES)


def _calls(flow: Dataflow, one: Operator) -> Iterator[tuple[tuple[Use, ...], Use | None]]:
    """Yield what an operator writes, each with what it is made of; a list of tensors gives one at a time."""
    num = len(one.writes)
    for k, write in enumerate(one.writes):
        reads = one.reads[k::num] if "_foreach_" in one.name and len(one.reads) % num == 0 else one.reads
        if _name(one) in _COPIES:
            source = flow.values[reads[-1].value]  # a backend copies what it reduced from a buffer of its own
            reads = (write,) if source.producer < 0 and source.role == "input" else reads[-1:]
        elif one.name.rpartition(".")[2].endswith("out"):
            reads = reads[:-1]  # the target, which is overwritten
        yield reads, write
    if not num:
        yield one.reads, None


def _name(one: Operator) -> str:
    """Return an operator's plain name without the mark of a change in place."""
    return one.name.rpartition("::")[2].partition(".")[0].removesuffix("_")


def _is_linear(one: Operator, held: list[frozenset[int]]) -> bool:
    name = _name(one)
    return name in _ADDS or name in _COPIES or (name in _SCALES and sum(map(bool, held)) < 2) or not any(held)


def _extent(use: Use) -> tuple[int, int]:
    """Return the first element of a storage that a view sees, and the one after the last."""
    if not num_elements(use.shape):
        return use.offset, use.offset
    return use.offset, use.offset + 1 + sum((n - 1) * abs(s) for n, s in zip(use.shape, use.stride, strict=True))
