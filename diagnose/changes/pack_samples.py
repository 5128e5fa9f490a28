"""Read samples from tar shards instead of many small files.

What it does
    Reads each shard from its begin to its end, and shares the shards out among ranks and workers.

What to watch
    The shards are written once, before the run, and hold the samples as the dataset returns them: decoded, which takes
    more room than compressed files, and with what was drawn at random as it was drawn once. Random augmentation belongs
    in the `transforms` of `WebShards`. Files can be packed as they are, too: by `folder_samples` or `table_samples`.
    Samples are shuffled within a buffer. A sampler that chooses samples cannot be kept, so this is left out for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training
from diagnose.changes.common.loading import OWN_COLLATE, draws_at, is_iterable

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    facts = finding.facts
    if not facts.get("waits") or is_iterable(facts) or program.trains is False:
        return None
    sampler = facts.get("sampler")
    if sampler not in {None, "RandomSampler", "SequentialSampler", "DistributedSampler"}:
        return None  # which sample comes how often is the sampler's choice
    dataset, draws, is_ordered = facts.get("wrapped") or "dataset", draws_at(facts), sampler == "SequentialSampler"
    size = facts.get("batch_size") or program.batch_size or "batch_size"
    arguments = ['sorted(glob("shards/*.tar"))', '"pth"', f"batch_size={size}"]
    arguments += [f"num_workers={facts.get('num_workers') or 4}"]
    arguments += ["shuffle=0"] if is_ordered else []
    if (collate := facts.get("collate_fn")) and collate not in OWN_COLLATE:
        arguments.append(f"collate={collate if str(collate).isidentifier() else 'collate_fn'}")
    has_ranks = sampler == "DistributedSampler" or program.is_ddp
    if has_ranks:
        arguments.append(f"epoch_batches=len({dataset}) // ({size} * dist.get_world_size())")
    lines = [
        "# once, in a script that makes the dataset; the shards hold its samples, decoded",
        *([f"# without the random draw at {draws}, which belongs in WebShards(..., transforms=...)"] if draws else []),
        "from diagnose.kernels.shard_writing import dataset_samples, write_shards",
        "",
        f'write_shards(dataset_samples({dataset}{", seed=None" if is_ordered else ""}), "shards")',
        "",
        "# in the training, instead of the DataLoader",
        "from glob import glob",
        *(["import torch.distributed as dist"] if has_ranks else []),
        "from diagnose.kernels.web_shards import WebShards",
        "",
        f"loader = WebShards({', '.join(arguments)})",
        *([] if is_ordered else ["# before each epoch, for another order: loader.set_epoch(epoch)"]),
    ]
    return Advice(
        after="\n".join(lines),
        least=0.0,
        needs="many small files, the package webdataset, and room for the decoded samples",
    )


CHANGE = Change(
    id="pack-samples",
    title="Read samples from tar shards instead of many small files",
    numerics=other_training("samples come in another order, and random augmentation is stored as it was drawn once"),
    patch=ByHand("the shards are written before the run"),
    edit=ByHand("the shards are written before the run"),
    advice=_advice,
    remedy="diagnose.kernels.web_shards",
    modules=("diagnose.kernels.shard_writing",),
)
