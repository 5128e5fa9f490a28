"""What is known of the script's DataLoader. Shared by device and host rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Set

import numpy as np

from diagnose.analyzers.common.batch_order import BatchOrder, batch_order, makes_iterators
from diagnose.analyzers.common.idioms import idiom_facts
from diagnose.analyzers.common.locate import MAX_LINES_APART, source_line
from diagnose.analyzers.common.sample_work import work_facts
from diagnose.model.arrays import Ints, Mask
from diagnose.model.capture import Samples
from diagnose.model.diagnosis import Facts
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, contains, quantiles, span
from diagnose.model.locations import Where, at_line, is_own_file, is_user_file
from diagnose.model.records import LoaderRecord, as_facts
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.host_gaps import ready_share, waiting_share
from diagnose.tables.names import LOADER_NEXT
from diagnose.tables.run_steps import is_loop_head
from diagnose.text.numbers import duration, percent, plural

__all__ = ["loading_evidence", "loading_facts", "restart_share"]

# Loaders that begin anew for each batch: ``next(iter(loader))`` draws the order of all samples to read a few.

MIN_CALLS = 4  # fewer may be epochs
MIN_RESTARTED = 0.9  # of the calls: with epochs of a few batches some go on
_ORDERS = ("aten::randperm", "aten::multinomial")
_BEGIN = r"^aten::(empty|random_|item|_local_scalar_dense|randperm|scalar_tensor|resize_|resolve_\w+)$"


def restart_share(t: Tables) -> float | None:
    """Return which share of loading beginning anew takes: drawing the order, and making a list of it.

    That is from the begin of the call to the first operator that reads samples. None where most calls go on with an
    order that is there, or frames show that the loader makes no iterator for them, so that a sampler of the script's
    draws; a loader that does not shuffle shows nothing.
    """
    made = makes_iterators(t)
    if made is not None and made < MIN_RESTARTED:
        return None
    events, names = t.trace.events, t.trace.names
    calls = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    rows = host_rows(t.trace, t.main, Kind.OP)
    draws = rows[among(events.name[rows], [names.index(each) for each in _ORDERS if each in names])]
    if len(calls) < MIN_CALLS or not len(draws):
        return None
    start, end = events.start[calls], events.end[calls]
    drawn = np.searchsorted(events.start[draws], start)
    order = draws[np.minimum(drawn, len(draws) - 1)]
    restarted = (drawn < len(draws)) & (events.start[order] < end)
    if restarted.mean() < MIN_RESTARTED:
        return None
    reads = np.array([re.match(_BEGIN, name) is None for name in names], bool)
    begun = np.append(events.start[rows[reads[events.name[rows]]]], np.iinfo(np.int64).max)
    after = np.where(restarted, events.end[order], start)
    until = np.minimum(begun[np.searchsorted(begun, after, side="left")], end)
    return float((until - start)[restarted].sum() / max(int((end - start).sum()), 1))


MIN_SAMPLES = 5
MIN_LINE_SAMPLES, MIN_LINE_SHARE = 8, 0.5  # within loading: of fewer one line has most by chance
MIN_STEP_LINE_SAMPLES = 12  # of recorded steps: they are taken more exactly than the others, which are left out then
# A function of up to so many sampled lines is named as one, where one loop of it has less than most of its samples.
MAX_FUNCTION_LINES, MAX_FUNCTION_SHARE = 12, 0.75
MIN_LOOP_LINE_SHARE = 0.3  # that one line of a longer loop has, for the loop's function to be named
MAX_BETWEEN = 4  # lines from one sampled line of a function to the next
MIN_WITHIN = 4  # samples of a function: of fewer it is chance that none lies outside of loading
MAX_OUTSIDE = 0.05  # of a function's samples: beyond one, it is the loop that loads and trains
MAX_LINE_WAITING = 0.3  # of its samples: a line that computes waits for a core at times
_OF_A_DATASET = frozenset({"__getitem__", "__getitems__", "__next__", "__iter__"})
MIN_BATCHES, MIN_EPOCHS = 3, 2  # of an epoch, and watched: of two batches one waits longer than the other
MIN_FIRST_SHARE = 0.6  # of the waits, in the first batches of epochs: workers that are started again make most of them
NEARLY_ALL = 0.95  # of the other waits: a busy machine makes some of them long
MAX_FETCHES = 20  # of the dataset's calls: one kind of dataset does the same in all of them
_FETCH = re.compile(r"torch/utils/data/_utils/fetch\.py\(\d+\): fetch$")
_CALLS = 8  # frames inside a fetch, among which the dataset's own first one is
# Of the samples within loading, or of its workers' lives: it is reading or waiting then, not computing.
MIN_WAITING_SHARE = 0.5
MIN_READY = 0.8  # of the batches, from which on workers keep up: taking a batch is what takes time


def loading_facts(t: Tables) -> Facts:
    """Return the loader's arguments where the capture has them, and what the trace shows of it."""
    rows = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    names = {t.name(row) for row in rows.tolist()}
    lengths = (t.trace.events.end - t.trace.events.start)[rows]
    known = t.capture.info.loader if t.capture.info else LoaderRecord()
    single = any("SingleProcess" in name for name in names)
    by_workers = any("MultiProcess" in name for name in names)
    if (by_workers and not single and known.num_workers == 0) or (single and not by_workers and known.num_workers):
        known = LoaderRecord()  # that of another loader, as one that evaluates
    first_share = _first_batch_share(t, lengths, known.num_batches)
    starts = bool(known.num_workers) and not known.persistent_workers and (first_share or 0.0) >= MIN_FIRST_SHARE
    keeps_up = known.batches_ready is not None and known.batches_ready >= MIN_READY and not starts
    share = _waiting_share(t, rows, single=single, busy=known.workers_busy) if not keeps_up else None
    order, restarts = batch_order(t), restart_share(t)
    by_sampler = order.share >= MIN_LINE_SHARE and (single or keeps_up) and not (starts or restarts)
    return {
        **as_facts(known),
        "single_process": single,
        "num_workers": 0 if known.num_workers is None and single else known.num_workers,
        "batch_ns": int(np.median(lengths)) if len(lengths) else 0,
        "batches_per_step": len(rows) / max(1, t.steps.num),
        "first_batch_share": first_share,
        "starts_with_epochs": starts,  # a batch that workers have ready meanwhile is taken at once
        "has_device": t.device_id >= 0,
        "num_threads": t.capture.info.flags.num_threads if t.capture.info else None,
        "cores": t.capture.info.flags.cores if t.capture.info else None,
        "waits": share is not None and share >= MIN_WAITING_SHARE and not by_sampler,
        "keeps_up": keeps_up,
        "waiting_share": share,
        "restart_share": restarts,
        "order_share": order.share,
        "by_sampler": by_sampler,
        "sampler_at": "",
        **(_sampler_line(t, t.covering(rows), order) if (single or keeps_up) and not (starts or restarts) else {}),
        "source_draws": any(t.capture.draws.values()),
        "ready_share": ready_share(t),
        **_dataset(t),
        **(_slow_line(t, t.covering(rows), order) if single else {}),
    }


