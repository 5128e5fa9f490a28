"""Let the pauses of all ranks fall on the same step.

What it does
    A pause that comes on another rank each step costs every rank all of them. Garbage collection, saving and logging on
    the same step of all ranks cost it once; threads with cores of their own are not taken off them.

What to watch
    Memory grows between two collections: leave as many steps between them as it allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnose.model.diagnosis import Finding
    from diagnose.model.rules import Pause
    from diagnose.tables.program import Program

_COLLECT = """from diagnose.kernels.gc_schedule import scheduled_gc

with scheduled_gc() as collect:   # gc.disable(), and one collection on all ranks at the same step
    for step, batch in enumerate(loader):
        ...
        collect.step()            # at the end of each step"""
_SAVE = """from concurrent.futures import ThreadPoolExecutor

writer = ThreadPoolExecutor(1)    # once
if step % 1000 == 0:              # the same number on every rank, and no time of day
    state = {name: value.to("cpu", copy=True) for name, value in model.state_dict().items()}
    writer.submit(torch.save, state, path)     # writing goes on during the next steps
# before the program ends: writer.shutdown()"""
_CORES = """# in each rank, before the loader is made; nvidia-smi topo -m has the cores next to its GPU
cores = sorted(os.sched_getaffinity(0))
share = len(cores) // local_world_size
os.sched_setaffinity(0, cores[local_rank * share : (local_rank + 1) * share])
torch.set_num_threads(max(share - num_workers, 1))
# or from outside: numactl --cpunodebind=0 --membind=0 …; under Slurm srun --cpu-bind=cores --cpus-per-task N"""
_LOAD = """loader = DataLoader(
    dataset, num_workers=2 * num_workers, prefetch_factor=4, persistent_workers=True, pin_memory=True
)
# more batches ahead: a sample that takes long on one rank is ready before its step"""


_HELP: Mapping[Pause, tuple[str, str]] = {
    "collection": ("Collect garbage on all ranks at the same step", _COLLECT),
    "python": ("Align Python that pauses a step, such as saving and logging, across all ranks", _SAVE),
    "cores": ("Give each rank cores of its own", _CORES),
    "batches": ("Keep more batches ready on every rank", _LOAD),
    "": ("", f"{_COLLECT}\n\n{_CORES}"),
}
"""The title and the code by what the rule of the pauses' cause names; without one, for the usual pauses."""


def _of_cause(cause: str) -> tuple[str, str]:
    from diagnose.analyzers import META

    return _HELP[META[cause].pause if cause in META else ""]


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if finding.facts.get("kind") != "turns":
        return None
    title, after = _of_cause(str(finding.facts.get("cause")))
    if program.trains is False and after == _SAVE:
        after = _COLLECT
    most = 1 - float(str(finding.facts.get("begin_share", 0.0)))
    return Advice(title=title, after=after, least=0.0, most=most, needs="pauses of the kind that the finding names")


CHANGE = Change(
    id="align-pauses",
    title="Align periodic pauses across ranks, and give each rank cores of its own",
    numerics=identical(),
    patch=ByHand("what pauses a rank is the script's own"),
    edit=ByHand("what pauses a rank is the script's own"),
    advice=_advice,
    remedy="diagnose.kernels.gc_schedule",
)
