"""Share a stream out among the workers.

What it does
    Wraps the IterableDataset: `ShardedStream(dataset)`. Each worker and rank then yields every n-th element. Without
    it, each worker yields the whole stream.

What to watch
    Each worker still reads the elements that it skips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Proposal, other_training
from diagnose.changes.common.loading import is_iterable, loader_call

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


IMPORT = "from diagnose.kernels.sharding import ShardedStream"


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    facts = finding.facts
    if not is_iterable(facts) or facts.get("shares_out") or facts.get("library") == "transformers":
        return None
    workers = facts.get("num_workers") or 2
    return Proposal(
        before=loader_call(facts, num_workers=workers),
        after=f"{IMPORT}\n\n" + loader_call({**facts, "wrapped": "ShardedStream(dataset)"}, num_workers=workers),
        least=0.0,
        needs="elements that are cheap to pass over: each worker reads the whole stream",
    )


CHANGE = Change(
    id="shard-stream",
    title="Share the stream out among the workers, so that none repeats it",
    numerics=other_training("batches consist of other samples than without workers"),
    edit=EditLoop("with_sharded_stream", "device", "cpu", IMPORT),
    proposal=_proposal,
    remedy="diagnose.kernels.sharding",
)
