"""Loops: one line that runs the same operators again and again, and whether its calls depend on each other.

Calls that follow from each other through different weights are the layers of a model, and no loop. A line that runs the
backward pass between its calls accumulates gradients or takes several steps. Both are left out. A sum of what the calls
return, or a list of it, is no dependence: it can be taken after them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, Work, base_name, is_product
from diagnose.dataflow.recurrences import recurrence_of
from diagnose.model.dataflow import Frame
from diagnose.model.limits import FEWEST, NEARLY_ALL

__all__ = ["Loop", "loops"]

MAX_INDEPENDENT = 0.25  # longest chain, of the calls: experts in each of several layers are independent
# These add to what earlier calls left, in any order, or write beside it.
_COLLECTS = frozenset({"add", "sub", "mul", "maximum", "minimum", "logaddexp", "cat", "copy", "index_put", "index_add"})

Site: TypeAlias = tuple[Frame, ...]  # a line and its callers
# A few operators compute all turns; or only what its turns do not hand on can be computed for all of them at once.
LoopKind: TypeAlias = Literal["independent", "recurrent", "separable"]


class Loop(NamedTuple):
    """Lines of one function that run the same operators equally often, those of the backward pass included."""

    kind: LoopKind
    work: Work  # of a separable loop: what does not have to run turn by turn
    line: Frame  # the first one in the body
    called: tuple[Frame, ...]  # lines that all of it is called through, outermost first: the loop may be in one
    num_calls: int
    longest_chain: int  # of calls, each of which needs the one before
    same_shapes: bool  # of all calls: they can be stacked
    same_weights: bool  # otherwise their weights have to be stacked too
    of_model: bool  # its turns read parameters or gradients outside of modules: averages, norms, penalties
    overhead_share: float  # what calling operators costs at least, of the step: what fewer calls would save
    with_gradients: bool = False  # a backward pass goes through it
    form: str = ""  # of a recurrent loop: the closed form of what its turns hand on (Recurrence)
    moves: Literal["", "before", "after"] = ""  # of a separable one: where its line can go


def loops(graph: Graph) -> tuple[Loop, ...]:
    """Return the loops of the last step, the longest first."""
    sites: dict[Site, list[int]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        stack = graph.operators[i].stack
        for level in range(len(stack)):
            sites[stack[level:]].append(i)
    bodies: dict[tuple[str, Site, int], list[Site]] = defaultdict(list)
    counts = {site: _num_calls(graph, site, rows) for site, rows in sites.items()}
    for site, num in counts.items():
        if num >= FEWEST * max(counts.get(site[1:], 0), 1):
            bodies[site[0].function, site[1:], num].append(site)
    found: dict[Site, Loop] = {}
    each = [(num, body) for (_, _, num), lines in bodies.items() for body in _interleaved(graph, lines, sites)]
    for num, body in sorted(each, key=lambda item: len(item[1][0])):
        caller = body[0][1:]
        if not any(caller[level:] in found for level in range(len(caller))):
            around = [site for site, rows in sites.items() if site[0].function == body[0][0].function]
            around = [
                site
                for site in around
                if site[1:] == caller and any(2 * len(each) >= num for each in _calls(graph, sites[site]))
            ]
            one_loop = _loop(graph, num, body, [i for site in body for i in sites[site]], around)
            if one_loop is not None:
                found |= dict.fromkeys(body, one_loop)
    return tuple(sorted(dict.fromkeys(found.values()), key=lambda one: -one.work.share))


def _interleaved(graph: Graph, lines: list[Site], sites: Mapping[Site, list[int]]) -> list[list[Site]]:
    """Return groups of lines that run in turns with each other: one loop after the other is two."""
    ran = []
    for site in lines:
        mine = [i for i in sites[site] if graph.operators[i].phase != "backward"]
        ran.append((mine[0], mine[-1], site))
    found, end = list[list[Site]](), -1
    for first, last, site in sorted(ran, key=lambda each: each[:2]):
        if first > end:
            found.append([])
        found[-1].append(site)
        end = max(end, last)
    return found


def _calls(graph: Graph, rows: list[int]) -> list[list[int]]:
    """Return the forward operators of each name and stack, in the order of their time."""
    calls: dict[tuple[str, Site], list[int]] = defaultdict(list)
    for i in rows:
        if graph.operators[i].phase != "backward" and graph.computes(i):
            calls[graph.operators[i].name, graph.operators[i].stack].append(i)
    return sorted(calls.values(), key=graph.time, reverse=True)


def _num_calls(graph: Graph, site: Site, rows: list[int]) -> int:
    """Return how often a line runs nearly all that it runs, 0 if a line that it calls runs more rarely.

    What the line itself runs once may stand around a comprehension.
    """
    calls = sorted(_calls(graph, rows), key=len, reverse=True)
    below = [each for each in calls if graph.operators[each[0]].stack != site]
    needed, num = NEARLY_ALL * sum(map(len, below or calls)), 0
    for each in below or calls:
        num += len(each)
        if num >= needed:
            return len(each) if all(2 * len(other) >= len(each) for other in below) else 0
    return 0


def _loop(graph: Graph, num: int, body: list[Site], rows: list[int], around: list[Site]) -> Loop | None:
    """Return the loop of some lines that run so often; ``around`` are those that may stand between them too."""
    every = _calls(graph, rows)
    calls = [each for each in every if 2 * len(each) >= num]
    rarely = {i for each in every if 2 * len(each) < num for i in each}
    rows = [i for i in rows if i not in rarely and graph.operators[i].forward not in rarely]
    members = next(each for each in calls if len(each) == num)
    if any(graph.operators[i].phase == "backward" for i in range(members[0], members[-1])):
        return None
    collected = {value for each in calls for value in _collected(graph, each, rows)}
    chain = max(num * _longest_chain(graph, each, collected) // len(each) for each in calls)
    kind: LoopKind = "independent"
    moves: Literal["", "before", "after"] = ""
    form, line = "", min((site[0] for site in body), key=lambda frame: frame.line)
    if chain > MAX_INDEPENDENT * num:
        if any(len(_largest_layer(graph, each)) < FEWEST for each in calls):
            return None
        run = _longest_run(graph, around, [i for each in calls for i in each])
        if len(set(run) & set(members)) < FEWEST:
            return None
        one = recurrence_of(graph, run, collected)
        kind, form = "recurrent", one.form
        if not form:
            movable = one.before | one.after
            mine = {i for i in rows if graph.operators[i].phase != "backward" and graph.operators[i].stack in movable}
            moving = {i for i in rows if i in mine or graph.operators[i].forward in mine}  # with their backward passes
            staying = {frame for i in set(rows) - moving if graph.computes(i) for frame in graph.operators[i].stack}
            rows = sorted(moving)
            if not rows:
                return None
            kind, line = "separable", graph.work(rows).lines[0]
            # A line that others call too moves with the call that is not theirs.
            stack = next(graph.operators[i].stack for i in rows if graph.operators[i].place == line)
            line = next((frame for frame in stack if frame not in staying), line)
            moves = "after" if any(line in site for site in one.after) else "before"
    below: list[tuple[Frame, ...]] = []  # what all of the site's operators are called through
    if len(body) == 1:
        stacks = {graph.operators[i].stack[::-1][len(body[0]) :] for each in calls for i in each}
        below = list(takewhile(lambda lines: len(set(lines)) == 1, zip(*stacks, strict=False)))
    computing = [i for i in rows if graph.computes(i)]
    # Outside of modules operators work on elements of a parameter or a gradient.
    outside = (i for i in computing if not graph.operators[i].module and graph.operators[i].phase != "backward")
    needed = ({graph.values[v].role for v in graph.needs[i]} for i in outside if not is_product(graph.operators[i]))
    viewing = graph.time(i for i in rows if graph.operators[i].is_view)
    return Loop(
        kind=kind,
        work=graph.work(rows),
        line=line,
        called=tuple(lines[0] for lines in below),
        num_calls=num,
        longest_chain=chain,
        same_shapes=len({tuple(use.shape for use in graph.operators[i].reads) for i in members}) == 1,
        same_weights=len(_largest_layer(graph, members)) == num,
        of_model=2 * sum(not roles.isdisjoint(("parameter", "gradient")) for roles in needed) >= num,
        overhead_share=(1 - 1 / num)
        * (len(computing) * graph.cheapest_ns() + viewing)
        / max(graph.step_ns[graph.last_step], 1),
        with_gradients=any(graph.backward[i] for i in computing),
        form=form,
        moves=moves,
    )


def _longest_run(graph: Graph, sites: list[Site], operators: list[int]) -> list[int]:
    """Return what runs in the longest of the times that a loop is run, as a layer of several does; no views.

    That is what the lines from the first to the last of these call, one after the other.
    """
    caller, lines = sites[0][1:], [site[0] for site in sites]
    first, last = min(each.line for each in lines), max(each.line for each in lines)

    def is_inside(operator: int) -> bool:
        stack = graph.operators[operator].stack
        site = stack[len(stack) - len(caller) - 1 :] if len(stack) > len(caller) else ()
        return (
            bool(site)
            and site[1:] == caller
            and site[0].function == lines[0].function
            and first <= site[0].line <= last
        )

    mine = [
        i
        for i in range(min(operators), max(operators) + 1)
        if graph.operators[i].phase != "backward" and not graph.operators[i].is_view
    ]
    return max((list(run) for is_own, run in groupby(mine, is_inside) if is_own), key=len)


def _collected(graph: Graph, calls: list[int], rows: Sequence[int]) -> set[int]:
    """Return the values that hand a sum, or a list of results, from one call to the next, and nothing else reads."""
    mine, inside = set(calls), set(rows)
    if base_name(graph.operators[calls[0]]) not in _COLLECTS:
        return set()
    made = [use.value for i in calls for use in graph.operators[i].writes]
    others = {i for value in made for i in graph.readers[value]} & inside - mine
    return set() if any(graph.operators[i].phase != "backward" for i in others) else set(made)


def _largest_layer(graph: Graph, calls: list[int]) -> list[int]:
    """Return the calls of the module and with the parameters that most of them have."""
    layers: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i in calls:
        one = graph.operators[i]
        weights = tuple(use.value for use in one.reads if graph.values[use.value].role == "parameter")
        layers[one.module, weights].append(i)
    return max(layers.values(), key=len)


def _longest_chain(graph: Graph, members: Sequence[int], collected: Collection[int]) -> int:
    """Return how many of some operators follow from each other at most."""
    counted, depth, handed_on = set(members), dict[int, int](), frozenset(collected)
    for i in range(members[0], members[-1] + 1):
        before = (depth.get(graph.values[value].producer, 0) for value in graph.needs[i] if value not in handed_on)
        depth[i] = max(before, default=0) + (i in counted)
    return max(depth.values())
