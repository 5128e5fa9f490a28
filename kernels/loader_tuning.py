"""Measures which DataLoader settings hide loading.

What it cures
    `data-stall`: the step waits for batches that the training process loads itself, or that too few workers load.

When it does not help
    When loading is cheap beside the step, or every core is busy already: then the loader is handed back as it was, with
    the reason. Streams (`IterableDataset`) are left alone, since their order depends on the number of workers; where
    several workers load one, two batches are read to see whether each of them repeats it (see `sharding`).

Cost
    ``seconds`` of loading, before training, for each setting that is tried, and again for the two fastest; later the
    workers' memory.

Numerics
    The same samples in the same order and, where samples depend on their index alone, the same losses bit by bit, over
    all epochs. Whether they do is tried on the first batches; where they draw random numbers the loader is only changed
    with ``other_draws=True``. Measuring leaves no trace in random generators or in what is passed as ``state``.

Example::

    from diagnose.kernels.loader_tuning import tune_loader

    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    tuning = tune_loader(loader, train_step, state=(model, optimizer), seconds=0.5)
    print(tuning)  # what was measured, tried and chosen
    for epoch in range(epochs):
        for batch in tuning.loader:
            train_step(batch)
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from diagnose.kernels._loader_bench import Bench, LoaderTrial, Settings, SteadyLoader, can_gather, can_thread, rebuilt
from diagnose.kernels._loader_costs import (
    Costs,
    Room,
    Step,
    draws_numbers,
    index_batches,
    measure_costs,
    room_for_workers,
    same,
)
from diagnose.kernels._state import Stateful, unchanged

__all__ = ["LoaderTrial", "LoaderTuning", "Settings", "SteadyLoader", "tune_loader"]

MIN_HIDEABLE_SHARE = 0.03
"""Loading that takes less of a step than this is left alone."""

MIN_SPEED_UP = 1.05
"""A setting must be this much faster than the simpler one to be chosen: timings repeat to a few per cent."""

MIN_REPEATING_WORKERS = 2
"""Workers that repeat each other at least."""

MIN_BATCHES, MAX_BATCHES = 64, 256
"""Batches that are looked at: of a shorter epoch some repeatedly, so that one slow moment does not decide."""


@dataclass(frozen=True)
class LoaderTuning:
    """What was found; ``loader`` is the one to use, and is the given one where nothing better was found."""

    loader: DataLoader[Any]
    settings: Settings
    costs: Costs | None
    trials: tuple[LoaderTrial, ...]
    reason: str

    @property
    def speed_up(self) -> float:
        """Return how many times faster a step with its batch was with the chosen settings than with the given ones."""
        times = {t.settings: t.seconds for t in self.trials if t.seconds}
        first, chosen = next(iter(times.values()), None), times.get(self.settings)
        return first / chosen if first and chosen else 1.0

    def __str__(self) -> str:
        lines = [f"{self.settings}: {self.reason}"]
        if c := self.costs:
            times = [("samples", c.samples), ("collate", c.collate), ("transfer", c.transfer), ("step", c.step)]
            lines.append("per batch: " + ", ".join(f"{name} {1000 * value:.2f} ms" for name, value in times))
        lines += [
            f"  {t.settings}: {1000 * t.seconds:.2f} ms" if t.seconds else f"  {t.settings}: {t.error}"
            for t in self.trials
        ]
        return "\n".join(lines)


def tune_loader(  # each is a bound that users have
    loader: DataLoader[Any],
    step: Step | None = None,
    *,
    state: Sequence[Stateful] = (),
    device: torch.device | str = "cpu",
    seconds: float = 3.0,
    local_ranks: int = 1,
    memory_bytes: int | None = None,
    max_workers: int | None = None,
    sample_threads: int = 1,
    other_draws: bool = False,
    any_order: bool = False,
) -> LoaderTuning:
    """Return the loader in the settings that are fastest together with ``step``, measured here.

    ``step`` takes a batch on ``device`` and trains on it; what it changes is put back if it is listed in ``state``.
    Without it loading alone is measured. ``local_ranks`` processes share this machine's cores and memory;
    ``memory_bytes`` is what all workers of the machine may take (default: half of what is free). ``sample_threads``
    threads may load the samples of one batch at the same time, where the dataset allows for it (see
    `ConcurrentSamples`) and it is faster. With ``any_order`` batches may come as they get ready, and with
    ``other_draws`` samples may see other random numbers than before.

    An error of the dataset or of the step arrives here as it is. A setting that fails, because workers die or the
    dataset cannot be sent to them, is left out and listed in ``trials``.

    Raises:
        TypeError: ``loader`` is no torch DataLoader.
        ValueError: a bound is not positive, or the loader is empty.
    """
    _check(loader, seconds=seconds, local_ranks=local_ranks, max_workers=max_workers, sample_threads=sample_threads)
    given = Settings(loader.num_workers, loader.prefetch_factor if loader.num_workers else None)
    if isinstance(loader.dataset, IterableDataset):
        why = "the dataset is a stream, whose order depends on the number of workers; left as it was"
        return LoaderTuning(loader, given, None, (), _repeated_stream(loader) or why)
    with unchanged(*state, generators=_generators(loader)):
        entries = _entries(loader)
        costs, batches = measure_costs(loader, entries, step, torch.device(device), seconds)
        if costs.step and costs.load + costs.transfer < MIN_HIDEABLE_SHARE * costs.step:
            share = (costs.load + costs.transfer) / costs.step
            return LoaderTuning(loader, given, costs, (), f"loading takes {share:.1%} of a step; left as it was")
        depends = draws_numbers(loader, entries, batches[:2])
        if depends and not other_draws:
            why = f"{depends}, so other settings would change the numbers; left as it was (other_draws=True permits it)"
            return LoaderTuning(loader, given, costs, (), why)
        again = entries * math.ceil(MIN_BATCHES / len(entries))
        bench = Bench(loader, again, () if depends else batches[:8], step, torch.device(device), seconds)
        limits = {"local_ranks": local_ranks, "memory_bytes": memory_bytes, "batch_bytes": costs.batch_bytes}
        threads = 1 if depends else sample_threads
        trials, room = _tried(bench, given, costs, limits, max_workers, threads=threads, any_order=any_order)
    return _chosen(bench, given, costs, trials, room)


def _check(loader: object, *, seconds: float, local_ranks: int, max_workers: int | None, sample_threads: int) -> None:
    if type(loader) not in (DataLoader, SteadyLoader):
        raise TypeError(
            f"tune_loader needs a torch.utils.data.DataLoader, not {type(loader).__name__}; "
            "tune the DataLoader inside it, before it is wrapped."
        )
    if not seconds > 0 or local_ranks < 1 or (max_workers is not None and max_workers < 0) or sample_threads < 1:
        raise ValueError(
            "tune_loader needs seconds > 0, local_ranks >= 1, max_workers >= 0 and sample_threads >= 1, not "
            f"{seconds}, {local_ranks}, {max_workers} and {sample_threads}; leave them out for the defaults."
        )


def _entries(loader: DataLoader[Any]) -> list[Any]:
    entries = _from_copied_sampler(loader)
    if not entries:
        raise ValueError("tune_loader got a loader without a single batch; give it the loader that training uses.")
    return entries


def _repeated_stream(loader: DataLoader[Any]) -> str:
    """Return a sentence where the first two workers give the same first batch, "" elsewhere.

    Workers take turns, so the first two batches come from two of them.
    """
    workers = loader.num_workers
    if workers < MIN_REPEATING_WORKERS or not loader.in_order:
        return ""
    with unchanged(generators=_generators(loader)):
        batches = iter(loader)
        first = list(itertools.islice(batches, MIN_REPEATING_WORKERS))
        if not loader.persistent_workers:
            batches._shutdown_workers()  # type: ignore[attr-defined]  # as at the end of an epoch
    if len(first) < MIN_REPEATING_WORKERS or not same(*first):
        return ""
    return (
        f"each of the {workers} workers gives the whole stream, so every sample comes {workers} times; wrap it: "
        "ShardedStream(dataset)"
    )


def _from_copied_sampler(loader: DataLoader[Any]) -> list[Any]:
    """Read the sampler's first entries; a sampler that counts is copied where it can be."""
    try:
        copied = copy.copy(loader.batch_sampler or loader.sampler)
        sampler = copy.copy(getattr(copied, "sampler", None))
        if sampler is not None:
            copied.sampler = sampler  # type: ignore[union-attr]  # it has one, as was just asked
    except (TypeError, AttributeError):
        return index_batches(loader, MAX_BATCHES)
    found: list[Any] = []
    for entry in copied:
        found.append(entry)
        if len(found) == MAX_BATCHES:
            break
    return found


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    holders = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _tried(
    bench: Bench,
    given: Settings,
    costs: Costs,
    limits: dict[str, Any],
    max_workers: int | None,
    *,
    threads: int,
    any_order: bool,
) -> tuple[list[LoaderTrial], Room]:
    """Try the given settings, whole batches, workers as many as the costs ask for, threads in them, more ahead."""
    first, worker_bytes = bench.run(given)
    trials = [first]
    whole = can_gather(bench.loader)
    if whole:
        trials.append(bench.run(Settings(given.num_workers, given.prefetch_factor, whole_batches=True))[0])
        whole = _best(trials).settings.whole_batches
    room = room_for_workers(**limits, worker_bytes=worker_bytes, prefetch=2)
    most = room.workers if max_workers is None else min(max_workers, room.workers)
    wanted = math.ceil(costs.load / costs.step) + 1 if costs.step else most
    for num in sorted({min(n, most) for n in (1, wanted, most)} - {0}):
        settings = Settings(num, 2, whole_batches=whole)
        if settings not in [t.settings for t in trials]:
            trials.append(bench.run(settings)[0])
    if threads > 1 and not whole and can_thread(bench.loader):
        fewest = {min(1, most), _best(trials).settings.num_workers}
        trials += [bench.run(Settings(num, 2 if num else None, threads=threads))[0] for num in sorted(fewest)]
    best = _best(trials).settings
    if best.num_workers:
        trials.append(bench.run(replace(best, prefetch_factor=4))[0])
        if not bench.pin and not bench.loader.pin_memory:  # else torch receives on a thread itself
            trials.append(bench.run(replace(_best(trials).settings, receive_ahead=True))[0])
        if any_order:
            trials.append(bench.run(replace(_best(trials).settings, in_order=False))[0])
    return _repeated(bench, trials), room


