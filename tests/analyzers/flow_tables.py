"""A data flow of two steps beside a timing window in which each of its operators takes 100 µs."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from diagnose.model.assignments import StoredSource
from diagnose.model.capture import Loops
from diagnose.model.dataflow import Dataflow
from diagnose.pipeline.find import build_tables
from tests.dataflow.table import FILE, Table

CPU, GPU = (), None


def tables(
    recording,
    table: Table,
    *,
    devices=CPU,
    without: str = "",
    extra: tuple[str, ...] = (),
    within: str = "",
    pause: int = 0,
    late: int = 0,
    calls: str = "",
    around: int = 0,
    frames: tuple[str, ...] = (),
    loops: Mapping[str, Loops] = MappingProxyType({}),
    sources: Mapping[str, StoredSource] = MappingProxyType({}),
    sampled: tuple[tuple[int, str], ...] = (),
    noted: Mapping[str, object] = MappingProxyType({}),
    **texts: str,
):
    """Return two steps of 1000 µs with the operators of the data flow, each below one of another name.

    ``without`` is a name that they lack, ``extra`` are names of more operators, which come first; one named ``within``
    calls all of them, as do ``frames``, the outermost first. ``pause`` is what passes behind the first operator of a
    step, µs. Kernels of a device start ``late``, µs. Each operator calls one named ``calls``, which launches a kernel
    of 40 µs there, and is called by one that takes ``around`` more, µs, before and after it. ``sampled`` are lines
    and functions that samples see in the pause, ``noted`` what the capture notes.
    """
    r = recording(devices=()) if devices == CPU else recording()
    flow: Dataflow = table.graph().flow
    for step in range(2):
        r.step(step + 1, 1000 * step, 1000 * step + 1000)
        if within:
            r.op(within, 1000 * step + 5, 1000 * step + 995)
        for depth, frame in enumerate(frames):
            r.frame(frame, 1000 * step + 1 + depth, 1000 * step + 999 - depth)
        names = [one.name.partition(".")[0] for one in flow.operators if one.step == step]
        for i, name in enumerate((*extra, *(each for each in names if each != without))):
            begin = 1000 * step + 10 + 110 * i + pause * (i > 0)
            r.op("aten::composite", begin - around, begin + 100 + around)
            r.op(name, begin, begin + 100, **texts)
            r.op(calls or name, begin + 50, begin + 90)  # called by the one above
            if devices != CPU:
                r.kernel(name, begin + late + 30, begin + late + 105, launched=(begin + 10, begin + 20))
            if calls:
                r.kernel(calls, begin + late + 105, begin + late + 145, launched=(begin + 60, begin + 70))
        for i, (line, function) in enumerate(sampled):
            r.sample(1000 * step + 115 + i, (FILE, line, function))
    if noted:
        r.with_info(**noted)
    capture = replace(r.capture(attribution=r), dataflow=flow, loops=loops, sources=sources)
    return build_tables(capture, capture.trace)


def steps(operators) -> Table:
    """Return a data flow of two steps; the last operator's result is needed."""
    t = Table()
    for t.step in range(2):
        t.read_on_host(operators(t))
    return t
