"""The step as a program: what an optimising compiler would ask of it, one question a module."""

from __future__ import annotations

from typing import NamedTuple

from diagnose.dataflow.averages import UnchangedAverage, unchanged_averages
from diagnose.dataflow.contents import WorkOnNothing, work_on_nothing
from diagnose.dataflow.enlarged import EnlargedInput, enlarged_inputs
from diagnose.dataflow.forms import CostlyForm, costly_forms
from diagnose.dataflow.fusion import Unfused, unfused_clusters
from diagnose.dataflow.graph import Graph, graph_of
from diagnose.dataflow.growth import (
    CopiedAgain,
    GrowingWork,
    KeptGraph,
    PiledUp,
    copied_again,
    growing_work,
    kept_graph,
    piled_up,
)
from diagnose.dataflow.liveness import DeadWork, dead_work
from diagnose.dataflow.loops import Loop, loops
from diagnose.dataflow.order_masks import OrderMask, order_masks
from diagnose.dataflow.placement import HostRoundTrip, ReadByElement, host_round_trips, read_by_element
from diagnose.dataflow.products import ProductOrder, product_order
from diagnose.dataflow.repeats import ComputedAgain, ConstantWork, computed_again, constant_work
from diagnose.dataflow.rows import EqualRows, equal_rows
from diagnose.dataflow.summed import SummedProduct, summed_products
from diagnose.dataflow.width import TooWide, too_wide
from diagnose.model.dataflow import Dataflow

__all__ = ["Analyses", "analyse"]


class Analyses(NamedTuple):
    """What each analysis found, the largest first. Findings of two analyses may name the same operators."""

    graph: Graph  # what they looked at
    dead_work: tuple[DeadWork, ...]
    unchanged_averages: tuple[UnchangedAverage, ...]
    computed_again: tuple[ComputedAgain, ...]
    constant_work: tuple[ConstantWork, ...]
    loops: tuple[Loop, ...]
    work_on_nothing: tuple[WorkOnNothing, ...]
    equal_rows: tuple[EqualRows, ...]
    enlarged_inputs: tuple[EnlargedInput, ...]
    product_order: tuple[ProductOrder, ...]
    costly_forms: tuple[CostlyForm, ...]
    summed_products: tuple[SummedProduct, ...]
    too_wide: tuple[TooWide, ...]
    host_round_trips: tuple[HostRoundTrip, ...]
    read_by_element: tuple[ReadByElement, ...]
    order_masks: tuple[OrderMask, ...]
    unfused: tuple[Unfused, ...]
    growing_work: tuple[GrowingWork, ...]
    copied_again: tuple[CopiedAgain, ...]
    piled_up: tuple[PiledUp, ...]
    kept_graph: tuple[KeptGraph, ...]
    long_step: Analyses | None = None  # of a step that is long now and then, after a usual one


def analyse(flow: Dataflow, long_step: Dataflow | None = None) -> Analyses:
    """Return what the analyses find in a data flow, and in that of a step that is long now and then."""
    found = _analyses(graph_of(flow), dead_in=0)
    if long_step is None or not long_step.operators:
        return found
    graph = graph_of(long_step)
    return found._replace(long_step=_analyses(graph, dead_in=graph.last_step))


def _analyses(graph: Graph, dead_in: int) -> Analyses:
    """Return what the analyses find; ``dead_in`` is the step of which nothing may read the results."""
    return Analyses(
        graph=graph,
        dead_work=dead_work(graph, dead_in),
        unchanged_averages=unchanged_averages(graph),
        computed_again=computed_again(graph),
        constant_work=constant_work(graph),
        loops=loops(graph),
        work_on_nothing=work_on_nothing(graph),
        equal_rows=equal_rows(graph),
        enlarged_inputs=enlarged_inputs(graph),
        product_order=product_order(graph),
        costly_forms=costly_forms(graph),
        summed_products=summed_products(graph),
        too_wide=too_wide(graph),
        host_round_trips=host_round_trips(graph),
        read_by_element=read_by_element(graph),
        order_masks=order_masks(graph),
        unfused=unfused_clusters(graph),
        growing_work=growing_work(graph),
        copied_again=copied_again(graph),
        piled_up=piled_up(graph),
        kept_graph=kept_graph(graph),
    )
