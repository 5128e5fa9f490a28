"""Streams tar shards, split among ranks and workers.

What it cures
    `data-stall` of datasets of many small files: tar shards are read sequentially, which disks and object stores are an
    order of magnitude faster at.

When it does not help
    When samples are slow to decode rather than to read, or are wanted at random: shards are shuffled as a whole, and
    samples within a buffer.

Cost
    ``shuffle`` samples in memory for each worker. Workers stay from epoch to epoch unless ``persistent_workers=False``.
    Going on within an epoch reads and drops what was used before. With fewer shards than readers (ranks × workers)
    several readers read the same shard, and each keeps its part of the samples.

Safety
    Only ``fields`` are decoded. A pickle among them (``.pkl``, ``.pickle``, ``.pyd``) is refused, since reading it
    could run code, and ``.pth`` may hold tensors and plain values alone; ``trusted=True`` lets both be unpickled. So is
    a shard that is a shell command (``pipe:…``), which ``trusted=True`` runs.

Numerics
    The order follows from ``seed``, epoch, rank, worker and their numbers alone. With ``epoch_batches`` an epoch is
    that many batches on every rank, whatever the shards hold: short shares begin again, long ones are cut.

Example::

    from diagnose.kernels.web_shards import WebShards

    batches = WebShards(shards, ("x.npy", "y.cls"), batch_size=4, num_workers=2, shuffle=100)
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for x, y in batches:
            train_step((x, y))
            position = batches.state_dict()  # for a checkpoint; load_state_dict goes on from there
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from diagnose.kernels.sharding import ranks

__all__ = ["WebShards"]

Transform = Callable[[Any], Any]

PICKLED = frozenset({"pkl", "pickle", "pyd"})  # what webdataset reads with pickle.loads
TRUST = "if you trust the shards' author with running code here, pass trusted=True"


@dataclass(frozen=True)
class _Recipe:
    """What a worker needs; sent to it as it is."""

    shards: tuple[str, ...]
    fields: tuple[str, ...]
    is_one_field: bool
    batch_size: int
    transforms: tuple[Transform, ...]
    decoders: tuple[Any, ...]
    shuffle: int
    seed: int
    epoch_batches: int | None
    collate: Callable[[list[Any]], Any]
    trusted: bool


class _RefusedError(ValueError):
    """A field that could run code when it is decoded."""


class WebShards:
    """Iterates over batches of ``fields`` from tar ``shards``; each worker of each rank reads shards of its own.

    ``fields`` are the extensions of a sample's files; a sample is a tuple of them, or with one text instead of a list
    the content of that field itself. ``transforms`` are one function for each (picklable, since workers get them),
    ``decoders`` what webdataset's ``decode`` takes, such as ``("torchrgb",)``. Rank and number of ranks are
    those of the process group, or of torchrun's environment, where they are not given. ``trusted`` allows shards that
    are shell commands and fields that run code when they are decoded; a function among ``decoders`` that takes such a
    field replaces this choice.

    Raises:
        ImportError: the webdataset package is missing.
        ValueError: there are no shards, or several ranks and no ``epoch_batches``; a shard would run a shell command
            and the shards are not ``trusted``. While iterating: a field is a pickle, or a ``.pth`` with more than
            tensors, and the shards are not ``trusted``; the shards hold no sample, or with ``epoch_batches`` none for
            one of the readers.
    """

    def __init__(  # each is a property of the data or of the job
        self,
        shards: Sequence[str],
        fields: Sequence[str] | str,
        *,
        batch_size: int,
        num_workers: int = 0,
        transforms: Sequence[Transform] = (),
        decoders: Sequence[Any] = (),
        shuffle: int = 1000,
        seed: int = 0,
        epoch_batches: int | None = None,
        rank: int | None = None,
        num_ranks: int | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        trusted: bool = False,
        **loader_arguments: Any,  # the DataLoader's: pin_memory, prefetch_factor, ...
    ) -> None:
        _webdataset()
        self.place = ranks(rank, num_ranks)
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        _check(shards, names, transforms, batch_size, epoch_batches, self.place[1])
        command = next(filter(_runs_shell, shards), None)
        if command is not None and not trusted:
            raise ValueError(f"WebShards got the shard {command!r}, which would run a shell command; {TRUST}.")
        self.recipe = _Recipe(
            tuple(shards), names, isinstance(fields, str), batch_size, tuple(transforms), tuple(decoders), shuffle,
            seed, epoch_batches, collate, trusted,
        )  # fmt: skip
        self.loader_arguments = {"num_workers": num_workers, "persistent_workers": num_workers > 0, **loader_arguments}
        self.epoch, self.done, self.skip = 0, 0, 0
        self._idle: DataLoader[Any] | None = None  # between loops, with its workers

    def __getstate__(self) -> dict[str, Any]:
        """Leave the workers out of a copy."""
        return {**self.__dict__, "_idle": None}

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; a position within the epoch, if loaded, is kept for that epoch."""
        if epoch != self.epoch:
            self.epoch, self.done, self.skip = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position: the epoch, and how many of its batches were handed out."""
        return {"epoch": self.epoch, "batches": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a position, in the next loop.

        Raises:
            ValueError: it is the state of something else.
        """
        if not {"epoch", "batches"} <= set(state):
            raise ValueError(f"A state with {sorted(state)} is not one of WebShards.")
        self.epoch, self.done, self.skip = state["epoch"], state["batches"], state["batches"]

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank.

        Raises:
            TypeError: ``epoch_batches`` was not given; shards do not record how many samples they hold.
        """
        if self.recipe.epoch_batches is None:
            raise TypeError(
                "Shards do not record how many samples they hold; give WebShards epoch_batches for a length."
            )
        return self.recipe.epoch_batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch, from the loaded position on."""
        skip, self.skip, epoch = self.skip, 0, self.epoch
        self.done = skip
        loader = self._loader() if self._idle is None else self._idle
        self._idle = None  # a loop within this one gets workers of its own
        loader.dataset.epoch.fill_(epoch)  # type: ignore[attr-defined]  # a _Stream
        try:
            for number, batch in enumerate(loader, 1):
                if number > skip:
                    if epoch == self.epoch:  # a loop that was left does not count for the next epoch
                        self.done = number
                    yield batch
        except GeneratorExit:  # left early; after an error workers may be gone
            self._idle = loader
            raise
        self._idle = loader

    def _loader(self) -> DataLoader[Any]:
        return DataLoader(_Stream(self.recipe, self.place), batch_size=None, **self.loader_arguments)


