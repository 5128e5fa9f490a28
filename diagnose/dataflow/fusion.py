"""Fusable clusters: pointwise operators and reductions that hand each other values which nobody else reads.

A fused operator keeps such a value in registers: it need be neither written nor read. What a cluster computes follows
from the operators in it and from what it lies between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, Work, base_name, components, is_copy, is_pointwise, is_reduction, num_bytes
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["Unfused", "fusable_within", "unfused_clusters"]

MIN_FUSED_OPERATORS = 3  # two, as a bias and an activation, are what library modules leave too
MIN_KEYS = 16  # of an attention: a softmax over fewer is a gate or a mixture of few
Form: TypeAlias = Literal[
    "attention", "matrix of distances", "loss", "norm", "rotary embedding", "GELU", "gated activation", "pointwise"
]
_ROOTS, _NORMS = frozenset({"sqrt", "rsqrt", "std", "std_mean"}), frozenset({"linalg_vector_norm", "norm"})

# Operators that make a cluster what it is: of each set, one. The first row that fits counts.
_FORMS: tuple[tuple[Form, tuple[set[str], ...]], ...] = (
    ("pointwise", ({"nll_loss_forward"},)),  # torch's own loss
    ("loss", ({"log_softmax", "_log_softmax", "logsumexp"},)),
    ("loss", ({"softmax", "_softmax"}, {"log"})),
    ("loss", ({"exp"}, {"sum"}, {"log"})),
    (
        "norm",
        ({"rsqrt", "sqrt", "reciprocal", "std", "var"}, {"mean", "var", "std", "var_mean", "std_mean", "sum"}),
    ),
    ("rotary embedding", ({"neg"}, {"cat"}, {"mul"})),
    ("rotary embedding", ({"cos"}, {"sin"}, {"neg"})),  # without a rotated half they are features
    ("gated activation", ({"sigmoid", "silu"}, {"mul"})),
    ("GELU", ({"tanh", "erf"}, {"mul"})),
)


class Unfused(NamedTuple):
    """Clusters of one function and form."""

    kind: Form
    work: Work
    bytes_not_moved: int  # if no value within were written and read
    bytes_moved: int  # by all of the operators
    products: tuple[int, ...] = ()  # of an attention: what makes and takes the scores

    @property
    def avoidable(self) -> float:
        """Return the share of the traffic that a fused operator leaves out."""
        return self.bytes_not_moved / max(self.bytes_moved, 1)


def unfused_clusters(graph: Graph) -> tuple[Unfused, ...]:
    """Return the clusters of the last step, the longest first. A phase's values may be kept for the backward pass."""
    found: dict[tuple[Form, object], list[list[int]]] = {}
    forms: dict[Frame, Form] = {}  # of the lines of the forward pass
    within: set[int] = set()
    for phase, whole, joining in _fusable(graph, lambda _: True):
        form, cluster = _formed(graph, whole, forms if phase == "backward" else None)
        lines = graph.work(cluster).lines
        is_backward_of_form = phase == "backward" and form != "pointwise"
        is_known = is_backward_of_form or form in ("attention", "matrix of distances")
        if is_known or len(cluster) >= MIN_FUSED_OPERATORS:
            if form != "pointwise":
                forms |= dict.fromkeys(lines, form)
            where = tuple((line.file, line.function) for line in lines[:1])
            found.setdefault((form, where), []).append(cluster)
            within |= _inner_values(graph, cluster, phase, joining)
    records = (_record(graph, form, clusters, within) for (form, _), clusters in found.items())
    return tuple(sorted(records, key=lambda one: -one.work.share))


def fusable_within(graph: Graph, is_inside: Callable[[Operator], bool]) -> Unfused | None:
    """Return all that a compiler of these operators of the last step would fuse, None for nothing."""
    clusters, within = list[list[int]](), set[int]()
    for phase, whole, joining in _fusable(graph, is_inside):
        if len(whole) >= MIN_FUSED_OPERATORS:
            clusters.append(whole)
            within |= _inner_values(graph, whole, phase, joining)
    return _record(graph, "pointwise", clusters, within) if clusters else None