def _waiting_share(t: Tables, rows: Ints, *, single: bool, busy: float | None) -> float | None:
    """Return for which part of its time loading waits off the CPU, None where too little was seen of it."""
    if not single:
        return None if busy is None else 1 - busy
    seen, waiting = waiting_share(t, t.covering(rows), least=0.0)
    num = int(seen.sum())
    return int(waiting.sum()) / num if num >= MIN_SAMPLES else None


def _sampler_line(t: Tables, during: Intervals, order: BatchOrder) -> Facts:
    """Return the user's line that the sampler computes at most often, and what it draws there."""
    samples = t.capture.samples
    if samples is None or not order.places:
        return {}
    inside = contains(during, samples.time_ns - t.trace.epoch_ns) & (samples.place >= 0)
    seen = Counter(samples.places[row] for row in samples.place[inside].tolist())
    mine = {place: num for place, num in seen.items() if place[:2] in order.places and is_own_file(place[0])}
    if not mine:
        return {}
    file, line, function = max(mine, key=lambda place: mine[place])
    found = {"file": file, "line": line, "function": function}
    return {"order_line": found, "sampler_at": f" at {at_line(Where(file, line))}", **idiom_facts(t, mine)}


def _slow_line(t: Tables, during: Intervals, order: BatchOrder) -> Facts:
    """Return the line of the user's that most samples within loading are at, with those beside it, and that computes.

    With it comes the share of loading that goes into samples at all.

    A loop goes over a few lines; a line that waits is made no cheaper by computing less. Samples of steps that were not
    recorded count too, where they show a call of the dataset or a function that mostly loads; which line of several
    beside each other it is, those of recorded steps show, which are taken more exactly.
    """
    samples, run, whole = t.capture.samples, t.capture.run, 0.0
    seen: Counter[tuple[str, int]] = Counter()
    places: Counter[tuple[str, int, str]] = Counter()
    still: Counter[tuple[str, int]] = Counter()
    functions: dict[tuple[str, int], str] = {}
    loads: Set[tuple[str, str]] = frozenset()
    if samples is not None and t.trace.epoch_ns and len(during.start):
        inside = contains(during, samples.time_ns - t.trace.epoch_ns) & (samples.place >= 0)
        computing = samples.place[inside & (samples.running != 0)]
        places.update(samples.places[row] for row in computing.tolist())
        at = [samples.places[row][:2] for row in samples.place[inside].tolist()]
        seen.update(at)
        still.update(place for place, runs in zip(at, samples.running[inside].tolist(), strict=True) if runs == 0)
        functions = {(file, line): function for file, line, function in samples.places}
        watched = contains(span(*t.steps.window), samples.time_ns - t.trace.epoch_ns)
        loads, whole = _of_samples(samples, inside, watched)
    recorded = Counter(seen)
    if run is not None and seen and sum(seen.values()) < MIN_STEP_LINE_SAMPLES:
        paths = [run.paths[row] for row in run.path.tolist() if row >= 0]
        inner = [p[0] for p in paths if (p[0][0], p[0][2]) in loads or any(name in _OF_A_DATASET for *_, name in p)]
        seen.update(place[:2] for place in inner)
        places.update(inner)
    num = sum(seen.values())
    if num < MIN_LINE_SAMPLES:
        return {}
    called = {place[::2] for place in places if place[2] in _OF_A_DATASET} | loads
    called |= {p[0][::2] for p in (run.paths if run is not None else ()) if any(n in _OF_A_DATASET for *_, n in p)}
    if order.loading is not None:
        called &= order.loading
    others = [at for at in recorded if (at[0], functions[at]) in called and at not in order.places]
    of_samples = [at for at in others if not _fetches(t, at, functions[at])]
    if not of_samples:  # in torch's own code, which the line of the training loop calls
        return work_facts(t, places, num, (), order.places)
    most = max(of_samples, key=lambda at: (recorded[at], seen[at]))
    near = [at for at in _lines_around(most, seen, functions) if at not in order.places]
    share = sum(seen[at] for at in near) / num
    waiting = sum(still[at] for at in near) / max(sum(seen[at] for at in near), 1)
    if share < MIN_LINE_SHARE or waiting >= MAX_LINE_WAITING or not is_own_file(most[0]):
        return work_facts(t, places, num, (), order.places)
    lines = [line for _, line in near]
    return {
        "slow_line": {"file": most[0], "line": most[1], "share": share, "first": min(lines), "last": max(lines)},
        "sample_share": max(share, whole),
        "line_samples": num,
        "line_function": functions[most],
        **idiom_facts(t, {place: places[place] for place in places if place[:2] in near}, places.total()),
        **work_facts(t, places, num, sorted(near, key=most.__ne__), order.places),
    }


