"""Hooks into the calls that changes edit: of DataLoader, optimizers, DDP and anomaly detection; first batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from diagnose.capture.steps.replacing import Undo, around, replace_function

__all__ = ["ANOMALY", "OnMade", "watch_constructions", "watch_first_batches"]

ANOMALY = ("set_detect_anomaly", "detect_anomaly")  # what turns anomaly detection on: a call, and a region

OnMade: TypeAlias = Callable[[str, object], None]
"""Called with the name that a class is known by and with the object, before its constructor returns."""


def watch_constructions(made: OnMade) -> Undo:
    """Report every object of these classes while the call that makes it is being executed; return what ends that.

    Of anomaly detection only what turns it on is reported.
    """
    import torch
    from torch.autograd import anomaly_mode
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import Optimizer
    from torch.utils.data import DataLoader

    def turned(setting: object) -> None:
        if torch.is_anomaly_enabled():
            made(ANOMALY[0], setting)

    undo = [
        around(anomaly_mode.set_detect_anomaly, "__init__", after=turned),
        around(anomaly_mode.detect_anomaly, "__enter__", before=lambda region: made(ANOMALY[1], region)),
        around(DataLoader, "__init__", after=lambda loader: made("DataLoader", loader)),
        around(Optimizer, "__init__", after=lambda optimizer: made(type(optimizer).__name__, optimizer)),
        around(DistributedDataParallel, "__init__", after=lambda model: made("DistributedDataParallel", model)),
    ]

    def end() -> None:
        for one in reversed(undo):
            one()

    return end


def watch_first_batches(seen: Callable[[object, object], None]) -> Undo:
    """Report the first batch of each dataset with the dataset; return what ends that."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    known: set[int] = set()

    def watched(next_batch: Any) -> Callable[[Any], object]:
        def delivered(self: Any) -> object:  # torch's iterator, whose type is private
            batch = next_batch(self)
            dataset = getattr(self, "_dataset", None)
            if id(dataset) not in known:
                known.add(id(dataset))
                seen(dataset, batch)
            return batch

        return delivered

    return replace_function(_BaseDataLoaderIter, "__next__", watched)
