"""What the turns of a loop hand on, and whether one operator computes it for all of them.

The operators of all turns are folded into those of one. Groups that need each other around the loop have to run turn by
turn; the rest can run for all turns at once, before the loop or after it. What a group hands on has a closed form if it
is the state of a cell as a layer of torch computes it, a sum of scaled terms or a running extreme.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import gcd
from typing import NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, base_name, is_copy, is_product, reached
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["Recurrence", "recurrence_of"]

_SUMS = frozenset({"add", "sub", "rsub", "neg"})
_SCALES = frozenset({"mul", "div", "lerp", "addcmul"})
_EXTREMES = frozenset({"maximum", "minimum", "logaddexp"})
_ACTIVATIONS = ("sigmoid", "tanh", "relu")
_FUSED_CELLS = {"_thnn_fused_lstm_cell": "LSTM", "_thnn_fused_gru_cell": "GRU"}
# What a turn of torch's cells computes of its state, in units of the state's size: products, sigmoid, tanh, relu, and
# products of gates. Those of a GRU's last line are one of a difference, or two that are added.
_CELLS: dict[tuple[float, ...], str] = {
    (4, 3, 2, 0, 3): "LSTM",
    (3, 2, 1, 0, 2): "GRU",
    (3, 2, 1, 0, 3): "GRU",
    (1, 0, 1, 0, 0): "RNN",
    (1, 0, 0, 1, 0): "RNN",
}

_Group: TypeAlias = frozenset[int]  # of numbers of folded operators
_Site: TypeAlias = tuple[Frame, ...]


class Recurrence(NamedTuple):
    """What a loop's turns hand on, and which of its statements do not depend on the turn before."""

    form: str  # "LSTM", "GRU" or "RNN", the layer that computes all turns; "scan" for sums and extremes; else ""
    before: frozenset[_Site]  # can run for all turns before the loop
    after: frozenset[_Site]  # need what is handed on, and can run for all turns after the loop


class _Turns:
    """The operators of a loop, folded: which of one turn each is, and in which turn it runs."""

    def __init__(self, graph: Graph, operators: Iterable[int], collected: Collection[int]) -> None:
        self.graph, self.collected = graph, collected
        self.folded, self.turn, self.members = dict[int, int](), dict[int, int](), list[list[int]]()
        lists: dict[tuple[str, _Site], list[int]] = defaultdict(list)
        for i in operators:
            lists[graph.operators[i].name, graph.operators[i].stack].append(i)
        # Most operators run as often in each turn, if a line's operators run so often in all.
        counts = [len(each) for each in lists.values()]
        tried = {gcd(one, other) for one in counts for other in counts}
        self.num = max(tried, key=lambda num: (num > 2, sum(each for each in counts if each % num == 0), num))
        for each in lists.values():
            times, rest = divmod(len(each), self.num)
            for mine in [each] if rest else [each[k::times] for k in range(times)]:
                self.folded |= dict.fromkeys(mine, len(self.members))
                self.turn |= {i: turn for turn, i in enumerate(mine)}
                self.members.append(mine)

    def edges(self) -> list[set[int]]:
        """Return which folded operators need each one. All need what Python reads: it may decide on what follows."""
        found: list[set[int]] = [set() for _ in self.members]
        for i, one in self.folded.items():
            for value in self.graph.needs[i]:
                made_by = self.graph.values[value].producer
                if made_by in self.folded and value not in self.collected:
                    found[self.folded[made_by]].add(one)
            if self.graph.operators[i].reads_host:
                found[one].update(range(len(found)))
        return found


def recurrence_of(graph: Graph, operators: Sequence[int], collected: Collection[int]) -> Recurrence:
    """Return what the turns of a loop hand on; ``operators`` are all that these run, in order, without views."""
    turns = _Turns(graph, operators, collected)
    edges = turns.edges()
    groups = [group for group in _groups(edges) if len(group) > 1 or any(one in edges[one] for one in group)]
    forms = [_form(_Body(turns, group)) for group in groups]
    handed_on = frozenset[int]().union(*groups)
    sites = {one: {graph.operators[i].stack for i in turns.members[one]} for one in range(len(edges))}
    bound = {site for one in handed_on for site in sites[one]}
    late = {site for one in reached(handed_on, edges.__getitem__) for site in sites[one]}
    free = {graph.operators[i].stack for i in operators} - bound
    form = max(forms, key=lambda each: each != "scan", default="") if all(forms) else ""
    return Recurrence(form, frozenset(free - late), frozenset(free & late))


def _groups(edges: Sequence[Collection[int]]) -> Iterator[_Group]:
    """Return the strongly connected components of a graph, by Kosaraju's algorithm."""
    order, seen = list[int](), set[int]()
    for root in range(len(edges)):
        path = [(root, iter(edges[root]))] if root not in seen else []
        seen.add(root)
        while path:
            new = next((each for each in path[-1][1] if each not in seen), None)
            if new is None:
                order.append(path.pop()[0])
            else:
                seen.add(new)
                path.append((new, iter(edges[new])))
    back: list[list[int]] = [[] for _ in edges]
    for one, others in enumerate(edges):
        for each in others:
            back[each].append(one)
    taken = set[int]()
    for root in reversed(order):
        if root not in taken:
            group = frozenset(reached([root], lambda one: set(back[one]) - taken))
            taken.update(group)
            yield group