def _fetches(t: Tables, at: tuple[str, int], function: str) -> bool:
    """Return whether a line is the head of a loop over batches, as one that evaluates: it calls what loads."""
    return function not in _OF_A_DATASET and is_loop_head(source_line(t, *at))


def _lines_around(
    most: tuple[str, int], seen: Counter[tuple[str, int]], functions: dict[tuple[str, int], str]
) -> list[tuple[str, int]]:
    """Return the sampled lines of the loop that one belongs to, or of its short function where others take a part.

    Of a long loop, in which no lines near each other have most of the samples, it is all of the function.
    """
    file, line = most
    near = [at for at in seen if at[0] == file and abs(at[1] - line) <= MAX_LINES_APART]
    function = [most]
    for at in sorted(seen, key=lambda at: abs(at[1] - line)):  # another class may have a function of that name
        between = min(abs(at[1] - known) for _, known in function)
        if at[0] == file and functions.get(at) == functions.get(most) and 0 < between <= MAX_BETWEEN:
            function.append(at)
    is_short = max(at[1] for at in function) - min(at[1] for at in function) < MAX_FUNCTION_LINES
    num, num_near = (sum(seen[at] for at in part) for part in (function, near))
    found = function if is_short and num_near < MAX_FUNCTION_SHARE * num else near
    if (
        sum(seen[at] for at in found) >= MIN_LINE_SHARE * seen.total()
        or seen[most] < MIN_LOOP_LINE_SHARE * seen.total()
    ):
        return found
    whole = [at for at in seen if at[0] == file and functions.get(at) == functions.get(most)]
    return whole if sum(seen[at] for at in whole) >= MAX_FUNCTION_SHARE * seen.total() else found


