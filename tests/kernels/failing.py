"""Loops over loaders whose worker raises or dies, each wrapped in a remedy; prints what a loop met, as JSON.

A process of its own: torch raises the death of a worker wherever the main thread happens to be.
"""

import gc
import json
import os
import re
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from diagnose.kernels import prefetch
from diagnose.kernels.accumulation import GradientAccumulation
from diagnose.kernels.background_loader import BackgroundLoader
from diagnose.kernels.prefetch import DevicePrefetcher


class Failing(Dataset):
    """Fails at its seventh sample, once; ``mark`` says whether it has done so."""

    def __init__(self, mark, *, dies):
        self.mark, self.dies = mark, dies

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 6 and not self.mark.exists():
            self.mark.touch()
            if self.dies:
                os._exit(3)
            raise OSError("the disk is gone")
        return torch.full((2,), float(index))


class Side:
    """Stands for a device's second stream."""

    def __init__(self, device):
        self.device = device

    def pin(self, batch):
        return batch

    def copy(self, batch):
        return batch.clone(), None

    def hand_over(self, batch, done):
        pass


WAYS = {
    "plain": lambda loader: loader,
    "background": BackgroundLoader,
    "prefetch": lambda loader: DevicePrefetcher(loader, "cuda"),
}


def looped(loader):
    """Return what a loop saw, the error that ended it, and what the next epoch saw."""
    seen, error = [], ""
    try:
        seen.extend(int(batch[0, 0]) for batch in loader)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return {"seen": seen, "error": error, "next": next_epoch(loader, error)}


def next_epoch(loader, error):
    """Return what the next epoch sees.

    Where torch had noticed a worker's death before its signal came, it reports the same process once more.
    """
    try:
        return [int(batch[0, 0]) for batch in loader]
    except RuntimeError as late:
        if not set(re.findall(r"\d{2,}", error)) & set(re.findall(r"pid[^)]*?(\d{2,})", str(late))):
            raise
        return [int(batch[0, 0]) for batch in loader]


def window(loader):
    """Return what accumulation makes of a loop that fails within a window."""
    model = nn.Linear(2, 1)
    before = [p.detach().clone() for p in model.parameters()]
    accumulation = GradientAccumulation(model, torch.optim.SGD(model.parameters(), lr=0.1), every=8)

    def epoch():
        try:
            for batch in accumulation.over(loader):
                with accumulation.micro_batch(len(batch)) as micro:
                    micro.backward(model(batch).mean())
        except Exception as caught:
            return f"{type(caught).__name__}: {caught}"
        return ""

    errors = [epoch(), epoch()]
    unchanged = all(map(torch.equal, before, model.parameters()))
    accumulation.drop()
    return {"errors": [*errors, epoch()], "steps": accumulation.steps, "unchanged": unchanged}


def main(folder):
    gc.disable()  # torch's error holds its iterator in a cycle, whose workers a collection would wait for
    prefetch.SideStream, prefetch.needs_pin = Side, lambda batch: True
    found = {}
    for name, way in WAYS.items():
        for dies in (False, True):
            dataset = Failing(folder / f"{name}-{dies}", dies=dies)
            key = f"{name}-{'dies' if dies else 'raises'}"
            found[key] = looped(way(DataLoader(dataset, batch_size=2, num_workers=1)))
    dataset = Failing(folder / "window", dies=False)
    found["window"] = window(DataLoader(dataset, batch_size=2, num_workers=1))
    print(json.dumps(found), flush=True)
    os._exit(0)  # as above


if __name__ == "__main__":
    main(Path(sys.argv[1]))
