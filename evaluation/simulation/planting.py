"""Where wastes stand in a step, and what they emit; repaired ones emit what a good program does instead."""

from __future__ import annotations

from collections.abc import Mapping

from simulation import kernel_names
from simulation.instructions import Emitter
from simulation.machine import Machine
from simulation.wastes import Waste, planted

__all__ = ["plant_at"]

US = 1e3
TINY_NS = 1_700.0


def plant_at(
    place: str, emitter: Emitter, wastes: Mapping[str, Waste], machine: Machine, *, share: float = 1.0
) -> None:
    """Emit the wastes of a place: forward, block, loss or end; ``share`` is a block's part of the step."""
    with emitter.beside(place):
        for kind, waste in wastes.items():
            if _PLACES.get(kind) == place or (kind == "item-every-step" and place == ("end", "loss")[waste.count - 1]):
                with emitter.section(f"{place}.{kind}.{emitter.place}"):
                    _emit(kind, emitter, waste, machine, share, active=planted(wastes, kind))


_PLACES = {
    "item-in-loop": "block",
    "python-block": "end",
    "collector": "end",
    "many-launches": "block",
    "allocator": "block",
    "recompilation": "forward",
    "off-cpu": "loss",
}


def _emit(  # one branch a kind
    kind: str, emitter: Emitter, waste: Waste, machine: Machine, share: float, *, active: bool
) -> None:
    part = max(round(waste.size * share), 1)
    if kind == "many-launches":
        _pieces(emitter, part, machine, batched=not active)
    elif not active:
        return
    elif kind == "item-every-step":
        _item(emitter)
    elif kind == "item-in-loop":
        for _ in range(part):
            _item(emitter)
    elif kind == "python-block":
        with emitter.frame("train.py(71): score_samples"), emitter.frame("train.py(63): <listcomp>"):
            emitter.host("python", waste.size)
    elif kind == "collector":
        with (
            emitter.frame("<built-in function collect>"),
            emitter.event("Python GC", "python_function", kind="collector"),
        ):
            emitter.host("collector", waste.size)
    elif kind == "allocator":
        for _ in range(part):
            with emitter.op("aten::empty", 4_000):
                emitter.free()
                emitter.malloc(64 << 20)
    elif kind == "recompilation":
        _recompile(emitter, waste.size)
    elif kind == "off-cpu":
        emitter.host("off-cpu", waste.size)


def _pieces(emitter: Emitter, count: int, machine: Machine, *, batched: bool) -> None:
    """Scale samples one by one, or all in one operator that moves as much."""
    for _ in range(1 if batched else count):
        emitter.host("glue", 3 * US * machine.host)
        with emitter.op("aten::mul", 6_000, dims=((1024,), ())):
            emitter.launch(kernel_names.SCALE, "pieces", TINY_NS + (100.0 * count if batched else 100.0))


def _item(emitter: Emitter) -> None:
    """Read a number from the device."""
    with emitter.op("aten::item", 1_500), emitter.op("aten::_local_scalar_dense", 3_000):
        emitter.copy("DtoH", 4, pinned=False, blocking=True)
    emitter.host("glue", 2_000)


def _recompile(emitter: Emitter, ns: float) -> None:
    """Compile again, as Dynamo does when a guard fails: operators of its phases, as torch 2.13 records them."""
    with emitter.op("TorchDynamo Cache Lookup", 20_000):
        pass
    with (
        emitter.op("dynamo", 5_000),
        emitter.frame("torch/_dynamo/convert_frame.py(1164): _compile"),
        emitter.op("entire_frame_compile", 5_000),
        emitter.op("_compile.compile_inner (dynamo_timed)", 5_000),
    ):
        with emitter.op("bytecode_tracing (dynamo_timed)", 5_000):
            emitter.host("compile", 0.3 * ns)
        with (
            emitter.op("backend_compile", 5_000),
            emitter.op("OutputGraph.call_user_compiler (dynamo_timed)", 5_000),
            emitter.frame("torch/_inductor/compile_fx.py(655): compile_fx_inner"),
        ):
            emitter.host("compile", 0.7 * ns)