def _repeated(bench: Bench, trials: Sequence[LoaderTrial]) -> list[LoaderTrial]:
    """Try the two fastest once more: what another process took from one of them would decide otherwise."""
    fastest = sorted((t for t in trials if t.seconds), key=lambda t: t.seconds or 0.0)[:2]
    found = list(trials)
    for trial in fastest if len(fastest) == 2 else ():
        again = bench.run(trial.settings)[0].seconds
        if again and trial.seconds:
            found[found.index(trial)] = LoaderTrial(trial.settings, min(trial.seconds, again))
    return found


def _best(trials: Sequence[LoaderTrial]) -> LoaderTrial:
    """Return the fastest; one that came earlier is kept until another is clearly faster."""
    best = trials[0]
    for trial in trials[1:]:
        if trial.seconds and (best.seconds is None or best.seconds > MIN_SPEED_UP * trial.seconds):
            best = trial
    return best


def _chosen(bench: Bench, given: Settings, costs: Costs, trials: list[LoaderTrial], room: Room) -> LoaderTuning:
    loader, best = bench.loader, _best(trials)
    kept_alive = given.num_workers > 0 and not loader.persistent_workers and not hasattr(loader.dataset, "set_epoch")
    first = trials[0].seconds
    if best.settings != given:
        gain = f"{first / best.seconds:.2f} times as fast as {given}" if first and best.seconds else f"{given} failed"
        why = f"{gain}, within {room.reason}"
    elif kept_alive:
        why = f"no setting within {room.reason} was {MIN_SPEED_UP - 1:.0%} faster; the workers live on between epochs"
    else:
        why = f"no setting within {room.reason} was {MIN_SPEED_UP - 1:.0%} faster; left as it was"
        return LoaderTuning(loader, given, costs, tuple(trials), why)
    return LoaderTuning(rebuilt(loader, best.settings, pin=bench.pin), best.settings, costs, tuple(trials), why)