class _Body:
    """A group of folded operators, shown by those of the second turn: the first one reads what the loop starts with."""

    def __init__(self, turns: _Turns, group: _Group) -> None:
        self.turns, self.group = turns, group
        self.is_regular = turns.num > 2 and all(len(turns.members[one]) == turns.num for one in group)
        self.second = [turns.members[one][1] for one in group] if self.is_regular else []
        self.operators = [turns.graph.operators[i] for i in self.second]

    def has(self, use: Use) -> bool:
        """Return whether one of the group made a value."""
        return self.turns.folded.get(self.made_by(use), -1) in self.group

    def made_by(self, use: Use) -> int:
        """Return the operator that made a value."""
        return self.turns.graph.values[use.value].producer

    def is_old(self, use: Use) -> bool:
        """Return whether one of the group made a value in the turn before."""
        return self.has(use) and self.turns.turn[self.made_by(use)] == 0

    def is_state(self, use: Use) -> bool:
        """Return whether one of the group's values is of the turn before, or joins or copies such ones."""
        if self.is_old(use):
            return True
        made_by = self.turns.graph.operators[self.made_by(use)]
        joins = base_name(made_by) == "cat" or is_copy(made_by)
        return joins and all(self.is_state(each) for each in made_by.reads if self.has(each))

    def varies(self, operator: int, k: int) -> bool:
        """Return whether an argument is not the same in the next turn."""
        graph, turns = self.turns.graph, self.turns
        one, following = graph.operators[operator], graph.operators[turns.members[turns.folded[operator]][2]]
        if len(following.reads) != len(one.reads):
            return True
        use, then = one.reads[k], following.reads[k]
        if use.value == then.value:
            return use.offset != then.offset
        return graph.values[use.value].fingerprint != graph.values[then.value].fingerprint

    def of_input(self) -> set[int]:
        """Return the group's sums that what comes in with a turn, and is another one in the next, is added to."""
        graph, found = self.turns.graph, set[int]()
        sums = [i for i in self.second if base_name(graph.operators[i]) in _SUMS or is_copy(graph.operators[i])]
        while True:
            added = {i for i in sums if self.reads_varying(i) or self.reads_made_by(i, found)}
            if {self.turns.folded[i] for i in added} == found:
                return found
            found = {self.turns.folded[i] for i in added}

    def reads_varying(self, operator: int) -> bool:
        """Return whether an argument that the group did not make is not the same in each turn."""
        reads = self.turns.graph.operators[operator].reads
        return any(self.varies(operator, k) for k, use in enumerate(reads) if not self.has(use))

    def reads_made_by(self, operator: int, folded: Collection[int]) -> bool:
        """Return whether an operator reads what one of some folded operators made."""
        reads = self.turns.graph.operators[operator].reads
        return any(self.turns.folded.get(self.made_by(use), -1) in folded for use in reads)


def _form(body: _Body) -> str:
    if not body.is_regular:
        return ""
    names = {base_name(one) for one in body.operators if not is_copy(one)}
    if names <= _SUMS | _SCALES:
        return "scan" if all(_is_linear(body, one) for one in body.operators) else ""
    return "scan" if len(names) == 1 and names <= _EXTREMES else _cell(body)


def _is_linear(body: _Body, one: Operator) -> bool:
    """Return whether what is handed on is only scaled by what is not."""
    inside = [body.has(use) for use in one.reads]
    match base_name(one):
        case "mul":
            return sum(inside) == 1
        case "div":
            return not any(inside[1:])
        case "lerp":
            return not any(inside[2:])
        case "addcmul":
            return sum(inside[1:]) <= 1
    return True


def _cell(body: _Body) -> str:
    """Return the layer of torch whose cell a group is, "" if it is none.

    Its products have the state of the turn before and weights, its gates multiply each other, and what comes in with a
    turn is only added before an activation.
    """
    of_input, computed = body.of_input(), Counter[str]()
    for i, one in zip(body.second, body.operators, strict=True):
        name, inside = base_name(one), [use for use in one.reads if body.has(use)]
        varies = body.reads_varying(i) or body.reads_made_by(i, of_input)
        if is_product(one):
            matrices = all(len(use.shape) <= 2 for use in one.reads)
            fits, name = matrices and not varies and all(map(body.is_state, inside)), "product"
        elif name in _SCALES:
            fits, name = not varies and len(inside) == len(one.reads) > 1, "gate"
        elif name == "cat":
            fits = all(map(body.is_state, inside))
        else:
            fits = name in _SUMS or name in _ACTIVATIONS or name in _FUSED_CELLS or is_copy(one)
        if not fits:
            return ""
        computed[name] += sum(num_elements(use.shape) for use in one.writes)
    if fused := computed.keys() & _FUSED_CELLS.keys():
        return _FUSED_CELLS[min(fused)] if computed.keys() <= {"product", "cat", *fused} else ""
    states = {num_elements(use.shape) for one in body.operators for use in one.reads if body.is_old(use)}
    parts = tuple(computed[name] / max((1, *states)) for name in ("product", *_ACTIVATIONS, "gate"))
    return _CELLS.get(parts, "") if len(states) == 1 else ""
