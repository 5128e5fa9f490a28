"""How batches are loaded: the call to paste, and what workers and threads hide of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts
    from diagnose.tables.program import Program

__all__ = [
    "HIDDEN",
    "HIDDEN_WAITING",
    "ITERABLE_NUMERICS",
    "PREFETCH_FACTOR",
    "SHARED_OUT",
    "THREADS",
    "is_iterable",
    "loader_call",
    "number",
    "with_batch_size",
]

# Of the stall, what is gone at least when workers keep up: fetching a batch from them, and the cores they take, cost.
# Four workers left 2 % of it and nothing in the two published pairs without and with them (docs/savings.md).
HIDDEN, HIDDEN_WAITING = 0.85, 0.9
THREADS = 8  # that wait for storage at the same time, in each process that loads
PREFETCH_FACTOR = 4  # batches that each of many workers prepares


def number(facts: Facts, key: str) -> float:
    """Return a number among the facts, 0 where it is not known."""
    value = facts.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def is_iterable(facts: Facts) -> bool:
    """Return whether the dataset is an IterableDataset: torch gives its loader a sampler of its own.

    Recorded Python frames show it too: its fetcher calls next() instead of __getitem__.
    """
    return facts.get("sampler") == "_InfiniteConstantSampler" or facts.get("iterable") is True


ITERABLE_NUMERICS = other_training(
    "every worker runs through the whole IterableDataset unless its __iter__ takes a share by get_worker_info()"
)
SHARED_OUT = """
# in the IterableDataset: without this every sample comes once from each worker
def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    yield from itertools.islice(self.samples(), first, None, step)"""


def loader_call(facts: Facts, **arguments: object) -> str:
    """Return the call that makes the DataLoader, with what is recorded of it and these arguments."""
    name = facts.get("dataset") or "dataset"
    batch = facts.get("batch_size")
    given = [f"batch_size={batch}"] if batch is not None else []
    given += [f"{key}={value}" for key, value in arguments.items()]
    others = "" if batch is not None else "   # beside the arguments that it has"
    return f"DataLoader({', '.join([str(name), *given])}){others}"


def with_batch_size(facts: Facts, program: Program) -> Facts:
    """Return the facts with the batch size that the program shows, where the loader's was not recorded.

    Whether it is the loader's is not known where several ranks or a gathered batch could stand between them, but one
    process passes on what it loads.
    """
    known = facts.get("batch_size") or (program.batch_size if program.trains else None)
    return {**facts, "batch_size": known}
