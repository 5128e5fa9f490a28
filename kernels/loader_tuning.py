"""Measures what feeding a batch costs and rebuilds the DataLoader with the settings that hide it.

What it cures
    `data-stall`: the step waits for batches that the training process loads itself, or that too few workers load.

When it does not help
    When loading is cheap beside the step, or every core is busy already: then the loader is handed back as it was, with
    the reason. Streams (`IterableDataset`) are left alone, since their order depends on the number of workers; see
    `sharding`.

Cost
    ``seconds`` of loading once, before training, for each setting that is tried; later the workers' memory.

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
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.dataloader import default_collate

from diagnose.kernels._loader_costs import (
    Costs,
    Room,
    Step,
    draws_numbers,
    index_batches,
    measure_costs,
    private_bytes,
    room_for_workers,
    same,
)
from diagnose.kernels._nested import Batch, moved
from diagnose.kernels._state import Stateful, random_state, unchanged

__all__ = ["LoaderTrial", "LoaderTuning", "Settings", "SteadyLoader", "tune_loader"]

WORTH_HIDING = 0.03
"""Loading that takes less of a step than this is left alone."""

WORTH_CHANGING = 1.05
"""A setting must be this much faster than the simpler one to be chosen: timings repeat to a few per cent."""

MAX_BATCHES = 256
"""Batches that are looked at, at most."""


@dataclass(frozen=True)
class Settings:
    """What is changed of a loader."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    whole_batches: bool = False  # the dataset is asked for a batch at once (``__getitems__``)
    in_order: bool = True

    def __str__(self) -> str:
        parts = [f"{self.num_workers} workers"]
        parts += [f"{self.prefetch_factor} batches ahead each"] if self.prefetch_factor else []
        parts += ["whole batches"] if self.whole_batches else []
        parts += [] if self.in_order else ["in any order"]
        return ", ".join(parts)


@dataclass(frozen=True)
class LoaderTrial:
    """One setting that was tried."""

    settings: Settings
    seconds: float | None  # for one step with its batch; None where it failed
    error: str = ""


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


class SteadyLoader(DataLoader[Any]):
    """A DataLoader whose epochs draw from the random generators as one without persistent workers does.

    torch draws a seed for its workers at the start of each epoch, but not where the workers live on; the next
    shuffle would then be another one.
    """

    def __iter__(self) -> Any:  # noqa: ANN401  # torch's iterator is private
        if self.persistent_workers and self.num_workers > 0 and self._iterator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return super().__iter__()


def tune_loader(  # noqa: PLR0913  # each is a bound that users have
    loader: DataLoader[Any],
    step: Step | None = None,
    *,
    state: Sequence[Stateful] = (),
    device: torch.device | str = "cpu",
    seconds: float = 3.0,
    local_ranks: int = 1,
    memory_bytes: int | None = None,
    max_workers: int | None = None,
    other_draws: bool = False,
    any_order: bool = False,
) -> LoaderTuning:
    """Return the loader in the settings that are fastest together with ``step``, measured here.

    ``step`` takes a batch on ``device`` and trains on it; what it changes is put back if it is listed in ``state``.
    Without it loading alone is measured. ``local_ranks`` processes share this machine's cores and memory;
    ``memory_bytes`` is what all workers of the machine may take (default: half of what is free). With ``any_order``
    batches may come as they get ready, and with ``other_draws`` samples may see other random numbers than before.

    An error of the dataset or of the step arrives here as it is. A setting that fails, because workers die or the
    dataset cannot be sent to them, is left out, and said in ``trials``.

    Raises:
        TypeError: ``loader`` is no torch DataLoader.
        ValueError: a bound is not positive, or the loader is empty.
    """
    _check(loader, seconds=seconds, local_ranks=local_ranks, max_workers=max_workers)
    given = Settings(loader.num_workers, loader.prefetch_factor if loader.num_workers else None)
    if isinstance(loader.dataset, IterableDataset):
        why = "the dataset is a stream, whose order depends on the number of workers; left as it was"
        return LoaderTuning(loader, given, None, (), why)
    with unchanged(*state, generators=_generators(loader)):
        entries = _entries(loader)
        costs, batches = measure_costs(loader, entries, step, torch.device(device), seconds)
        if costs.step and costs.load + costs.transfer < WORTH_HIDING * costs.step:
            share = (costs.load + costs.transfer) / costs.step
            return LoaderTuning(loader, given, costs, (), f"loading takes {share:.1%} of a step; left as it was")
        depends = draws_numbers(loader, entries, batches[:2])
        if depends and not other_draws:
            why = f"{depends}, so other settings would change the numbers; left as it was (other_draws=True permits it)"
            return LoaderTuning(loader, given, costs, (), why)
        bench = _Bench(loader, entries, () if depends else batches[:8], step, torch.device(device), seconds)
        limits = {"local_ranks": local_ranks, "memory_bytes": memory_bytes, "batch_bytes": costs.batch_bytes}
        trials, room = _tried(bench, given, costs, limits, max_workers, any_order=any_order)
    return _chosen(bench, given, costs, trials, room)


