"""Arguments of DistributedDataParallel that each forward pays for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.gradients import NO_BROADCAST, NO_SEARCH, ddp_arguments
from diagnose.changes.patches.distributed import with_arguments
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program


GONE = (0.7, 1.0)  # of the broadcast and of what the host does for it, at least and at most


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of a forward that sends no buffers: its calls go, with all that they launch."""
    import numpy as np

    from diagnose.model.intervals import contains, distinct
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.collectives import buffer_updates

    updates = buffer_updates(t)
    if not len(finding.tasks) or not len(updates.start):
        return None
    called = t.trace.events.start[t.tasks.launch]
    launched = np.flatnonzero((t.tasks.launch >= 0) & contains(updates, called))
    tasks = distinct(launched, finding.tasks)
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    return effect_of_tasks(
        t,
        finding,
        tasks,
        (GONE[0] * length, GONE[1] * length),
        f"{percent(GONE[0], 0)} to {percent(GONE[1], 0)} of what the forward does for the broadcast goes, on the host "
        "and the device.",
        host=updates,
        host_left=(1 - GONE[0], 1 - GONE[1]),
        pauses_left=(1 - GONE[0], 1 - GONE[1]),
        frees_host=True,
    )


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if not ddp_arguments(finding).get("find_unused_parameters"):
        return None
    return Proposal(
        before="model = DistributedDataParallel(model, find_unused_parameters=True)",
        after="model = DistributedDataParallel(model)   # diagnose.kernels.distributed.ddp_arguments.advise checks it",
        least=0.0,
        most=0.2,
        needs="a forward that uses every parameter in every step",
    )


CHANGES = (
    Change(
        id="no-buffer-broadcast",
        page="""Leave DistributedDataParallel's broadcast of buffers out.

What it does
    Passes `broadcast_buffers=False` to DistributedDataParallel. A forward then does not wait for rank 0's buffers.

What to watch
    Batch-norm statistics then differ between ranks. `SyncBatchNorm` keeps them equal.
""",
        title="Do not broadcast buffers in every forward",
        numerics=identical(
            "if training reads no buffer; ranks keep their own batch-norm statistics: evaluate with rank 0's"
        ),
        patch=Patch(partial(with_arguments, edit=NO_BROADCAST)),
        edit=NO_BROADCAST,
        proposal=Proposal(
            before="model = DistributedDataParallel(model, device_ids=[local_rank])",
            after="model = DistributedDataParallel(model, device_ids=[local_rank], broadcast_buffers=False)",
            least=GONE[0],
            most=GONE[1],
        ),
        effect=_effect,
        remedy="diagnose.kernels.distributed.ddp_arguments",
    ),
    Change(
        id="no-unused-search",
        page="""Leave out the search for parameters that a forward does not use.

What it does
    Passes `find_unused_parameters=False` to DistributedDataParallel. It then does not walk the graph after each
    forward.

What to watch
    If a step leaves a parameter unused, DDP raises an error. Such a model needs the search.
""",
        title="Leave out the search for unused parameters",
        numerics=identical("if every step uses every parameter"),
        patch=Patch(partial(with_arguments, edit=NO_SEARCH)),
        edit=NO_SEARCH,
        proposal=_proposal,
        applies=to_data_parallel_training,
        remedy="diagnose.kernels.distributed.ddp_arguments",
    ),
)
