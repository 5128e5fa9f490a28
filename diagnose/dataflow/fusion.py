"""Fusable clusters: pointwise operators and reductions that hand each other values which nobody else reads.

A fused operator keeps such a value in registers: it need be neither written nor read. What a cluster computes follows
from the operators in it and from what it lies between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, Work, base_name, components, is_pointwise, is_reduction, num_bytes
from diagnose.model.dataflow import Frame, Use
from diagnose.model.shapes import num_elements

__all__ = ["Unfused", "unfused_clusters"]

MIN_FUSED_OPERATORS = 3  # two, as a bias and an activation, are what library modules leave too
MIN_KEYS = 16  # of an attention: a softmax over fewer is a gate or a mixture of few
Form: TypeAlias = Literal["attention", "loss", "norm", "rotary embedding", "GELU", "gated activation", "pointwise"]

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
    ("rotary embedding", ({"cos"}, {"sin"})),
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
    found: dict[tuple[Form, object], list[int]] = {}
    forms: dict[Frame, Form] = {}  # of the lines of the forward pass
    within: set[int] = set()
    for phase in ("forward", "backward", "other"):
        members = {i for i in graph.of_step(graph.last_step) if graph.operators[i].phase == phase and _fuses(graph, i)}
        joining = {use.value for i in members for use in graph.operators[i].writes if _is_inner(graph, use.value, i)}
        within |= joining
        for cluster in components(graph, members, joining.__contains__):
            form = _form(graph, cluster)
            if len(cluster) >= MIN_FUSED_OPERATORS or form == "attention":
                lines = graph.work(cluster).lines
                if form == "pointwise" and phase == "backward":
                    form = next((forms[line] for line in lines if line in forms), form)
                elif form != "pointwise":
                    forms |= dict.fromkeys(lines, form)
                where = tuple((line.file, line.function) for line in lines[:1])
                found.setdefault((form, where), []).extend(cluster)
    records = (_record(graph, form, rows, within) for (form, _), rows in found.items())
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _fuses(graph: Graph, i: int) -> bool:
    one = graph.operators[i]
    return graph.computes(i) and (is_pointwise(one) or is_reduction(one))


def _is_inner(graph: Graph, value: int, made_by: int) -> bool:
    """Return whether a single operator of the same phase reads a value, and it is one that fuses.

    Those named "full_like" and the like take the shape alone.
    """
    one = graph.operators[made_by]
    others = (i for i in graph.readers[value] if graph.operators[i].phase == one.phase)
    readers = [i for i in others if not base_name(graph.operators[i]).endswith("_like")]
    is_read_once = len(readers) == 1 and _fuses(graph, readers[0])
    return is_read_once and not graph.lives_on[value] and graph.values[value].shape != ()


def _form(graph: Graph, cluster: list[int]) -> Form:
    """Return what a cluster computes, by its operators and its neighbours."""
    names = {base_name(graph.operators[i]) for i in cluster}
    fits = (form for form, sets in _FORMS if not any(map(names.isdisjoint, sets)))
    form: Form = next(fits, "pointwise")
    return "attention" if form != "loss" and _attends(graph, cluster) else form


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


def _record(graph: Graph, form: Form, rows: list[int], within: set[int]) -> Unfused:
    uses = [use for i in rows for use in (*graph.operators[i].reads, *graph.operators[i].writes)]
    attending = rows if form == "attention" else []
    sizes = {num_elements(use.shape) for use in _scores(graph, attending)}
    return Unfused(
        kind=form,
        work=graph.work(rows),
        bytes_not_moved=sum(num_bytes(use) for use in uses if use.value in within or num_elements(use.shape) in sizes),
        bytes_moved=sum(map(num_bytes, uses)),
        products=tuple(sorted(set.union(*_products(graph, attending)))),
    )
