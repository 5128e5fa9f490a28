"""Starts a rank with the right device and backend.

What it cures
    Runs that hang, that all use the first GPU, or that train on the same samples on every rank: `host-collective` time
    without end, and devices that `straggler` reports as idle.

When it does not help
    Programs that a launcher of their own has started (accelerate, lightning): they have done this.

Cost
    None; `check_loader` loads one batch on each rank.

Numerics
    Identical. With `check_loader` every rank has been seen to load samples of its own.

Example::

    from diagnose.kernels.distributed.launch import check_loader, launched

    # torchrun --nproc-per-node 2 train.py; or alone: python train.py
    with launched() as rank:
        ddp = DistributedDataParallel(model.to(rank.device))
        sampler = torch.utils.data.distributed.DistributedSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler)
        check_loader(loader)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)  # or every epoch has the same order
            for x, y in loader:
                criterion(ddp(x.to(rank.device)), y.to(rank.device)).backward()
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from diagnose.kernels._state import unchanged
from diagnose.kernels.distributed._agreement import on_every_rank, whole_group

__all__ = ["Rank", "check_loader", "launched", "rank_from_environment"]

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT_S = 600.0  # of one collective: longer than a checkpoint takes, shorter than a night


@dataclass(frozen=True)
class Rank:
    """Who this process is among all, and what it computes on."""

    rank: int
    num_ranks: int
    local_rank: int
    device: torch.device


def rank_from_environment(environment: Mapping[str, str] | None = None) -> Rank:
    """Return the rank that torchrun's variables describe; without any of them, the only one.

    Raises:
        RuntimeError: some of the variables are missing or no numbers, or this host has fewer devices than ranks.
    """
    env = os.environ if environment is None else environment
    there = [name for name in VARIABLES if env.get(name)]
    if not there:
        return Rank(0, 1, 0, _device(0))
    missing = [name for name in VARIABLES if name not in there]
    if missing:
        raise RuntimeError(
            f"{', '.join(there)} are set and {', '.join(missing)} are not; start with "
            "`torchrun --nproc-per-node N train.py`, which sets all, or unset them to run one process."
        )
    numbers = {name: env[name] for name in VARIABLES if name != "MASTER_ADDR"}
    wrong = [f"{name}={value}" for name, value in numbers.items() if not value.isdecimal()]
    if wrong or int(env["RANK"]) >= int(env["WORLD_SIZE"]):
        said = ", ".join(wrong) or f"RANK={env['RANK']} with WORLD_SIZE={env['WORLD_SIZE']}"
        raise RuntimeError(f"The environment has {said}; RANK counts from 0 to WORLD_SIZE - 1.")
    local = int(env["LOCAL_RANK"])
    return Rank(int(env["RANK"]), int(env["WORLD_SIZE"]), local, _device(local))


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise RuntimeError(
            f"LOCAL_RANK is {local_rank}, and this host shows {torch.cuda.device_count()} GPUs; "
            "start as many ranks, or look at CUDA_VISIBLE_DEVICES."
        )
    return torch.device("cuda", local_rank)


@contextmanager
def launched(*, backend: str | None = None, timeout_s: float = TIMEOUT_S) -> Iterator[Rank]:
    """Start the process group from the environment's variables, and end it afterwards.

    ``backend`` is nccl with GPUs and gloo without, unless given. Run alone, it is a group of one.

    Raises:
        RuntimeError: the environment is incomplete, or there is a process group already.
    """
    if dist.is_initialized():
        raise RuntimeError("There is a process group already; launched() starts its own, so call it first, and once.")
    rank = rank_from_environment()
    on_gpu = rank.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank.device)
    chosen = backend or ("nccl" if on_gpu else "gloo")
    store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in __all__
    alone = {} if os.environ.get("RANK") else {"store": store, "rank": 0, "world_size": 1}
    dist.init_process_group(
        chosen,
        timeout=timedelta(seconds=timeout_s),
        device_id=rank.device if chosen == "nccl" else None,
        **alone,  # type: ignore[arg-type]  # a store, or what torchrun has set
    )
    try:
        yield rank
    finally:
        gc.collect()  # gloo aborts the process where models in DDP outlive the group
        dist.destroy_process_group()


def check_loader(loader: Iterable[Any], *, group: dist.ProcessGroup | None = None) -> None:
    """Load one batch on each rank, and compare; all ranks call it, and random generators are put back.

    Raises:
        ValueError: two ranks load the same samples, ranks have different numbers of batches, or one has none.
        RuntimeError: there is no process group, or loading failed on another rank.
    """
    group = whole_group(group)

    def look() -> tuple[int | None, str]:
        with unchanged():
            length = _length(loader)
            batch = next(iter(loader), None)
        return length, "" if batch is None else _digest(batch)

    seen = on_every_rank(look, group)
    lengths, digests = [length for length, _ in seen], [digest for _, digest in seen]
    if "" in digests:
        raise ValueError(
            f"Rank {digests.index('')} has no batch; give every rank samples, and the same number of them."
        )
    for rank, digest in enumerate(digests):
        if digest in digests[:rank]:
            raise ValueError(
                f"Ranks {digests.index(digest)} and {rank} load the same first batch; give the DataLoader a "
                "DistributedSampler(dataset), or a stream in diagnose.kernels.sharding.ShardedStream."
            )
    if len(set(lengths)) > 1:
        raise ValueError(
            f"Ranks have {lengths} batches, and the shorter ones would leave the others waiting; "
            "use drop_last=True, or uneven_ends of diagnose.kernels.distributed.uneven."
        )


def _length(loader: Any) -> int | None:  # a loader over a stream has __len__, which raises
    try:
        return len(loader)
    except TypeError:
        return None


def _digest(batch: Any) -> str:  # whatever a loader yields
    """Return what differs where any tensor does; at least one character."""
    found = hashlib.sha1(usedforsecurity=False)

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            data = part.detach().cpu().contiguous().view(-1)
            found.update(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"")
        elif isinstance(part, Mapping):
            add(list(part.values()))
        elif isinstance(part, list | tuple):
            for each in part:
                add(each)
        else:
            found.update(repr(part).encode())

    add(batch)
    return found.hexdigest()
