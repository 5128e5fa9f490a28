"""The time in which Python makes what operators then bring in: arrays of NumPy, lists of numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.idioms.source import Source, last_name, names_in, source_at
from diagnose.analyzers.common.locate import seen_during
from diagnose.model.assignments import StoredSource, assigned, changed_in_place, name_of
from diagnose.model.dataflow import Frame
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, union
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.tables.host import outermost

_TAKES_OVER = frozenset({"from_numpy", "tensor", "as_tensor", "asarray", "Tensor", "FloatTensor", "LongTensor"})


class Making(NamedTuple):
    """The lines that make a value, and the functions that these call, by their names."""

    lines: frozenset[tuple[str, int]]
    functions: frozenset[str]

    def makes(self, place: tuple[str, int, str]) -> bool:
        """Return whether a sampled line is one of them, or in one of the functions."""
        return place[:2] in self.lines or place[2] in self.functions


def making_time(t: Tables, flow: Flow, operators: tuple[int, ...]) -> Intervals:
    """Return what Python takes, before it calls them, to make what some operators bring in.

    Of each interval since the operator before it is the share of the samples that see the lines which make the value.
    """
    events = t.trace.events
    rows = t.host_rows(Kind.OP)
    outer = outermost(t.trace, rows[events.thread[rows] == t.main])
    found = [EMPTY]
    for place, group in _by_place(flow, operators).items():
        mine = np.sort(np.concatenate([flow.rows[i] for i in group]))
        called = np.searchsorted(events.start[outer], events.start[mine], side="right") - 1  # each is of one of these
        called = called[called > 0]
        start, end = events.end[outer[called - 1]], events.start[outer[called]]
        seen = seen_during(t, Intervals(start, end))
        making = lines_that_make(flow.source.whole, place)
        share = sum(num for at, num in seen.items() if making.makes(at)) / max(seen.total(), 1)
        found.append(Intervals(end - ((end - start) * share).astype(np.int64), end))
    return union(*found)


def _by_place(flow: Flow, operators: tuple[int, ...]) -> Mapping[tuple[Frame, ...], list[int]]:
    found: dict[tuple[Frame, ...], list[int]] = {}
    for i in operators:
        if flow.found.graph.brings_in(i) and len(flow.rows[i]):
            found.setdefault(flow.found.graph.operators[i].stack, []).append(i)
    return found


def lines_that_make(sources: Mapping[str, StoredSource], stack: tuple[Frame, ...]) -> Making:
    """Return what makes the array that the innermost line of a stack takes over, as far as the sources are known.

    These are the lines of its function that its names come from, and the functions that they call. If it is an argument
    of the function it is made by the caller.
    """
    lines, called, wanted = set[tuple[str, int]](), set[str](), _TAKES_OVER
    for frame in stack:
        source = source_at(frame.line, sources.get(frame.file, StoredSource()).functions, {}, ())
        if source is None:
            break
        calls = [call for call in source.calls() if last_name(call.func) in wanted]
        names = {name for call in calls for part in _given(call) for name in names_in(part)}
        called |= {last_name(each.func) for call in calls for part in _given(call) for each in _calls(part)}
        nodes = list(_makers(source, names))
        lines |= {(frame.file, source.line(node)) for node in nodes} | {(frame.file, frame.line)}
        called |= {last_name(each.func) for node in nodes for each in _calls(node)}
        if called or nodes or not names & source.given.keys():
            break
        wanted = frozenset({frame.function})
    texts = {file: stored.functions for file, stored in sources.items() if any(file == each for each, _ in lines)}
    return Making(frozenset(lines), frozenset(_with_called(texts, called)))


def _makers(source: Source, names: set[str]) -> Iterator[ast.stmt]:
    """Yield the statements of the function that give these names their values, or change them in place."""
    left, seen = list(names), set[str]()
    statements = [node for node in ast.walk(source.around) if isinstance(node, ast.stmt)]
    while left:
        name = left.pop()
        for node in statements if name not in seen else ():
            parts = [node, *ast.walk(node)] if not hasattr(node, "body") else [node]
            pairs = [each for part in parts for each in assigned(part) if name_of(each.target) == name]
            if pairs or name in map(changed_in_place, parts):
                yield node
                left += [each for pair in pairs if pair.value is not None for each in names_in(pair.value)]
                left += names_in(node) if not pairs and not hasattr(node, "body") else ()
        seen.add(name)


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _with_called(sources: Mapping[str, tuple[tuple[int, str], ...]], names: set[str]) -> set[str]:
    """Return names of functions with those that these call."""
    bodies: dict[str, set[str]] = {}
    for _, text in (each for functions in sources.values() for each in functions):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in tree.body[:1]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                bodies.setdefault(node.name, set()).update(last_name(call.func) for call in _calls(node))
    found, left = set[str](), list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += bodies.get(name, ())
    return found
