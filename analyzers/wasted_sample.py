"""Loading computes what is known already, or wider than needed.

What it looks for
    Some samples of the DataLoader are loaded again after the recording, and each expression of the script is looked
    at: results that are the same in every sample, results that a sample has each time it is loaded, where the script
    comes back to its samples, large results of which a sample cuts out a part, and arrays of float64 that become
    narrower before the step gets them. At least 3 % of the step, where it waits for its batches.

Why it costs
    The step waits for its next batch while a result is computed that was known before, or twice the bytes are moved.

What to do
    Compute it once: what is the same in every sample in the constructor, what belongs to a sample before the training.
    Cut the part out first, and compute that. Convert to float32 where the array is made.

How sure
    High that the results are the same: their contents were compared. The same for a part: the operation was run on
    that part alone, and its result compared. Medium for float64, whose digits only the script's author can judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.loading import loading_facts
from diagnose.analyzers.common.locate import source_line
from diagnose.model.diagnosis import Confidence, Facts, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, longer_than, union
from diagnose.model.loaded import ExpressionRecord, LoadedRecord
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import MAX_FETCH_NS, loads_in_process
from diagnose.tables.names import LOADER_NEXT
from diagnose.text.numbers import percent

META = RuleMeta(
    id="wasted-sample",
    kind="idle",
    order=69,
    host_order=39,
    legend=Legend("loading computed what is known or too wide", "#c98a3a"),
    changes=("cheaper-sample", "cache-samples"),
    cause="loading",
    needs=("data flow",),
)
MIN_SHARE = 0.03  # of the step, and of loading: what a step's length varies by from run to run
NARROWER = 0.5  # of the time that is saved with half of the bytes
MAX_KEPT_BYTES = 4 << 30  # of results for all samples, as SharedCache keeps by default
MAX_NAMED = 3


class _Waste(NamedTuple):
    share: float  # of loading
    text: str
    lines: tuple[ExpressionRecord, ...]
    kind: str
    confidence: Confidence = "high"


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle time at the end of the waits for batches: as much as loading takes for what can be avoided."""
    return worth_claiming(t, left, intersect(_wasted(t), t.gaps.host_part()), MIN_SHARE)


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the same of the host's time."""
    return worth_claiming(t, left, _wasted(t), MIN_SHARE)


def find(t: Tables) -> list[Finding]:
    """Name the expressions, the one that takes most first."""
    wastes = _wastes(t)
    if not wastes:
        return []
    first, facts = wastes[0], loading_facts(t)
    place = first.lines[0]
    lines = [one.line for one in first.lines if one.file == place.file]
    slow = {"file": place.file, "line": place.line, "share": first.share, "first": min(lines), "last": max(lines)}
    known: Facts = {**facts, "kind": first.kind, "slow_line": slow, "sample_share": first.share, "behind_draw": False}
    if first.kind != "wide":
        known = {name: value for name, value in known.items() if name not in ("draws", "drawn_beside")}
    where = tuple(
        Where(one.file, one.line, one.function, code=source_line(t, one.file, one.line))
        for one in {(one.file, one.line): one for waste in wastes[:MAX_NAMED] for one in waste.lines}.values()
    )
    texts = [waste.text for waste in wastes[:MAX_NAMED]]
    rule = IdleRule(
        META.id,
        _TITLES[first.kind],
        probe="middle",
        confidence=first.confidence,
        evidence=lambda _t, _o: texts,
        facts=known,
    )
    return [replace(each, where=where) for each in idle_finding(t, rule)]


_TITLES = {
    "constant": "Loading computes what is the same for every sample",
    "repeated": "Loading computes what each sample has every time it is loaded",
    "cut": "Loading computes more than the samples use",
    "wide": "Loading computes in float64 what the step gets in fewer bits",
}


def _wasted(t: Tables) -> Intervals:
    """Return the last part of each wait for a batch: what loading would take less.

    A process that loads takes a share less. Workers make a batch as often as the step takes one where it waits for
    them: that interval becomes shorter by the share, and with it the wait.
    """
    wastes = _wastes(t)
    rows = t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)
    if not wastes or not len(rows):
        return EMPTY
    share, in_process = min(sum(waste.share for waste in wastes), 1.0), loads_in_process(t)
    loading = union(EMPTY, t.covering(rows))
    if not in_process:
        loading = longer_than(loading, MAX_FETCH_NS)
    start, end = loading
    window_start, window_end = t.steps.window
    took = end - start if in_process else np.full(len(start), (window_end - window_start) / max(len(rows), 1))
    saved = np.minimum((took * share).astype(np.int64), end - start)
    return longer_than(Intervals(end - saved, end), 1)


