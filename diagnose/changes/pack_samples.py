"""Read samples from tar shards instead of many small files.

What it does
    Reads each shard from its begin to its end, and shares the shards out among ranks and workers.

What to watch
    The shards are written once, before the run. Samples are shuffled within a buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training
from diagnose.changes.common.loading import is_iterable

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if not finding.facts.get("waits") or is_iterable(finding.facts) or program.trains is False:
        return None
    size = finding.facts.get("batch_size") or program.batch_size
    return Advice(
        after="from diagnose.kernels.shard_writing import folder_samples, write_shards\n"
        "from diagnose.kernels.web_shards import WebShards\n\n"
        'shards = write_shards(folder_samples("images"), "shards")   # once; table_samples reads a CSV or Parquet\n'
        f'loader = WebShards(shards, ("jpg", "cls"), batch_size={size or "batch_size"}, num_workers=4)',
        least=0.0,
        needs="many small files, the package webdataset, and room for the shards",
    )


CHANGE = Change(
    id="pack-samples",
    title="Read samples from tar shards instead of many small files",
    numerics=other_training("samples are shuffled within a buffer, so in another order"),
    patch=ByHand("which files are one sample only the dataset's author knows"),
    edit=ByHand("which files are one sample only the dataset's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.web_shards",
    modules=("diagnose.kernels.shard_writing",),
)