def _of_samples(samples: Samples, inside: Mask, watched: Mask) -> tuple[Set[tuple[str, str]], float]:
    """Return the functions that only run within loading, and their share of it: the dataset's, not the step's loop.

    Where batches are collated the innermost line outside torch is that of the loop, which is seen outside of loading
    too. ``watched``: samples of steps whose loading is known.
    """
    functions = [(file, function) for file, _, function in samples.places]
    within = Counter(functions[row] for row in samples.place[inside].tolist())
    others = Counter(functions[row] for row in samples.place[watched & ~inside & (samples.place >= 0)].tolist())
    found = {each for each, num in within.items() if num >= MIN_WITHIN and others[each] <= max(MAX_OUTSIDE * num, 1)}
    return found, sum(within[each] for each in found) / max(within.total(), 1)


def _first_batch_share(t: Tables, lengths: Ints, num_batches: int | None) -> float | None:
    """Return the share of the waits that epochs' first batches have; None where too few epochs were watched.

    All steps of the run show it, recorded or not, where a step takes one batch. In a recording an epoch is its batches,
    with or without the call that finds no more.
    """
    if not num_batches or num_batches < MIN_BATCHES:
        return None
    of_run = [t.capture.run.phase("loading")] if t.capture.run is not None else []
    watched = [*((waits, num_batches) for waits in of_run), (lengths, num_batches), (lengths, num_batches + 1)]
    found = (_share_of_first(waits, period) for waits, period in watched)
    return next((share for share in found if share is not None), None)


def _share_of_first(waits: Ints, period: int) -> float | None:
    """Return the share of the waits at one place of each period, each of which is longer than nearly all others."""
    if len(waits) < MIN_EPOCHS * period:
        return None
    at = max(range(period), key=lambda start: int(waits[start::period].sum()))
    first, others = waits[at::period], np.delete(waits, np.s_[at::period])
    if first.min() <= quantiles(others, NEARLY_ALL)[0]:
        return None
    return float(first.sum() / max(int(waits.sum()), 1))


def _dataset(t: Tables) -> Facts:
    """Return whether the dataset is iterable and which library made it, as far as Python frames show."""
    found = [_inside(t, row) for row in t.in_window(t.calls(_FETCH, Kind.PYTHON))[:MAX_FETCHES].tolist()]
    first = [frames[0] for frames in found if frames]
    if not first:
        return {}
    iterable = all(name == "<built-in function next>" or name.endswith((": __next__", ": __iter__")) for name in first)
    files = [name.rpartition("(")[0] for frames in found for name in frames if is_user_file(name)]
    library = files[0].split("/", maxsplit=1)[0] if files and not is_own_file(files[0]) else ""
    return {"iterable": iterable, "library": library}