def _fusable(graph: Graph, is_inside: Callable[[Operator], bool]) -> Iterator[tuple[str, list[int], set[int]]]:
    """Yield the clusters of each phase, with the values that operators of the phase hand each other."""
    depth = _depths(graph)
    for phase in ("forward", "backward", "other"):
        mine = (i for i in graph.of_step(graph.last_step) if graph.operators[i].phase == phase and _fuses(graph, i))
        members = {i for i in mine if is_inside(graph.operators[i])}
        made = ((use.value, i) for i in members for use in graph.operators[i].writes)
        joining = {value for value, i in made if _is_inner(graph, value, i, depth)}
        for whole in components(graph, members, joining.__contains__):
            yield phase, whole, joining


def _inner_values(graph: Graph, cluster: list[int], phase: str, joining: set[int]) -> set[int]:
    """Return the values that nothing of the phase but the cluster reads."""
    inner = joining.intersection(use.value for i in cluster for use in graph.operators[i].writes)
    readers = {v: {i for i in graph.readers[v] if graph.operators[i].phase == phase} for v in inner}
    return {value for value, each in readers.items() if each.issubset(cluster)}


def _formed(graph: Graph, cluster: list[int], forms: Mapping[Frame, Form] | None) -> tuple[Form, list[int]]:
    """Return what a cluster computes, and the operators that do: those of one call of the script's function.

    ``forms`` are those of the forward pass's lines: no script writes its backward pass out, so what that computes
    follows from them. None for another pass.
    """
    operators = graph.operators
    if forms is not None:
        mine = [i for i in cluster if operators[i].place in forms]
        return (forms[operators[mine[0]].stack[0]], mine) if mine else ("pointwise", cluster)
    distances = _distances(graph, cluster)
    if distances:
        return "matrix of distances", distances
    form: Form = next((form for form, sets in _FORMS if _fits(graph, cluster, sets)), "pointwise")
    form = "pointwise" if form == "GELU" and not _weighs_itself(graph, cluster) else form
    form = "pointwise" if form == "norm" and not _scales_itself(graph, cluster) else form
    form = "attention" if form != "loss" and _attends(graph, cluster) else form
    if form in ("pointwise", "attention"):
        return form, cluster
    names = set.union(*next(sets for each, sets in _FORMS if each == form and _fits(graph, cluster, sets)))
    called = Counter(_call(operators[i]) for i in cluster if base_name(operators[i]) in names)
    first = called.most_common(1)[0][0]
    return form, [i for i in cluster if _call(operators[i]) == first]


def _call(one: Operator) -> object:
    """Return the call of the script's function that an operator runs in."""
    return (one.place and (one.place.file, one.place.function)), one.stack[1:]


def _fuses(graph: Graph, i: int) -> bool:
    """Return whether an operator is pointwise, a reduction, or a cast: a copy in another type on the same device."""
    one, uses = graph.operators[i], (*graph.operators[i].reads, *graph.operators[i].writes)
    is_cast = is_copy(one) and len(uses) == 2 and uses[0].dtype != uses[1].dtype
    is_cast = is_cast and len({graph.values[use.value].device for use in uses}) == 1
    return graph.computes(i) and (is_pointwise(one) or is_reduction(one) or is_cast)


def _depths(graph: Graph) -> list[int]:
    """Return how many operators that do not fuse lie one behind the other before each: one kernel has no two depths."""
    depth: list[int] = []
    fuses = [graph.operators[i].is_view or _fuses(graph, i) for i in range(len(graph.operators))]
    for values in graph.needs:
        before = (graph.values[value].producer for value in values)
        depth.append(max((depth[i] + (not fuses[i]) for i in before if 0 <= i < len(depth)), default=0))
    return depth


