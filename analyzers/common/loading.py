"""What is known of the script's DataLoader. Shared by device and host rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Set
from itertools import compress

import numpy as np

from diagnose.analyzers.common.batch_order import MIN_LINE_SAMPLES, BatchOrder, batch_order, makes_iterators
from diagnose.analyzers.common.idioms import idiom_facts
from diagnose.analyzers.common.locate import MAX_LINES_APART, seen_during, source_line
from diagnose.analyzers.common.sample_work import work_facts
from diagnose.model.arrays import Ints, Mask
from diagnose.model.capture import Samples
from diagnose.model.diagnosis import Facts
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, contains, quantiles, span
from diagnose.model.limits import MAJORITY, NEARLY_ALL
from diagnose.model.locations import Where, at_line, is_own_file, is_user_file
from diagnose.model.numerics import number
from diagnose.model.records import LoaderRecord, as_facts
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.host_gaps import ready_share, waiting_share
from diagnose.tables.names import LOADER_NEXT
from diagnose.tables.run_steps import is_loop_head
from diagnose.text.numbers import duration, percent, plural

_ORDERS = ("aten::randperm", "aten::multinomial")
_BEGIN = r"^aten::(empty|random_|item|_local_scalar_dense|randperm|scalar_tensor|resize_|resolve_\w+)$"


def restart_share(t: Tables) -> float | None:
    """Return the share of loading that ``next(iter(loader))`` takes to draw the order, and to make a list of it.

    That is from the begin of the call to the first operator that reads samples. None where most calls go on with an
    order that is there, or frames show that the loader makes no iterator for them, so that a sampler of the script's
    draws; a loader that does not shuffle shows nothing.
    """
    made = makes_iterators(t)
    if made is not None and made < NEARLY_ALL:
        return None
    events, names = t.trace.events, t.trace.names
    calls = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    rows = host_rows(t.trace, t.main, Kind.OP)
    draws = rows[among(events.name[rows], [names.index(each) for each in _ORDERS if each in names])]
    if len(calls) < 4 or not len(draws):  # fewer calls may be epochs
        return None
    start, end = events.start[calls], events.end[calls]
    drawn = np.searchsorted(events.start[draws], start)
    order = draws[np.minimum(drawn, len(draws) - 1)]
    restarted = (drawn < len(draws)) & (events.start[order] < end)
    if restarted.mean() < NEARLY_ALL:
        return None
    reads = np.array([re.match(_BEGIN, name) is None for name in names], bool)
    begun = np.append(events.start[rows[reads[events.name[rows]]]], np.iinfo(np.int64).max)
    after = np.where(restarted, events.end[order], start)
    until = np.minimum(begun[np.searchsorted(begun, after, side="left")], end)
    return float((until - start)[restarted].sum() / max(int((end - start).sum()), 1))


MIN_LOOP_LINE_SHARE = 0.3  # that one line has, for its function to be named where its loop has less than half
MAX_LINE_WAITING = 0.3  # of its samples: a line that computes waits for a core at times
_OF_A_DATASET = frozenset({"__getitem__", "__getitems__", "__next__", "__iter__"})
MIN_FIRST_SHARE = 0.6  # of the waits, in the first batches of epochs: workers that are started again make most of them
_FETCH = re.compile(r"torch/utils/data/_utils/fetch\.py\(\d+\): fetch$")
MIN_READY = 0.8  # of the batches, from which on workers keep up: taking a batch is what takes time


def loading_facts(t: Tables) -> Facts:
    """Return the loader's arguments where the capture has them, and what the trace shows of it."""
    rows = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    names = {t.name(row) for row in rows.tolist()}
    lengths = (t.trace.events.end - t.trace.events.start)[rows]
    known = t.capture.known.loader
    single = any("SingleProcess" in name for name in names)
    by_workers = any("MultiProcess" in name for name in names)
    if (by_workers and not single and known.num_workers == 0) or (single and not by_workers and known.num_workers):
        known = LoaderRecord()  # that of another loader, as one that evaluates
    first_share = _first_batch_share(t, lengths, known.num_batches)
    starts = bool(known.num_workers) and not known.persistent_workers and (first_share or 0.0) >= MIN_FIRST_SHARE
    keeps_up = known.batches_ready is not None and known.batches_ready >= MIN_READY and not starts
    share = None  # of loading, in which it waits off the CPU
    if not keeps_up and single:
        seen, waiting = waiting_share(t, t.covering(rows), least=0.0)
        share = int(waiting.sum()) / int(seen.sum()) if seen.sum() >= 5 else None
    elif not keeps_up and known.workers_busy is not None:
        share = 1 - known.workers_busy
    order, restarts = batch_order(t), restart_share(t)
    by_sampler = order.share >= MAJORITY and (single or keeps_up) and not (starts or restarts)
    return {
        **as_facts(known),
        "single_process": single,
        "num_workers": 0 if known.num_workers is None and single else known.num_workers,
        "batch_ns": int(np.median(lengths)) if len(lengths) else 0,
        "batches_per_step": len(rows) / max(1, t.steps.num),
        "first_batch_share": first_share,
        "starts_with_epochs": starts,  # a batch that workers have ready meanwhile is taken at once
        "has_device": t.device_id >= 0,
        "num_threads": t.capture.known.flags.num_threads,
        "cores": t.capture.known.flags.cores,
        "waits": share is not None and share >= 0.5 and not by_sampler,  # it reads or waits then
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


def _sampler_line(t: Tables, during: Intervals, order: BatchOrder) -> Facts:
    """Return the user's line that the sampler computes at most often, and what it draws there."""
    seen = seen_during(t, during)
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
    samples, run = t.capture.samples, t.capture.run
    if samples is None or not t.trace.epoch_ns or not len(during.start):
        return {}
    time = samples.time_ns - t.trace.epoch_ns
    inside = contains(during, time) & (samples.place >= 0)
    every = [samples.places[row] for row in samples.place[inside].tolist()]
    running = [runs != 0 for runs in samples.running[inside].tolist()]
    places = Counter(compress(every, running))
    recorded = Counter(place[:2] for place in every)
    seen, computing = Counter(recorded), Counter(place[:2] for place in compress(every, running))
    functions = {(file, line): function for file, line, function in samples.places}
    loads, whole = _of_samples(samples, inside, contains(span(*t.steps.window), time))
    paths = run.paths if run is not None else ()
    of_dataset = [any(name in _OF_A_DATASET for *_, name in path) for path in paths]
    if run is not None and 0 < seen.total() < MIN_LINE_SAMPLES:
        rows = (row for row in run.path.tolist() if row >= 0)
        inner = [paths[row][0] for row in rows if of_dataset[row] or paths[row][0][::2] in loads]
        for counted in (seen, computing):
            counted.update(place[:2] for place in inner)
        places.update(inner)
    num = seen.total()
    if num < MIN_LINE_SAMPLES:
        return {}
    called = {place[::2] for place in places if place[2] in _OF_A_DATASET} | loads
    called |= {path[0][::2] for path in compress(paths, of_dataset)}
    if order.loading is not None:
        called &= order.loading
    others = [at for at in recorded if (at[0], functions[at]) in called and at not in order.places]
    # The head of a loop over batches, as one that evaluates, calls what loads.
    of_samples = [at for at in others if functions[at] in _OF_A_DATASET or not is_loop_head(source_line(t, *at))]
    if not of_samples:  # in torch's own code, which the line of the training loop calls
        return work_facts(t, places, num, (), order.places)
    most = max(of_samples, key=lambda at: (recorded[at], seen[at]))
    near = [at for at in _lines_around(most, seen, functions) if at not in order.places]
    share = sum(seen[at] for at in near) / num
    waiting = 1 - sum(computing[at] for at in near) / max(sum(seen[at] for at in near), 1)
    if share < MAJORITY or waiting >= MAX_LINE_WAITING or not is_own_file(most[0]):
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


def _lines_around(
    most: tuple[str, int], seen: Counter[tuple[str, int]], functions: dict[tuple[str, int], str]
) -> list[tuple[str, int]]:
    """Return the sampled lines near one, or of its function if those have no majority and the line stands out."""
    file, line = most
    near = [at for at in seen if at[0] == file and abs(at[1] - line) <= MAX_LINES_APART]
    if 2 * sum(seen[at] for at in near) > seen.total() or seen[most] < MIN_LOOP_LINE_SHARE * seen.total():
        return near
    return [at for at in seen if at[0] == file and functions.get(at) == functions.get(most)]


def _of_samples(samples: Samples, inside: Mask, watched: Mask) -> tuple[Set[tuple[str, str]], float]:
    """Return the functions that only run within loading, and their share of it: the dataset's, not the step's loop.

    Where batches are collated the innermost line outside torch is that of the loop, which is seen outside of loading
    too. ``watched``: samples of steps whose loading is known.
    """
    functions = [(file, function) for file, _, function in samples.places]
    within = Counter(functions[row] for row in samples.place[inside].tolist())
    others = Counter(functions[row] for row in samples.place[watched & ~inside & (samples.place >= 0)].tolist())
    # Of few samples it is chance that none lies outside of loading; of many, one in twenty may be late.
    found = {each for each, num in within.items() if num >= 4 and others[each] <= max(num / 20, 1)}
    return found, sum(within[each] for each in found) / max(within.total(), 1)


def _first_batch_share(t: Tables, lengths: Ints, num_batches: int | None) -> float | None:
    """Return the share of the waits that epochs' first batches have; None where too few epochs were watched.

    All steps of the run show it, recorded or not, where a step takes one batch. In a recording an epoch is its batches,
    with or without the call that finds no more.
    """
    if not num_batches or num_batches < 3:  # of two batches one waits longer than the other
        return None
    watched = [(lengths, num_batches), (lengths, num_batches + 1)]
    if t.capture.run is not None:
        watched.insert(0, (t.capture.run.phase("loading"), num_batches))
    for waits, period in watched:
        if len(waits) >= 2 * period:
            at = max(range(period), key=lambda start: int(waits[start::period].sum()))
            first, others = waits[at::period], np.delete(waits, np.s_[at::period])
            if first.min() > quantiles(others, 0.95)[0]:  # a busy machine makes some of the others long
                return float(first.sum() / max(int(waits.sum()), 1))
    return None


def _dataset(t: Tables) -> Facts:
    """Return whether the dataset is iterable and which library made it, as far as Python frames show."""
    events, rows, found = t.trace.events, t.host_rows(Kind.PYTHON), list[list[str]]()
    for fetch in t.in_window(t.calls(_FETCH, Kind.PYTHON))[:20].tolist():  # all do the same
        begun = int(np.searchsorted(events.start[rows], events.start[fetch], side="right"))
        near = [r for r in rows[begun : begun + 8].tolist() if events.thread[r] == events.thread[fetch]]
        found.append([t.name(r) for r in near if events.end[r] <= events.end[fetch]])
    first = [frames[0] for frames in found if frames]
    if not first:
        return {}
    iterable = all(name == "<built-in function next>" or name.endswith((": __next__", ": __iter__")) for name in first)
    files = [name.rpartition("(")[0] for frames in found for name in frames if is_user_file(name)]
    library = files[0].split("/", maxsplit=1)[0] if files and not is_own_file(files[0]) else ""
    return {"iterable": iterable, "library": library}


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
        whole = number(facts, "sample_share")
        beside = f", the whole sample {percent(whole, 0)}" if whole > slow["share"] else ""
        lines, takes = f"{slow['line']} takes", percent(slow["share"], 0)
        if slow["first"] < slow["last"]:
            lines = f"{slow['first']} to {slow['last']}, most often {slow['line']}, take"
        spends += f" {slow['file'].rpartition('/')[2]}:{lines} {takes} of it{beside}."
    if facts.get("by_sampler") or facts.get("order_line"):
        takes, at = percent(number(facts, "order_share"), 0), facts.get("sampler_at")
        most = f", most often{at}" if at else ""
        spends += f" The sampler, which runs in the training process, takes {takes} of loading{most}."
    first = facts.get("first_batch_share")
    if facts.get("starts_with_epochs") and isinstance(first, float):
        spends += f" {percent(first, 0)} of the waits are for the first batch of an epoch, which starts the workers."
    restart = facts.get("restart_share")
    if isinstance(restart, float):
        spends += f" Each call draws the order of all samples again, which takes {percent(restart, 0)} of it."
    said = [f"One batch is loaded {how}{count}; the median wait is {duration(number(facts, 'batch_ns'))}.{spends}"]
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