def _inside(t: Tables, fetch: int) -> list[str]:
    """Return the names of the first Python frames that began inside one."""
    events = t.trace.events
    rows = t.host_rows(Kind.PYTHON)
    first = int(np.searchsorted(events.start[rows], events.start[fetch], side="right"))
    near = [r for r in rows[first : first + _CALLS].tolist() if events.thread[r] == events.thread[fetch]]
    return [t.name(r) for r in near if events.end[r] <= events.end[fetch]]


def loading_evidence(facts: Facts) -> list[str]:
    """State what one batch costs and how it is loaded."""
    how = "in the main process" if facts["single_process"] else "by worker processes"
    workers = facts.get("num_workers")
    count = f" (num_workers={workers})" if workers is not None else ""
    spends = " Loading waits off the CPU most of that time." if facts.get("waits") else ""
    busy = facts.get("workers_busy")
    if isinstance(busy, float):
        spends = f" The workers compute {percent(busy, 0)} of their time."
    ready = facts.get("batches_ready")
    if isinstance(ready, float):
        spends += f" {percent(ready, 0)} of the batches were ready when they were asked for."
    slow = facts.get("slow_line")
    if isinstance(slow, Mapping):
        whole = _number(facts, "sample_share")
        beside = f", the whole sample {percent(whole, 0)}" if whole > slow["share"] else ""
        lines, takes = f"{slow['line']} takes", percent(slow["share"], 0)
        if slow["first"] < slow["last"]:
            lines = f"{slow['first']} to {slow['last']}, most often {slow['line']}, take"
        spends += f" {slow['file'].rpartition('/')[2]}:{lines} {takes} of it{beside}."
    if facts.get("by_sampler") or facts.get("order_line"):
        takes, at = percent(_number(facts, "order_share"), 0), facts.get("sampler_at")
        most = f", most often{at}" if at else ""
        spends += f" The sampler, which runs in the training process, takes {takes} of loading{most}."
    first = facts.get("first_batch_share")
    if facts.get("starts_with_epochs") and isinstance(first, float):
        spends += f" {percent(first, 0)} of the waits are for the first batch of an epoch, which starts the workers."
    restart = facts.get("restart_share")
    if isinstance(restart, float):
        spends += f" Each call draws the order of all samples again, which takes {percent(restart, 0)} of it."
    said = [f"One batch is loaded {how}{count}; the median wait is {duration(_number(facts, 'batch_ns'))}.{spends}"]
    counters = facts.get("counters")
    return said + (_counted(counters) if isinstance(counters, Mapping) else [])


def _counted(counters: Mapping[str, float]) -> list[str]:
    """State what Linux counted of the processes that load; what it does not show is left out."""
    user, system = counters.get("user_ms_per_sample"), counters.get("system_ms_per_sample")
    who = f"the {plural(int(counters['processes']), 'worker')}" if user is not None else "the training process"
    parts = []
    disk, read, cached = (counters.get(name) for name in ("disk_mb_per_s", "read_mb_per_s", "cached_share"))
    if disk is not None and read is not None:
        share = "" if cached is None else f", {percent(cached, 0)} of it from the page cache"
        parts.append(f"read {read:.3g} MB/s{share}: {disk:.3g} MB/s from storage")
    if user is not None and system is not None:
        parts.append(
            f"take {user:.2g} ms of CPU a sample to decode and transform and {system:.2g} ms in the kernel to read "
            "and copy"
        )
        parts.append(f"use {percent(counters.get('cpu_share', 0), 0)} of a core each")
    if counters.get("major_faults_per_s", 0) >= 1:
        parts.append(f"fetch {counters['major_faults_per_s']:.0f} pages a second by major faults")
    if counters.get("swapped_mb", 0) >= 1:
        parts.append(f"have {counters['swapped_mb']:.0f} MB swapped out")
    return [f"While steps were recorded {who} {'; '.join(parts)}."] if parts else []


def _number(facts: Facts, key: str) -> float:
    value = facts.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
