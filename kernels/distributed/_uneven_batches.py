"""Batches over all ranks, cut by counts that may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from diagnose.kernels.distributed._agreement import whole_group
from diagnose.kernels.distributed._shares import shares

__all__ = ["UnevenBatches"]


class UnevenBatches(Sampler[list[int]]):
    """Batch sampler: cuts a shuffled epoch into global batches of ``total`` samples, and each by the ranks' ``counts``.

    Give it to a DataLoader as ``batch_sampler``. The last global batch may be smaller; it is left out where it has not
    a sample for each rank.

    Raises:
        ValueError: ``total`` has not one sample for each rank, or there are fewer samples than that.
    """

    def __init__(
        self,
        num_samples: int,
        total: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        group = whole_group(group)
        self.rank, self.num_ranks = group.rank(), group.size()
        if total < self.num_ranks or num_samples < self.num_ranks:
            raise ValueError(
                f"UnevenBatches needs a sample for each of {self.num_ranks} ranks in a batch, not {num_samples} "
                f"samples in batches of {total} over all ranks."
            )
        self.num_samples, self.total, self.shuffle, self.seed = num_samples, total, shuffle, seed
        self.epoch = -1
        self.drawn = 0  # the number of the next batch, over all epochs
        self._plan = [(0, shares(total, [1.0] * self.num_ranks))]
        self._named: tuple[int, int] | None = None  # the epoch that comes next, and the batch of it that comes first

    @property
    def counts(self) -> list[int]:
        """Return how many samples of a whole batch each rank gets from now on."""
        return self._counts_of(self.drawn)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; without it each pass takes the next one."""
        if self._named is None or self._named[0] != epoch:
            self._begin_next(epoch, 0)

    def set_counts(self, counts: Sequence[int], from_batch: int) -> None:
        """Take other counts from a batch on that no rank has drawn yet; the same on all ranks.

        Raises:
            ValueError: they do not sum to ``total``, leave a rank without one, or begin with a batch drawn already.
        """
        if sum(counts) != self.total or min(counts) < 1 or len(counts) != self.num_ranks:
            raise ValueError(f"Counts must be {self.num_ranks} of one or more that sum to {self.total}, not {counts}.")
        if from_batch < self.drawn:
            raise ValueError(f"Batch {from_batch} was drawn already; other counts can begin with {self.drawn}.")
        self._plan = [(n, c) for n, c in self._plan if n < from_batch] + [(from_batch, list(counts))]

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return where the training is, the same on all ranks.

        ``taken`` is how many batches of the epoch were trained on. Without it those count that were drawn, which are
        more where a DataLoader's workers draw ahead.

        Raises:
            ValueError: more batches were taken than there are in an epoch.
        """
        now = max(self.epoch, 0)
        epoch, done = self._named or (now, self.drawn - now * len(self))
        done = done if taken is None else taken
        if not 0 <= done <= len(self):
            raise ValueError(f"An epoch has {len(self)} batches, of which {done} cannot have been taken.")
        if done == len(self):
            epoch, done = epoch + 1, 0
        now = epoch * len(self) + done
        later = [(n, c) for n, c in self._plan if n > now]
        plan = [(now, self._counts_of(now)), *later]
        return {**self._recipe(), "epoch": epoch, "taken": done, "plan": [[n, list(c)] for n, c in plan]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, on all ranks: the next pass is the rest of the epoch that was interrupted.

        The counts are taken over where there are as many ranks as then; else they are even again.

        Raises:
            ValueError: it is the state of other samples, batches or orders.
        """
        if not {"epoch", "taken", "plan", *self._recipe()} <= set(state):
            raise ValueError(f"A state with {sorted(state)} is not one of UnevenBatches.")
        other = {name: state[name] for name, mine in self._recipe().items() if state[name] != mine}
        if other:
            raise ValueError(
                f"The state is one of {other}, and this sampler has { ({n: self._recipe()[n] for n in other}) }: "
                "its batches would be other ones."
            )
        self._begin_next(int(state["epoch"]), int(state["taken"]))
        plan = [(int(n), list(map(int, counts))) for n, counts in state["plan"]]
        fits = all(len(counts) == self.num_ranks for _, counts in plan)
        self._plan = [(0, plan[0][1] if fits else shares(self.total, [1.0] * self.num_ranks))]
        self._plan += plan[1:] if fits else []

    def _begin_next(self, epoch: int, first: int) -> None:
        """Let the next pass be this epoch's, from batch ``first`` on."""
        self._named = epoch, first
        self.epoch = epoch - 1  # a pass takes the next one
        self.drawn = epoch * len(self) + first

    def _recipe(self) -> dict[str, Any]:
        """Return what decides which samples are in which batch."""
        return {"num_samples": self.num_samples, "total": self.total, "shuffle": self.shuffle, "seed": self.seed}

    def __len__(self) -> int:
        return self.num_samples // self.total + (self.num_samples % self.total >= self.num_ranks)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's indices, batch by batch."""
        self.epoch += 1
        order = self._order()
        _, first = self._named or (self.epoch, 0)
        self._named = None
        for number in range(first, len(self)):
            self.drawn = self.epoch * len(self) + number
            batch = order[number * self.total : (number + 1) * self.total]
            counts = self._counts_of(self.drawn)
            if len(batch) < self.total:
                counts = shares(len(batch), list(map(float, counts)))
            self.drawn += 1
            start = sum(counts[: self.rank])
            yield batch[start : start + counts[self.rank]]

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.num_samples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return list(map(int, torch.randperm(self.num_samples, generator=generator).tolist()))

    def _counts_of(self, number: int) -> list[int]:
        return next(counts for start, counts in reversed(self._plan) if number >= start)