class _Stream(IterableDataset[Any]):
    """One worker's batches of the epoch that shared memory holds when an iteration starts."""

    def __init__(self, recipe: _Recipe, place: tuple[int, int]) -> None:
        self.recipe, self.place = recipe, place
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        return self._batches(int(self.epoch))

    def _batches(self, epoch: int) -> Iterator[Any]:
        info, recipe = get_worker_info(), self.recipe
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        share = _share(recipe, epoch, self.place[0] * workers + worker, self.place[1] * workers)
        if recipe.epoch_batches is None:
            yield from self._once(share, f"{recipe.seed} {epoch} {share.number}")
            return
        left = recipe.epoch_batches // workers + (worker < recipe.epoch_batches % workers)
        for turn in range(left):  # every turn gives a batch at least
            for batch in self._once(share, f"{recipe.seed} {epoch} {share.number}" + (f" {turn}" if turn else "")):
                if not left:
                    return
                left -= 1
                yield batch
            if not left:
                return

    def _once(self, share: _Share, seed: str) -> Iterator[Any]:
        wds, recipe = _webdataset(), self.recipe
        stages = [wds.SimpleShardList(list(share.shards)), wds.tarfile_to_samples(), share.part_of]
        if recipe.shuffle:
            stages.append(wds.shuffle(recipe.shuffle, rng=random.Random(seed)))
        decoders = recipe.decoders if recipe.trusted else (*recipe.decoders, _without_code)  # the last before its own
        wanted = [name for field in recipe.fields for name in re.split("[; ]", field)]  # "jpg;png" is either of two
        stages += [wds.decode(*decoders, only=wanted), wds.to_tuple(*recipe.fields)]
        if recipe.transforms:
            stages.append(wds.map_tuple(*recipe.transforms))
        if recipe.is_one_field:
            stages.append(wds.map(itemgetter(0)))
        stages.append(wds.batched(recipe.batch_size, collation_fn=recipe.collate))
        found = False
        try:
            for batch in wds.DataPipeline(*stages):
                found = True
                yield batch
        except wds.autodecode.DecodingError as error:  # it has no message of its own
            if isinstance(error.__cause__, _RefusedError):
                raise error.__cause__ from None
            raise
        if not found and not share.part:
            raise ValueError(f"The shards {list(share.shards)} hold no sample; leave empty shards out.")
        if not found and recipe.epoch_batches is not None:
            raise ValueError(
                f"Reader {share.number + 1} has no sample: {share.parts} readers share {list(share.shards)}; "
                "use fewer workers."
            )


