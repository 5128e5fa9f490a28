"""The device waits for the next batch.

What it looks for
    Gaps that the DataLoader's `__next__` covers by at least half, or for at least 1 ms.

Why it costs
    Nothing is queued while the training thread loads a batch (no workers) or waits for one (slow workers).

What to do
    No workers: set `num_workers`, or speed up the slowest line of the dataset. Slow workers: add workers up to the
    number of cores, or make samples cheaper. Slow first batch of an epoch: set `persistent_workers=True`.
    `next(iter(loader))` in each step: create the iterator once. Slow sampler: make it cheaper, since it runs in the
    training process.

How sure
    High: the loader marks its own time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, identical, other_training
from diagnose.analyzers.common.idioms import call_cause
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.loading import loading_evidence, loading_facts
from diagnose.analyzers.common.locate import line_at, place_of_call
from diagnose.analyzers.common.rewrite_blocks import kept_iterator
from diagnose.model.dataflow import Frame
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, covered, intersect, longer_than
from diagnose.model.locations import at_line, own_place
from diagnose.model.numerics import number
from diagnose.model.own_source import OwnSource
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import MAX_FETCH_NS, loads_in_process
from diagnose.tables.names import LOADER_NEXT
from diagnose.text.numbers import duration

META = RuleMeta(
    id="data-stall",
    kind="idle",
    order=98,
    host_order=69,  # after what names a waste in the loading
    legend=Legend("the step waited for its next batch"),
    changes=(
        "keep-iterator",
        "cheaper-line",
        "cheaper-sampler",
        "cheaper-sample",
        "load-once",
        "load-in-workers",
        "load-in-process",
        "keep-workers",
        "more-workers",
        "concurrent-samples",
    ),
    cause="loading",
    is_symptom=True,
    also=("load-on-thread", "shard-stream", "tune-loader", "cache-samples", "pack-samples", "stage-locally"),
)
MIN_CHEAPER_SHARE = 0.5  # of what a sampler computes, as of a sample

ADVICE = (
    Advice(
        id="cheaper-sampler",
        title="Make the sampler cheaper{sampler_at}: compute once what stays the same, draw many indices in one call",
        numerics=identical("if each batch gets the same samples"),
        after="",
        needs="a choice of samples that does not depend on the step before",
        watch="Workers and a larger prefetch_factor do not help: the sampler runs in the training process.",
        when=lambda f, _: (f.facts.get("by_sampler") or f.facts.get("order_line")) and not f.facts.get("idiom"),
        least=MIN_CHEAPER_SHARE,
        of="order_share",
    ),
    Advice(
        id="tune-loader",
        title="Measure which settings of the DataLoader hide loading",
        numerics=identical(),
        before="for batch in loader:\n    run_step(batch)",
        after="""from diagnose.kernels.loader_tuning import tune_loader

tuning = tune_loader(loader, run_step, state=(model, optimizer))   # tries settings on real steps
print(tuning)
for batch in tuning.loader:
    run_step(batch)""",
        needs="the step as a function of a batch, and some seconds at the start",
        when=lambda f, _: (
            not (_is_stream(f) or f.facts.get("restart_share") or f.facts.get("library") or f.facts.get("by_sampler"))
        ),
        remedy="diagnose.kernels.loader_tuning",
    ),
    Advice(
        id="pack-samples",
        title="Read samples from tar shards instead of many small files",
        numerics=other_training(
            "samples come in another order, and random augmentation is stored as it was drawn once"
        ),
        before="",
        after="""# once, in a script that makes the dataset; the shards hold its samples, decoded
from diagnose.kernels.shard_writing import dataset_samples, write_shards

write_shards(dataset_samples(dataset), "shards")

# in the training, instead of the DataLoader
from glob import glob
from diagnose.kernels.web_shards import WebShards