def _check(loader: object, *, seconds: float, local_ranks: int, max_workers: int | None) -> None:
    if type(loader) not in (DataLoader, SteadyLoader):
        raise TypeError(
            f"tune_loader needs a torch.utils.data.DataLoader, not {type(loader).__name__}; "
            "tune the DataLoader inside it, before it is wrapped."
        )
    if not seconds > 0 or local_ranks < 1 or (max_workers is not None and max_workers < 0):
        raise ValueError(
            f"tune_loader needs seconds > 0, local_ranks >= 1 and max_workers >= 0, not {seconds}, {local_ranks} and "
            f"{max_workers}; leave them out for the defaults."
        )


def _entries(loader: DataLoader[Any]) -> list[Any]:
    entries = _from_copied_sampler(loader)
    if not entries:
        raise ValueError("tune_loader got a loader without a single batch; give it the loader that training uses.")
    return entries


def _from_copied_sampler(loader: DataLoader[Any]) -> list[Any]:
    """Read the sampler's first entries; a sampler that counts is copied where it can be."""
    try:
        twin = copy.copy(loader.batch_sampler or loader.sampler)
        sampler = copy.copy(getattr(twin, "sampler", None))
        if sampler is not None:
            twin.sampler = sampler  # type: ignore[union-attr]  # it has one, as was just asked
    except (TypeError, AttributeError):
        return index_batches(loader, MAX_BATCHES)
    found: list[Any] = []
    for entry in twin:
        found.append(entry)
        if len(found) == MAX_BATCHES:
            break
    return found


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    holders = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