def _is_inner(graph: Graph, value: int, made_by: int, depth: Sequence[int]) -> bool:
    """Return whether only operators of the same phase that fuse read a value: one, or several of its own depth.

    Those named "full_like" and the like take the shape alone.
    """
    one = graph.operators[made_by]
    others = (i for i in graph.readers[value] if graph.operators[i].phase == one.phase)
    readers = [i for i in others if not base_name(graph.operators[i]).endswith("_like")]
    fuse = bool(readers) and all(_fuses(graph, i) for i in readers)
    joins = fuse and (len(readers) == 1 or all(depth[i] == depth[made_by] for i in readers))
    return joins and not graph.lives_on[value] and graph.values[value].shape != ()


def _fits(graph: Graph, cluster: list[int], sets: Iterable[set[str]]) -> bool:
    names = {base_name(graph.operators[i]) for i in cluster}
    return not any(map(names.isdisjoint, sets))


def _weighs_itself(graph: Graph, cluster: list[int]) -> bool:
    """Return whether a tanh or erf of something is multiplied with the same again: those of a gate belong to others."""
    known: dict[int, tuple[frozenset[Hashable], bool]] = {}  # by value: what it is made of, and whether that is bent
    for i in cluster:
        one = graph.operators[i]
        parts = [known.get(use.value, (frozenset([(use.value, use.shape, use.offset)]), False)) for use in one.reads]
        if base_name(one) == "mul" and len(parts) == 2 and parts[0][1] != parts[1][1] and parts[0][0] & parts[1][0]:
            return True
        made_of = frozenset[Hashable]().union(*(each for each, _ in parts))
        is_bent = base_name(one) in ("tanh", "erf") or any(bent for _, bent in parts)
        known |= {use.value: (made_of, is_bent) for use in one.writes}
    return False


def _scales_itself(graph: Graph, cluster: list[int]) -> bool:
    """Return whether a root of a sum scales what is summed up: that of distances or of variances alone does not."""
    inside = set(cluster)
    for one in (graph.operators[i] for i in cluster if base_name(graph.operators[i]) in ("mul", "div")):
        for factor, whole in (one.reads, one.reads[::-1]) if len(one.reads) == 2 else ():
            if _num_distinct(factor) < _num_distinct(whole):
                before = [by for v in _near(graph, factor.value, inside) if (by := graph.producer(v)) is not None]
                summed = (v for by in before if is_reduction(by) for v in _near(graph, by.reads[0].value, inside))
                is_root = not _ROOTS.isdisjoint(map(base_name, before))
                if is_root and not _near(graph, whole.value, inside).isdisjoint(summed):
                    return True
    return False


def _near(graph: Graph, value: int, inside: set[int]) -> set[int]:
    """Return a value and those that it is made of within a cluster, a few operators back."""
    found = last = {value}
    for _ in range(4):  # a root, what keeps it from being infinite, a mean, and a square
        made = {graph.values[v].producer for v in last} & inside
        last = {v for i in made for v in graph.needs[i]} - found
        found = found | last
    return found


def _distances(graph: Graph, cluster: list[int]) -> list[int]:
    """Return the operators that take differences of all pairs of rows, square them and sum them up; none if none do."""
    inside, found = set(cluster), set[int]()
    for i in cluster:
        one = graph.operators[i]
        is_squared = base_name(one) in _NORMS
        if not (is_squared or base_name(one) in ("sum", "mean")):
            continue
        use, rows = one.reads[0], [i]
        kept = one.writes[0].shape[: -1 if len(one.writes[0].shape) == len(use.shape) else None]
        row = use.shape[len(kept) :]
        while row and use.shape[: len(kept)] == kept and _only_reader(graph, use.value) == rows[-1]:
            j = graph.values[use.value].producer
            if j not in inside:
                break
            each = graph.operators[j]
            name, scales = base_name(each), [read for read in each.reads[1:] if _num_distinct(read) > num_elements(row)]
            rows.append(j)
            if name == "sub" and len(each.reads) == 2:
                is_of_rows = all(read.shape[-len(row) :] == row for read in each.reads)
                if is_squared and is_of_rows and max(map(_num_distinct, each.reads)) < num_elements(use.shape):
                    found.update(rows)
                break
            squares = name in ("square", "abs") or "exponent=2" in each.attributes
            squares |= name == "mul" and len({read.value for read in each.reads}) < len(each.reads)
            if squares == is_squared and (squares or scales or name not in ("mul", "div", "neg")):
                break
            is_squared, use = is_squared or squares, each.reads[0]
    return sorted(found)