def _wastes(t: Tables) -> list[_Waste]:
    """Return what can be avoided, nothing twice, the largest part first."""
    info = t.capture.info
    loaded = info.loaded if info is not None else LoadedRecord()
    if info is None or not loaded.total_ns:
        return []
    comes_again = info.loader.comes_again is True
    found: list[_Waste] = []
    taken: set[int] = set()
    order = sorted(range(len(loaded.expressions)), key=lambda row: (-loaded.expressions[row].ns, row))
    for row in order:
        one = loaded.expressions[row]
        kind = _kind(one, loaded, comes_again=comes_again)
        if kind and one.ns >= MIN_SHARE * loaded.total_ns and taken.isdisjoint((row, *one.inside)):
            found.append(_known(one, kind, loaded))
            taken.add(row)
    free = [one for row, one in enumerate(loaded.expressions) if taken.isdisjoint((row, *one.inside))]
    parts = [waste for waste in (_cut(free, loaded), _wide([one for one in free if one.used == 1], loaded)) if waste]
    return sorted([*found, *parts], key=lambda waste: -waste.share)


def _kind(one: ExpressionRecord, loaded: LoadedRecord, *, comes_again: bool) -> str:
    if one.is_constant and not one.is_written:
        return "constant"
    kept = one.num_bytes / max(loaded.samples, 1) * loaded.dataset_size
    return "repeated" if one.is_repeated and comes_again and one.what and kept <= MAX_KEPT_BYTES else ""


def _known(one: ExpressionRecord, kind: str, loaded: LoadedRecord) -> _Waste:
    share = one.ns / loaded.total_ns
    what = f" ({one.what})" if one.what else ""
    again = "in every sample" if kind == "constant" else "each time that a sample is loaded"
    text = f"The result of {one.text}{what} in line {one.line} of {one.file.rpartition('/')[2]} is the same {again}"
    text += f", and takes {percent(share, 0)} of loading."
    return _Waste(share, text, (one,), kind)


def _cut(free: Sequence[ExpressionRecord], loaded: LoadedRecord) -> _Waste | None:
    """Return the results of which samples use a part; the one that takes most stands first."""
    cut = sorted((one for one in free if one.used < 1), key=lambda one: -one.own_ns * (1 - one.used))
    share = sum(one.own_ns * (1 - one.used) for one in cut) / loaded.total_ns
    if share < MIN_SHARE:
        return None
    most, lines = cut[0], sorted({one.line for one in cut if one.file == cut[0].file})
    where = f"Line {lines[0]}" if len(lines) == 1 else f"Lines {', '.join(map(str, lines))}"
    text = f"{where} of {most.file.rpartition('/')[2]} {'computes' if len(lines) == 1 else 'compute'} {most.text} "
    text += f"({most.what}) and cut it: a sample uses {percent(most.used, 0)} of the elements, and the part that it "
    text += f"uses can be computed alone. The rest takes {percent(share, 0)} of loading."
    return _Waste(share, text, tuple(cut), "cut")


def _wide(free: Sequence[ExpressionRecord], loaded: LoadedRecord) -> _Waste | None:
    """Return the arrays of float64 that nothing but loading gets to see; the first to make one stands first."""
    wide = [one for one in free if one.is_wide]
    share = NARROWER * sum(one.own_ns for one in wide) / loaded.total_ns
    if not loaded.narrow or share < MIN_SHARE:
        return None
    most = max(wide, key=lambda one: one.own_ns)
    lines = dict.fromkeys([most, *sorted(wide, key=lambda one: -one.own_ns)])
    text = f"Lines {', '.join(map(str, sorted({one.line for one in wide})))} of {most.file.rpartition('/')[2]}"
    text += f" compute in float64, as {most.text} ({most.what}); the batch holds no float64."
    return _Waste(share, text, tuple(lines), "wide", "medium")
