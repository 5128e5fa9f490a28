"""Batches of like lengths within a budget, and where an epoch of them is."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from diagnose.kernels.sharding import ranks

__all__ = ["LengthBatches", "rounded"]

WINDOW = 64
"""Batches of each rank whose samples are sorted together: longer windows pad less and shuffle less."""


class LengthBatches(Sampler[list[int]]):
    """Batch sampler: samples of like lengths together, rows × the longest of them (rounded up) at most ``budget``.

    ``max_samples`` bounds the rows as well; alone, it keeps the number of samples and groups them by length. Lengths
    are rounded up to a multiple of ``multiple``, so that few sizes occur: round in ``collate_fn`` too. Give it to a
    DataLoader as ``batch_sampler``. Each rank gets as many batches, those of one step of like lengths; rank and number
    of ranks are those of the process group unless given. Where a batch too many has one sample, it comes on two ranks.

    Raises:
        ValueError: there is no bound, a bound is below one, a sample is longer than the budget, or there are fewer
            samples than ranks.
    """

    def __init__(
        self,
        lengths: Sequence[int] | Tensor,
        budget: int | None = None,
        *,
        max_samples: int | None = None,
        multiple: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        num_ranks: int | None = None,
    ) -> None:
        if budget is None and max_samples is None:
            raise ValueError("LengthBatches needs a budget of padded tokens, max_samples, or both.")
        if min(multiple, *(bound for bound in (budget, max_samples) if bound is not None)) < 1:
            raise ValueError(
                f"LengthBatches needs bounds and multiple >= 1, not budget={budget}, max_samples={max_samples} and "
                f"multiple={multiple}."
            )
        self.rank, self.num_ranks = ranks(rank, num_ranks)
        self.lengths = [rounded(int(n), multiple) for n in lengths]
        if len(self.lengths) < self.num_ranks:
            raise ValueError(f"LengthBatches has {len(self.lengths)} samples for {self.num_ranks} ranks.")
        too_long = [n for n in self.lengths if budget is not None and n > budget]
        if too_long:
            raise ValueError(
                f"{len(too_long)} of {len(self.lengths)} samples are longer than the budget of {budget} tokens, the "
                f"longest with {max(too_long)}; cut them, leave them out, or raise the budget."
            )
        self.budget, self.max_samples, self.multiple = budget, max_samples, multiple
        self.shuffle, self.seed = shuffle, seed
        self.num_tokens = sum(map(int, lengths))
        self.epoch = -1
        self.drawn = 0  # batches of the epoch
        self._resumed: tuple[int, int] | None = None  # epoch, and the batch of it that comes first
        self._planned: tuple[int, list[list[list[int]]]] | None = None  # epoch, and its steps: a batch for each rank

    @property
    def padding(self) -> float:
        """Return the share of an epoch's tokens that is filled up, over all ranks."""
        whole = sum(self._longest(batch) * len(batch) for step in self._steps(self._now()) for batch in step)
        return 1 - self.num_tokens / whole

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; without it each pass takes the next one."""
        if self._resumed is None or self._resumed[0] != epoch:
            self._resumed = epoch, 0
        self.epoch = epoch - 1

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return where the training is, the same on all ranks.

        ``taken`` is how many batches of the epoch were trained on. Without it those count that were drawn, which are
        more where a DataLoader's workers draw ahead.

        Raises:
            ValueError: more batches were taken than there are in an epoch.
        """
        epoch, done = self._resumed or (self._now(), self.drawn)
        if taken is not None:
            done = taken
        num = len(self._steps(epoch))
        if not 0 <= done <= num:
            raise ValueError(f"Epoch {epoch} has {num} batches, of which {done} cannot have been taken.")
        return {**self._recipe(), "epoch": epoch + (done == num), "taken": 0 if done == num else done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, on all ranks: the next pass is the rest of the epoch that was interrupted.

        Raises:
            ValueError: it is the state of other samples, bounds, orders, or numbers of ranks.
        """
        if not {"epoch", "taken", *self._recipe()} <= set(state):
            raise ValueError(f"A state with {sorted(state)} is not one of LengthBatches.")
        if other := [name for name, mine in self._recipe().items() if state[name] != mine]:
            raise ValueError(
                f"The state is one of {other[0]}={state[other[0]]}, and this sampler has {self._recipe()[other[0]]}: "
                "its batches would be other ones."
            )
        self._resumed = int(state["epoch"]), int(state["taken"])
        self.epoch = self._resumed[0] - 1  # a pass takes the next one

    def __len__(self) -> int:
        """Return the number of batches of the epoch that is being drawn or comes first; epochs differ a little."""
        return len(self._steps(self._now()))

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's indices, batch by batch."""
        self.epoch += 1
        _, first = self._resumed or (self.epoch, 0)  # its epoch is this one: what sets it sets the epoch before it
        self._resumed = None
        steps = self._steps(self.epoch)
        for number in range(first, len(steps)):
            self.drawn = number + 1
            yield list(steps[number][self.rank])
        self.drawn = len(steps)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": None}

    def _now(self) -> int:
        return self._resumed[0] if self._resumed else max(self.epoch, 0)

    def _recipe(self) -> dict[str, Any]:
        """Return what decides which samples are in which batch."""
        return {
            "num_samples": len(self.lengths), "lengths": zlib.crc32(array("q", self.lengths).tobytes()),
            "budget": self.budget, "max_samples": self.max_samples, "shuffle": self.shuffle, "seed": self.seed,
            "num_ranks": self.num_ranks,
        }  # fmt: skip

    def _steps(self, epoch: int) -> list[list[list[int]]]:
        """Return the steps of an epoch, each a batch for every rank."""
        if self._planned is None or self._planned[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            num = len(self.lengths)
            order = torch.randperm(num, generator=generator).tolist() if self.shuffle else list(range(num))
            steps = [step for window in self._windows(order) for step in self._cut(window)]
            if self.shuffle:
                steps = [steps[i] for i in torch.randperm(len(steps), generator=generator).tolist()]
            self._planned = epoch, steps
        return self._planned[1]

    def _windows(self, order: list[int]) -> list[list[int]]:
        """Cut the order into windows of about `WINDOW` batches for each rank."""
        most = WINDOW * self.num_ranks
        windows: list[list[int]] = []
        tokens = 0
        for index in order:
            is_full = bool(windows) and (
                (self.budget is not None and tokens >= most * self.budget)
                or (self.max_samples is not None and len(windows[-1]) >= most * self.max_samples)
            )
            if not windows or is_full:
                windows.append([])
                tokens = 0
            windows[-1].append(index)
            tokens += self.lengths[index]
        if len(windows) > 1 and len(windows[-1]) < self.num_ranks:  # a step needs a sample for each rank
            windows[-2] += windows.pop()
        return windows

    def _cut(self, window: list[int]) -> list[list[list[int]]]:
        """Return the steps of a window: the longest samples first, so that each batch's first sample bounds it."""
        ordered = sorted(window, key=lambda index: -self.lengths[index])
        batches: list[list[int]] = []
        at = 0
        while at < len(ordered):
            batches.append(ordered[at : at + self._rows(self.lengths[ordered[at]])])
            at += len(batches[-1])
        while len(batches) % self.num_ranks:  # no sample is left out: the batch of most samples is halved instead
            at = max(range(len(batches)), key=lambda i: len(batches[i]))
            half = len(batches[at]) // 2
            if half:
                batches[at : at + 1] = [batches[at][:half], batches[at][half:]]
            else:
                batches.append(batches[-1])
        return [batches[at : at + self.num_ranks] for at in range(0, len(batches), self.num_ranks)]

    def _rows(self, longest: int) -> int:
        by_budget = len(self.lengths) if self.budget is None else self.budget // longest
        return min(by_budget, self.max_samples or by_budget)

    def _longest(self, batch: list[int]) -> int:
        return max(self.lengths[index] for index in batch)


def rounded(length: int, multiple: int) -> int:
    """Return the length rounded up to a multiple, one at least."""
    return -(-max(length, 1) // multiple) * multiple