loader = WebShards(sorted(glob("shards/*.tar")), "pth", batch_size={batch}, num_workers=4)
# before each epoch, for another order: loader.set_epoch(epoch); on several ranks also epoch_batches=…""",
        needs="many small files, the package webdataset, and room for the decoded samples",
        watch="Random augmentation belongs in the `transforms` of `WebShards`. A sampler that chooses cannot be kept.",
        when=lambda f, p: (
            f.facts.get("waits")
            and not _is_stream(f)
            and p.trains is not False
            and f.facts.get("sampler") in (None, "RandomSampler", "DistributedSampler")
        ),
        remedy="diagnose.kernels.web_shards",
        modules=("diagnose.kernels.shard_writing",),
    ),
    Advice(
        id="stage-locally",
        title="Copy the data to a local disk before the run",
        numerics=identical(),
        before="python {script} --data /net/data",
        after="rsync -a /net/data/ /local/data/\npython {script} --data /local/data",
        needs="data on a network file system, and room for them on a local disk",
        when=lambda f, _: f.facts.get("waits"),
    ),
)


def _is_stream(finding: Finding) -> bool:
    """Return whether the dataset is an IterableDataset: torch gives its loader a sampler of its own."""
    return finding.facts.get("sampler") == "_InfiniteConstantSampler" or finding.facts.get("iterable") is True


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle inside the loader, in gaps that it explains; taking a batch that workers have ready is no waiting."""
    rows = t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)
    if not len(rows):
        return EMPTY
    if not loads_in_process(t):
        rows = rows[(t.trace.events.end - t.trace.events.start)[rows] > MAX_FETCH_NS]
    loading = intersect(t.covering(rows), t.gaps.host_part())
    gaps = t.gaps
    inside = covered(loading, gaps.start, gaps.end)
    mostly = 2 * inside >= gaps.end - gaps.start
    explained = intersect(
        loading, gaps.host_part(mostly | (inside >= 1_000_000))
    )  # a millisecond is a stall in any gap
    return intersect(left, longer_than(explained, 1))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of loading with the loader's arguments."""
    facts = loading_facts(t)
    title = (
        "The step waits for the DataLoader, which loads in the main process"
        if facts["single_process"]
        else "The step waits for the DataLoader's workers"
    )
    if facts["keeps_up"]:
        title = "The DataLoader's workers have batches ready, and taking one takes time"
    if facts["starts_with_epochs"]:
        title = "The DataLoader starts its workers again with each epoch"
    if facts["restart_share"]:
        title = "The step waits for the DataLoader, which restarts for each batch"
    if facts["by_sampler"]:
        slow, took = facts.get("order_line"), duration(number(facts, "order_share") * number(facts, "batch_ns"))
        title = f"The sampler takes {took} for each batch in the main process"
        if isinstance(slow, Mapping):
            place = at_line(Where(slow["file"], slow["line"]))
            title = f"The sampler takes {took} for each batch in the main process, at {place}"
    texts = loading_evidence(facts)
    if (why := call_cause(facts)) is not None:
        is_other = facts["by_sampler"] or facts["restart_share"] or facts["starts_with_epochs"]
        title = title if is_other else why.title
        texts.append(why.text)
    found = idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=texts, facts=facts))
    made = t.capture.known.loader.made if facts["starts_with_epochs"] else None
    slow = facts.get("order_line" if facts["by_sampler"] else "slow_line")
    if isinstance(slow, Mapping):  # the line that most of loading goes into comes first, as the evidence names it
        file, line = slow["file"], slow["line"]
        first = (line_at(t, file, line, str(slow.get("function", facts.get("line_function")))),)
        for i, each in enumerate(found):
            same = tuple(w for w in each.where if (w.file, w.line) == (file, line))
            others = (w for w in each.where if w not in same)
            found[i] = replace(each, where=(*(same or first), *others))
    found = [replace(each, where=(*place_of_call(made), *each.where)) for each in found]
    return [_with_edits(t, each) if facts["restart_share"] else each for each in found]


def _with_edits(t: Tables, finding: Finding) -> Finding:
    """Return the wait for a loader that restarts with the user's line rewritten."""
    place = own_place(finding.where)
    if place is None or place.file is None or place.line is None:
        return finding
    source = OwnSource(whole=t.capture.sources)
    edits = kept_iterator(source, Frame(place.file, place.line, place.function or ""))
    return replace(finding, facts={**finding.facts, "edits": edits})