def _only_reader(graph: Graph, value: int) -> int:
    """Return the only operator of the forward pass that reads a value, -1 if there are others."""
    readers = [i for i in graph.readers[value] if graph.operators[i].phase != "backward"]
    return readers[0] if len(readers) == 1 else -1


def _num_distinct(use: Use) -> int:
    """Return how many elements an operator sees at most that differ: those that a view repeats count once."""
    return num_elements(size for size, step in zip(use.shape, use.stride, strict=True) if step)


def _attends(graph: Graph, cluster: list[int]) -> bool:
    """Return whether a cluster lies between the products of an attention. On a CPU none is fused that drops scores."""
    if not any(use.shape[-1:] >= (MIN_KEYS,) for use in _scores(graph, cluster)):
        return False
    drawn = (graph.values[use.value] for one in graph.operators if one.draws for use in one.writes)
    on_cpu = {value.storage for value in drawn if value.device == "cpu"}
    read = {graph.values[value].storage for i in cluster for value in graph.needs[i]}
    return all(_products(graph, cluster)) and read.isdisjoint(on_cpu)


def _scores(graph: Graph, rows: Iterable[int]) -> list[Use]:
    each = (graph.operators[i] for i in rows)
    return [one.writes[0] for one in each if base_name(one) in ("softmax", "_softmax", "_safe_softmax")]


def _products(graph: Graph, rows: Iterable[int]) -> tuple[set[int], set[int]]:
    """Return the batched products of the forward pass that make what some operators read, and those that take it."""
    forward = (i for i in graph.of_step(graph.last_step) if graph.operators[i].phase == "forward")
    batched = {i for i in forward if base_name(graph.operators[i]) in ("bmm", "baddbmm")}
    made_by = {graph.values[value].producer for i in rows for value in graph.needs[i]}
    readers = {j for i in rows for use in graph.operators[i].writes for j in graph.readers[use.value]}
    return made_by & batched, readers & batched


def _record(graph: Graph, form: Form, clusters: Sequence[list[int]], within: set[int]) -> Unfused:
    rows = [i for cluster in clusters for i in cluster]
    moved = sum(num_bytes(use) for i in rows for use in (*graph.operators[i].reads, *graph.operators[i].writes))
    attending = rows if form == "attention" else []
    sizes = {num_elements(use.shape) for use in _scores(graph, attending)}
    return Unfused(
        kind=form,
        work=graph.work(rows),
        bytes_not_moved=moved - sum(_bytes_needed(graph, cluster, within, sizes) for cluster in clusters),
        bytes_moved=moved,
        products=tuple(sorted(set.union(*_products(graph, attending)))),
    )


def _bytes_needed(graph: Graph, cluster: list[int], within: set[int], scores: set[int]) -> int:
    """Return what one fused operator reads and writes: what comes in and what goes out, once, but no ``scores``.

    In the backward pass it also reads what it computes the values again from that the forward pass has kept: about as
    much as the largest of them.
    """
    inside, operators = set(cluster), [graph.operators[i] for i in cluster]
    uses = {("read", use.value): use for one in operators for use in one.reads}
    uses |= {("written", use.value): use for one in operators for use in one.writes}
    outer = [use for use in uses.values() if use.value not in within and num_elements(use.shape) not in scores]
    kept = [use for use in uses.values() if use.value in within and graph.values[use.value].producer not in inside]
    return sum(map(num_bytes, outer)) + max(map(num_bytes, kept), default=0)
