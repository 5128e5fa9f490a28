"""Loading a sample does more work than needed.

What it looks for
    diagnose loads some samples again and compares what each expression returns. It looks for results that never change,
    unused parts of large results, and float64 arrays. Calls that go through the same data in each sample count too.
    Examples: `np.isin`, `NpzFile`. Threshold: 3% of the step.

Why it costs
    The step waits for its batch while a known result is computed again, or twice the bytes are moved.

What to do
    Compute shared results in the constructor, and results of each sample once before training. Crop first, then
    compute. Create arrays as float32.

How sure
    High for repeated results and unused parts. Medium for float64: only you know which digits matter. Needs
    `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical, rounding
from diagnose.analyzers.common.batch_order import batch_order
from diagnose.analyzers.common.idioms import idiom_at, known_idiom, statement_at
from diagnose.analyzers.common.idioms.host_calls import GoneThrough, gone_through
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.loading import loading_facts, restart_share
from diagnose.analyzers.common.locate import source_line
from diagnose.model.diagnosis import Confidence, Facts, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, longer_than, union
from diagnose.model.limits import MAX_NAMED
from diagnose.model.locations import at_line
from diagnose.model.records import MAX_TEXT, ExpressionRecord, LoadedRecord
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import MAX_FETCH_NS, loads_in_process
from diagnose.tables.names import LOADER_NEXT
from diagnose.text.numbers import enumeration, percent

META = RuleMeta(
    id="wasted-sample",
    kind="idle",
    order=69,
    host_order=39,
    legend=Legend("loading did needless work"),
    changes=("cut-first", "samples-of-arrays", "cheaper-line", "cheaper-sample", "cache-samples"),
    cause="loading",
    needs=("data flow",),
)
ADVICE = (
    Advice(
        id="cut-first",
        title="Cut first, then compute: {cut.text} ({cut.place}) before what {cut.lines}, not after it",
        numerics=rounding("each element of it is computed as before"),
        needs="the random numbers of the cut drawn first, in the order in which they are drawn now",
        when=lambda f, _: "cut" in f.facts,
        least=0.7,
    ),
    Advice(
        id="samples-of-arrays",
        title="Return arrays instead of lists from the dataset{there}",
        numerics=identical(),
        after="sample = {name: np.asarray(value) for name, value in sample.items()}   # or when the data are read",
        needs="code that takes the batch as one tensor, samples first, instead of a list of tensors",
        when=lambda f, _: f.facts.get("kind") == "lists",
        least=0.8,
    ),
)
MIN_SHARE = 0.03  # of the step, and of loading: what a step's length varies by from run to run
MAX_CACHED_BYTES = 4 << 30  # of results for all samples, as SharedCache keeps by default


class _Waste(NamedTuple):
    share: float  # of loading
    text: str
    lines: tuple[ExpressionRecord, ...]
    kind: str
    confidence: Confidence = "high"
    call: GoneThrough | None = None


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
    left = set() if first.kind == "wide" else {"draws", "drawn_beside"}  # of the line that takes most
    known = {name: value for name, value in known.items() if name not in {"idiom", *left}}
    title = _TITLES.get(first.kind, "")
    if first.call is not None:
        title, (idiom, _) = first.call.title, idiom_at(t, place.file, place.line, frozenset())
        of_one = [waste.share for waste in wastes if waste.call is not None and waste.call.spared == first.call.spared]
        share = sum(of_one) / sum(waste.share for waste in wastes)
        seen = {"file": place.file, "line": place.line, "share": share, "share_around": share}
        samples = t.capture.known.loaded.samples
        known |= known_idiom(idiom, first.call, {**seen, "samples": samples}) if idiom is not None else {}
    if place.cut is not None:
        file, line, text = place.cut
        numbers = _numbers(lines)
        computing = f"line{'s' * (len(numbers) > 1)} {enumeration(numbers)} compute{'s' * (len(numbers) < 2)}"
        known |= {"cut": {"place": at_line(Where(file, line)), "text": text, "lines": computing}}
    where = tuple(
        Where(one.file, one.line, one.function, code=source_line(t, one.file, one.line))
        for one in {(one.file, one.line): one for waste in wastes[:MAX_NAMED] for one in waste.lines}.values()
    )
    texts = [waste.text for waste in wastes[:MAX_NAMED]]
    rule = IdleRule(
        META.id,
        title,
        probe="middle",
        confidence=first.confidence,
        evidence=texts,
        facts=known,
    )
    return [replace(each, where=where) for each in idle_finding(t, rule)]


_TITLES = {
    "constant": "Loading computes what is the same for every sample",
    "repeated": "Loading computes what each sample has every time it is loaded",
    "cut": "Loading computes more than the samples use",
    "lists": "Lists of numbers in the samples are collated one by one",
    "wide": "Loading computes in float64 what the step gets in fewer bits",
}


def _wasted(t: Tables) -> Intervals:
    """Return the last part of each wait for a batch: what loading would take less.

    A process that loads takes a share less. Workers make a batch as often as the step takes one
    where it waits for them: that interval becomes shorter by the share, and with it the wait. Workers that have batches
    ready are not waited for.
    """
    wastes = _wastes(t)
    rows = t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)
    if not wastes or not len(rows) or loading_facts(t)["keeps_up"]:
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
    loaded = t.capture.known.loaded
    if not loaded.total_ns:
        return []
    from diagnose.dataflow.width import narrows_inputs  # only a recorded data flow needs it

    chosen = max(batch_order(t).share, restart_share(t) or 0.0) if loads_in_process(t) else 0.0
    total_ns = loaded.total_ns / max(1 - chosen, MIN_SHARE)  # of loading; the samples alone were loaded again
    rows = loaded.expressions
    found: list[_Waste] = []
    saved: dict[int, float] = {}  # ns, by row
    taken: set[int] = set()

    def take(kind: str, whether: Callable[[ExpressionRecord], bool]) -> None:
        for row in sorted(range(len(rows)), key=lambda row: (-rows[row].ns, row)):
            ns = rows[row].ns - sum(part for other, part in saved.items() if row in (other, *rows[other].inside))
            if whether(rows[row]) and ns >= MIN_SHARE * total_ns and taken.isdisjoint((row, *rows[row].inside)):
                one, share = rows[row], ns / total_ns
                what = f" ({one.what})" if one.what else ""
                again = "in every sample" if kind == "constant" else "each time that a sample is loaded"
                text = (
                    f"The result of {one.text}{what} in line {one.line} of {one.file.rpartition('/')[2]} is the same "
                )
                text += f"{again}, and takes {percent(share, 0)} of loading."
                found.append(_Waste(share, text, (one,), kind))
                saved[row] = ns
                taken.add(row)

    calls = {
        (call.file, call.line, call.text[:MAX_TEXT]): gone_through(call, 0, statement_at(t, call.file, call.line))
        for call in loaded.calls
    }
    for row in sorted(range(len(rows)), key=lambda row: (-rows[row].own_ns, row)):
        one, call = rows[row], calls.get((rows[row].file, rows[row].line, rows[row].text))
        spared_ns = call.least * (one.ns if call.calls_back else one.own_ns) if call is not None else 0.0
        if call is not None and spared_ns >= MIN_SHARE * total_ns and taken.isdisjoint(one.inside):
            found.append(_Waste(spared_ns / total_ns, call.text, (one,), "call", call=call))
            saved[row] = spared_ns
            taken.add(row)
    found += [waste for waste in _listed(loaded) if waste.share >= MIN_SHARE]
    take("constant", lambda one: one.is_constant and not one.is_written)
    free = {row: one for row, one in enumerate(rows) if taken.isdisjoint((row, *one.inside))}
    unused = {row: one.own_ns * (1 - one.used) for row, one in free.items() if one.used < 1}
    # Arrays of float64 that nothing but loading gets to see: half of the bytes, and of the time.
    is_narrow = loaded.narrow or (t.flow is not None and narrows_inputs(t.flow.found.graph))
    wide = {row: one.own_ns / 2 for row, one in free.items() if is_narrow and one.is_wide and one.used == 1}
    for waste_of, parts in ((_cut, unused), (_wide, wide)):
        share = sum(parts.values()) / total_ns
        if share >= MIN_SHARE:
            found.append(waste_of([rows[row] for row in sorted(parts, key=lambda row: -parts[row])], share))
            saved |= parts
    if t.capture.known.loader.comes_again is True:
        size = MAX_CACHED_BYTES * max(loaded.samples, 1)
        take("repeated", lambda o: o.is_repeated and bool(o.what) and o.num_bytes * loaded.dataset_size <= size)
    return sorted(found, key=lambda waste: -waste.share)


def _numbers(lines: Iterable[int]) -> list[str]:
    return [str(line) for line in sorted({*lines})]


def _listed(loaded: LoadedRecord) -> Iterator[_Waste]:
    one = loaded.listed
    if one is not None:
        text = f"Line {one.line} of {one.file.rpartition('/')[2]} hands on lists of {one.numbers:,} numbers, as "
        text += f"{one.text}. The loader makes a tensor for each place of a list: {percent(one.share, 0)} of loading."
        where = ExpressionRecord(file=one.file, line=one.line, function=one.function, text=one.text)
        yield _Waste(one.share, text, (where,), "lists")


def _cut(ones: Sequence[ExpressionRecord], share: float) -> _Waste:
    most, lines = ones[0], _numbers(one.line for one in ones if one.file == ones[0].file)
    where = f"Line{'s' * (len(lines) > 1)} {enumeration(lines)}"
    text = f"{where} of {most.file.rpartition('/')[2]} {'computes' if len(lines) == 1 else 'compute'} {most.text} "
    text += f"({most.what}) and cut it: a sample uses {percent(most.used, 0)} of the elements. The part that it "
    text += f"uses can be computed without the rest, which takes {percent(share, 0)} of loading."
    return _Waste(share, text, tuple(ones), "cut")


def _wide(ones: Sequence[ExpressionRecord], share: float) -> _Waste:
    most = ones[0]
    text = f"Lines {enumeration(_numbers(one.line for one in ones))} of {most.file.rpartition('/')[2]}"
    text += f" compute in float64, as {most.text} ({most.what}); the step computes nothing in float64."
    return _Waste(share, text, tuple(ones), "wide", "medium")
