"""What can be planted, how large, and which rules name it rightly.

The ids of rules and what they mean are those of the design; which of them is a right name for a waste is decided here,
before any answer was seen, and pages/simulation.md gives the reasons.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simulation.machine import Machine
from simulation.workloads import Workload

__all__ = ["KINDS", "SILENT", "Kind", "Waste", "draw_wastes", "planted"]

US, MS = 1e3, 1e6
# Without Python frames, time of the host that no event covers looks the same whatever it was.
SILENT = ("python-stall", "unexplained-host")


@dataclass(frozen=True, slots=True)
class Waste:
    """One planted waste."""

    kind: str
    size: float  # ns, bytes or a count: as its kind has it
    count: int = 1
    repaired: bool = False  # what a good program does instead, where that is not nothing


def planted(wastes: Mapping[str, Waste], kind: str) -> bool:
    """Return whether a kind is there and not repaired."""
    return kind in wastes and not wastes[kind].repaired


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of waste."""

    rules: tuple[str, ...]
    fits: Callable[[Workload, Machine], bool]
    draw: Callable[[random.Random], tuple[float, int]]
    silent: bool = False  # its events are Python frames alone: without them any name of silence is right
    group: str = ""  # at most one of a group in a case


def _always(_workload: Workload, _machine: Machine) -> bool:
    return True


def _training(workload: Workload, _machine: Machine) -> bool:
    return workload.training


def _ranks(workload: Workload, _machine: Machine) -> bool:
    return workload.ranks > 1


def _loads(workload: Workload, _machine: Machine) -> bool:
    return workload.family != "reinforcement"


def _eager(workload: Workload, _machine: Machine) -> bool:
    return not workload.graph


def _family(*families: str) -> Callable[[Workload, Machine], bool]:
    def fits(workload: Workload, _machine: Machine) -> bool:
        names = {block.name.split("_")[0] for block in workload.blocks}
        return bool(names & set(families))

    return fits


def _spread(low: float, high: float, most: int = 1) -> Callable[[random.Random], tuple[float, int]]:
    def draw(rng: random.Random) -> tuple[float, int]:
        return low * (high / low) ** rng.random(), rng.randint(1, most)

    return draw


KINDS: dict[str, Kind] = {
    "loader-in-process": Kind(("data-stall",), _loads, _spread(0.2 * MS, 40 * MS), group="loader"),
    "few-workers": Kind(("data-stall",), _loads, _spread(0.5 * MS, 60 * MS, 2), group="loader"),
    "item-every-step": Kind(("host-sync",), _eager, _spread(1, 1, 2), group="sync"),
    "item-in-loop": Kind(("host-sync",), _eager, _spread(2, 20), group="sync"),
    "python-block": Kind(("python-stall",), _always, _spread(0.2 * MS, 20 * MS), silent=True, group="python"),
    "python-between-operators": Kind(
        ("python-stall", "launch-bound"), _eager, _spread(5 * US, 80 * US), silent=True, group="python"
    ),
    "collector": Kind(("gc-pause",), _training, _spread(0.3 * MS, 40 * MS), silent=True),
    "pageable-copy": Kind(("exposed-copy", "host-sync", "pcie-bound"), _loads, _spread(1e6, 2e8), group="copy"),
    "copy-same-stream": Kind(("exposed-copy", "pcie-bound"), _loads, _spread(4e6, 4e8), group="copy"),
    "loop-optimizer": Kind(("unfused-optimizer", "launch-bound"), _training, _spread(1, 1)),
    "many-launches": Kind(("launch-bound",), _eager, _spread(20, 300)),
    "allocator": Kind(("allocator-stall", "memory-pressure", "memory-fragmentation"), _eager, _spread(1, 20)),
    "one-bucket": Kind(("exposed-communication",), _ranks, _spread(1, 1), group="buckets"),
    "bucket-per-parameter": Kind(
        ("small-collectives", "exposed-communication", "launch-bound"), _ranks, _spread(1, 1), group="buckets"
    ),
    "late-rank": Kind(("straggler", "exposed-communication"), _ranks, _spread(1.1, 2.5)),
    "buffer-broadcast": Kind(("buffer-broadcast", "exposed-communication"), _ranks, _spread(5, 120)),
    "barrier": Kind(("host-collective", "host-sync"), _ranks, _spread(1, 1)),
    "recompilation": Kind(("recompilation",), _eager, _spread(1 * MS, 200 * MS)),
    "off-cpu": Kind(("off-cpu", *SILENT), _always, _spread(1 * MS, 20 * MS), group="python"),
    "early-wait": Kind(("stream-dependency", "exposed-copy"), _training, _spread(1e6, 1e9)),
    "no-graph": Kind(("launch-bound",), lambda w, _: w.graph, _spread(1, 1)),
    "float32-products": Kind(
        ("full-precision-matmul",),
        lambda _, m: m.gpu.vendor == "nvidia" and m.gpu.tf32_tflops > m.gpu.single_tflops,
        _spread(1, 1),
    ),
    "written-attention": Kind(("unfused-attention", "unfused-elementwise"), _family("TransformerBlock"), _spread(1, 1)),
    "written-activation": Kind(("unfused-elementwise", "launch-bound"), _family("TransformerBlock"), _spread(1, 1)),
    "layout-copies": Kind(("layout-copy",), _family("BasicBlock"), _spread(1, 1)),
    "checkpoint-all": Kind(("recompute",), lambda w, _: w.training and len(w.blocks) > 2, _spread(1, 1)),
}


def draw_wastes(rng: random.Random, workload: Workload, machine: Machine) -> tuple[Waste, ...]:
    """Return zero to three wastes that fit, no two of them with the same first name."""
    wanted = rng.choices((0, 1, 2, 3), (2, 5, 3, 2))[0]
    names = [name for name, kind in KINDS.items() if kind.fits(workload, machine)]
    rng.shuffle(names)
    chosen: list[Waste] = []
    seen: set[str] = set()
    for name in names:
        kind = KINDS[name]
        marks = {kind.rules[0], kind.group or name}
        if len(chosen) < wanted and not marks & seen:
            seen |= marks
            chosen.append(Waste(name, *kind.draw(rng)))
    return tuple(chosen)
