"""Products of which only sums are read: a product is linear, so that its argument can be summed up before it.

The mean over positions of what a linear layer or a 1x1 convolution makes is what it makes of the mean: it multiplies
one row instead of one for each position. Sums over columns need the sums of the weights alone. A single number is left
out: the sum of all that a model returns stands for a loss where a script only measures.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name, is_product
from diagnose.dataflow.rows import mapped_rows
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["SummedProduct", "summed_products"]

_SUMS = frozenset({"sum", "mean"})
MIN_SUMMED = 4  # numbers that become one: of fewer the argument may be larger than the result


class SummedProduct(NamedTuple):
    """Products of one line, and what adds up their results."""

    work: Work
    line: Frame | None  # of the products
    sum_line: Frame | None
    num_summed: int  # numbers that become one, where that takes longest
    avoidable: float  # share of the work's time


def summed_products(graph: Graph) -> tuple[SummedProduct, ...]:
    """Return the last step's products of which only sums or means are read, the longest first."""
    found: dict[tuple[Frame | None, Frame | None], dict[int, tuple[int, float]]] = defaultdict(dict)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        is_linear = is_product(one) or mapped_rows(one) is not None
        if not is_linear or one.phase in ("backward", "optimizer") or len(one.writes) != 1:
            continue
        reader, use = _reader(graph, one.writes[0])
        size = num_elements(reader.writes[0].shape) if reader is not None else 1
        num = num_elements(use.shape) // max(size, 1)
        if reader is not None and size > 1 and num >= MIN_SUMMED and (saved := _saved(graph, i, use, num)) > 0:
            found[one.place, reader.place][i] = num, saved
    records = []
    for (line, sum_line), each in found.items():
        work = graph.work(j for i in each for j in (i, *graph.backward[i]))
        avoidable = sum(saved for _, saved in each.values()) / max(graph.time(work.operators), 1)
        most = max(each, key=lambda i: each[i][1])
        records.append(SummedProduct(work, line, sum_line, each[most][0], avoidable))
    return tuple(sorted(records, key=lambda one: -one.work.share * one.avoidable))


def _reader(graph: Graph, use: Use) -> tuple[Operator | None, Use]:
    """Return what alone reads a result before the backward pass if it is a sum, with what it sees of it.

    A bias may be added in between.
    """
    while not graph.lives_on[use.value] and graph.later[use.value] < 0:
        readers = [j for j in graph.readers[use.value] if graph.operators[j].phase != "backward"]
        one = graph.operators[readers[0]] if len(readers) == 1 else None
        if one is None or len(one.writes) != 1:
            break
        seen = next(each for each in one.reads if each.value == use.value)
        if base_name(one) in _SUMS:
            is_whole = num_elements(seen.shape) == num_elements(graph.values[use.value].shape) and all(seen.stride)
            return (one if is_whole else None), seen
        bias = next((each for each in one.reads if each.value != use.value), None)
        if base_name(one) != "add" or bias is None or graph.values[bias.value].role != "parameter":
            break
        use = one.writes[0]
    return None, use


def _saved(graph: Graph, i: int, use: Use, num: int) -> float:
    """Return what a product of sums saves, ns: its argument is read once for that, as its result is now."""
    one = graph.operators[i]
    now = graph.time((i, *graph.backward[i])) * (1 - 1 / num)
    reads = sum(num_elements(each.shape) for each in one.reads)
    reader = next(j for j in graph.readers[use.value] if base_name(graph.operators[j]) in _SUMS)
    return now - graph.time([reader]) * max(reads / max(num_elements(use.shape), 1) - 1, 0.0)