@dataclass(frozen=True)
class _Bench:
    """Tries settings on the same batches."""

    loader: DataLoader[Any]
    entries: Sequence[Any]
    expected: Sequence[Batch]  # what the first batches must be, bit by bit
    step: Step | None
    device: torch.device
    seconds: float

    @property
    def pin(self) -> bool:
        """Say whether batches go to a device, which page-locked memory is for."""
        return self.device.type == "cuda"

    def run(self, settings: Settings) -> tuple[LoaderTrial, int]:
        """Return how it went, and the private memory of one worker (bytes; 0: unknown)."""
        restore = random_state()
        try:
            with _closing(rebuilt(self.loader, settings, pin=self.pin, entries=self.entries)) as batches:
                taken, memory = self._loop(batches, settings)
        except Exception as error:  # whatever workers die of rules the setting out, not the tuning
            if settings == Settings():
                raise
            return LoaderTrial(settings, None, f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"), 0
        finally:
            restore()
        return (LoaderTrial(settings, taken) if taken else LoaderTrial(settings, None, "gave other batches")), memory

    def _loop(self, batches: Iterator[Batch], settings: Settings) -> tuple[float | None, int]:
        """Return the seconds per step once the queues are as full as they stay, None where a batch was not the same."""
        stamps: list[float] = []
        memory = 0
        skip = min(len(self.entries) // 2, settings.num_workers * (settings.prefetch_factor or 0) + 1)
        for number, batch in enumerate(batches):
            if settings.in_order and number < len(self.expected) and not same(batch, self.expected[number]):
                return None, 0
            if self.step is not None:
                self.step(moved(batch, self.device, non_blocking=True) if self.device.type != "cpu" else batch)
            stamps.append(time.perf_counter())
            if number == skip:
                memory = max((private_bytes(w.pid) for w in getattr(batches, "_workers", ())), default=0)
            if number > skip + 2 and stamps[-1] - stamps[skip] > self.seconds:
                break
        later = stamps[skip:]
        return (later[-1] - later[0]) / (len(later) - 1) if len(later) > 1 else stamps[-1] - stamps[0] or None, memory


class _closing:  # noqa: N801  # used as contextlib.closing is
    """Iterates over a loader and ends its workers at once, whatever happens."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __enter__(self) -> Iterator[Batch]:
        self.batches = iter(self.loader)
        return self.batches

    def __exit__(self, *_: object) -> None:
        end = getattr(self.batches, "_shutdown_workers", None)
        if end is not None:
            end()


def _tried(  # noqa: PLR0913
    bench: _Bench,
    given: Settings,
    costs: Costs,
    limits: dict[str, Any],
    max_workers: int | None,
    *,
    any_order: bool,
) -> tuple[list[LoaderTrial], Room]:
    """Try the given settings first, then whole batches, then workers as many as the costs ask for, then more ahead."""
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
    best = _best(trials).settings
    if best.num_workers:
        trials.append(bench.run(Settings(best.num_workers, 4, whole))[0])
        if any_order:
            trials.append(
                bench.run(Settings(best.num_workers, _best(trials).settings.prefetch_factor, whole, False))[0]
            )
    return trials, room


def _best(trials: Sequence[LoaderTrial]) -> LoaderTrial:
    """Return the fastest; one that came earlier is kept until another is clearly faster."""
    best = trials[0]
    for trial in trials[1:]:
        if trial.seconds and (best.seconds is None or best.seconds > WORTH_CHANGING * trial.seconds):
            best = trial
    return best


def _chosen(bench: _Bench, given: Settings, costs: Costs, trials: list[LoaderTrial], room: Room) -> LoaderTuning:
    loader, best = bench.loader, _best(trials)
    kept_alive = given.num_workers > 0 and not loader.persistent_workers and not hasattr(loader.dataset, "set_epoch")
    first = trials[0].seconds
    if best.settings != given:
        gain = f"{first / best.seconds:.2f} times as fast as {given}" if first and best.seconds else f"{given} failed"
        why = f"{gain}, within {room.reason}"
    elif kept_alive:
        why = f"no setting within {room.reason} was {WORTH_CHANGING - 1:.0%} faster; the workers live on between epochs"
    else:
        why = f"no setting within {room.reason} was {WORTH_CHANGING - 1:.0%} faster; left as it was"
        return LoaderTuning(loader, given, costs, tuple(trials), why)
    return LoaderTuning(rebuilt(loader, best.settings, pin=bench.pin), best.settings, costs, tuple(trials), why)


def can_gather(loader: DataLoader[Any]) -> bool:
    """Say whether a batch of the dataset can be gathered at once where it was indexed item by item."""
    return (
        type(loader.dataset) is TensorDataset
        and loader.collate_fn is default_collate
        and loader.batch_sampler is not None
    )


class Gathered(TensorDataset):
    """A TensorDataset that gives a whole batch for a list of indices."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        rows = torch.tensor(indices)
        return [tensor[rows] for tensor in self.tensors]


def as_it_is(batch: list[torch.Tensor]) -> list[torch.Tensor]:
    """Collate nothing: the batch was gathered whole."""
    return batch


def rebuilt(
    loader: DataLoader[Any], settings: Settings, *, pin: bool, entries: Sequence[Any] | None = None
) -> DataLoader[Any]:
    """Return a loader over the same dataset, samplers and generator with other settings.

    With ``entries`` the dataset is asked for these, once, instead of what the sampler says.
    """
    dataset, workers = loader.dataset, settings.num_workers
    collate = loader.collate_fn
    if settings.whole_batches:
        dataset, collate = Gathered(*dataset.tensors), as_it_is  # type: ignore[attr-defined]  # as can_gather found
    persistent = workers > 0 and entries is None and not hasattr(loader.dataset, "set_epoch")
    arguments: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": settings.prefetch_factor if workers else None,
        "persistent_workers": persistent,  # where the dataset is told the epoch, living workers would not hear of it
        "collate_fn": collate,
        "pin_memory": loader.pin_memory or pin,
        "timeout": loader.timeout if workers else 0,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context if workers else None,
        "generator": loader.generator if entries is None else None,
        "in_order": settings.in_order,
    }
    if entries is not None:
        one_by_one = loader.batch_sampler is None
        arguments |= {"batch_size": None, "sampler": entries} if one_by_one else {"batch_sampler": entries}
    elif loader.batch_size is not None or loader.batch_sampler is None:
        arguments |= {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}
    else:
        arguments["batch_sampler"] = loader.batch_sampler
    return SteadyLoader(dataset, **arguments)
