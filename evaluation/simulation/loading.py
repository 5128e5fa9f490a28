"""Batches: made by workers ahead of time, or by the training thread when it wants one."""

from __future__ import annotations

from simulation.timeline import HostEvent, Loader

__all__ = ["BatchQueue", "seen"]


class BatchQueue:
    """What the workers of a loader have made, and what was taken."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.made: list[float] = []
        self.taken: list[float] = []

    @property
    def batch(self) -> int:
        """Return the number of the next batch."""
        return len(self.taken)

    def take(self, now: float, making: float, taking: float) -> float:
        """Return when the next batch is there, for who asks ``now``.

        Worker n makes every n-th batch, one after the other, and no more than ``prefetch`` of them ahead.
        """
        workers = self.loader.workers
        if workers:
            before = self.made[-workers] if len(self.made) >= workers else 0.0
            ahead = workers * self.loader.prefetch
            asked = self.taken[-ahead] if len(self.taken) >= ahead else 0.0
            self.made.append(max(before, asked) + making)
            there = max(now, self.made[-1]) + taking
        else:
            there = now + making
        self.taken.append(there)
        return there


def seen(loader: Loader, start: float, end: float, thread: str, number: int) -> list[HostEvent]:
    """Return what a profiler sees of taking a batch; what workers do is in no trace."""
    kind = "_MultiProcessingDataLoaderIter" if loader.workers else "_SingleProcessDataLoaderIter"
    rows = [
        ("python_function", "torch/utils/data/dataloader.py(701): __next__", 0.0, 1.0),
        ("user_annotation", f"enumerate(DataLoader)#{kind}.__next__", 0.005, 0.995),
    ]
    if loader.workers:
        rows.append(("python_function", "torch/utils/data/dataloader.py(1307): _next_data", 0.01, 0.98))
    else:
        rows.append(("python_function", "dataset.py(27): __getitem__", 0.01, 0.9))
        rows.append(("cpu_op", "aten::stack", 0.95, 0.985))
    length = end - start
    return [
        HostEvent(category, name, start + begin * length, start + stop * length, thread, number + at, {})
        for at, (category, name, begin, stop) in enumerate(rows)
    ]