@dataclass(frozen=True)
class _Share:
    """What one reader of an epoch reads: whole shards, or a part of the samples of one."""

    number: int
    shards: tuple[str, ...]
    part: int
    parts: int

    def part_of(self, samples: Iterable[Any]) -> Iterator[Any]:
        return islice(samples, self.part, None, self.parts)


def _share(recipe: _Recipe, epoch: int, number: int, readers: int) -> _Share:
    shards = list(recipe.shards)
    if recipe.shuffle:  # the same order on all ranks, so that their shares are disjoint
        random.Random(f"{recipe.seed} {epoch}").shuffle(shards)
    sharing = range(number % len(shards), readers, len(shards))  # the readers of this shard, if shards are fewer
    return _Share(number, tuple(shards[number % len(shards) :: readers]), sharing.index(number), len(sharing))


def _without_code(key: str, data: bytes) -> Any:  # whatever was saved, or None to let others decode it
    """Decode ``.pth`` without running what it names, and refuse pickles; ``key`` is a dot and the field."""
    field, extension = key[1:], key.rpartition(".")[2].lower()
    if extension in PICKLED:
        raise _RefusedError(f"The field {field!r} of the shards is a pickle, which could run code; {TRUST}.")
    if extension != "pth":
        return None
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # what is damaged fails torch's reader in any way
        value = None
    if value is None:  # which would hand it on to a decoder that runs it
        raise _RefusedError(
            f"The field {field!r} of the shards holds more than tensors and plain values, which could run code, or is "
            f"damaged; {TRUST}."
        )
    return value


def _runs_shell(shard: str) -> bool:
    """Return whether webdataset hands the shard to a shell; before 1.0 it put every URL into a command, in quotes."""
    scheme = urlsplit(shard).scheme
    return scheme == "pipe" or (scheme not in {"", "file"} and "'" in shard)


def _check(
    shards: Sequence[str], fields: Sequence[str], transforms: Sequence[Transform], batch_size: int,
    epoch_batches: int | None, num_ranks: int,
) -> None:  # fmt: skip
    if isinstance(shards, str):
        raise TypeError(f"WebShards needs a list of shards, not the text {shards!r}; expand patterns first.")
    if not shards:
        raise ValueError("WebShards got no shards; check the pattern that lists them.")
    if transforms and len(transforms) != len(fields):
        raise ValueError(f"WebShards needs one transform for each of {list(fields)}, not {len(transforms)}.")
    if batch_size < 1 or (epoch_batches is not None and epoch_batches < 1):
        raise ValueError(f"WebShards needs batch_size and epoch_batches >= 1, not {batch_size} and {epoch_batches}.")
    if num_ranks > 1 and epoch_batches is None:
        raise ValueError(
            f"WebShards runs on {num_ranks} ranks, whose shards rarely hold equally many samples; give epoch_batches, "
            "or the ranks wait for each other at the end of the epoch for ever."
        )


def _webdataset() -> Any:  # a package without types
    try:
        return import_module("webdataset")
    except ImportError as error:
        raise ImportError("WebShards needs the webdataset package: pip install webdataset") from error
