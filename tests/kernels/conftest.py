"""What tests of loading share: shards of samples, and a tuner whose measurements are given."""

import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from diagnose.kernels import loader_tuning
from diagnose.kernels._loader_bench import Bench


def _write_shards(folder, sizes):
    label, paths = 0, []
    for number, size in enumerate(sizes):
        paths.append(str(folder / f"shard-{number:03}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for _ in range(size):
                array = io.BytesIO()
                np.save(array, np.full(4, label, np.float32))
                for name, data in (("x.npy", array.getvalue()), ("y.cls", str(label).encode())):
                    entry = tarfile.TarInfo(f"{label:05}.{name}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
                label += 1
    return paths


@pytest.fixture
def write_shards():
    """Return the function that writes tar shards of the given numbers of samples: x.npy, and y.cls counting up."""
    return _write_shards


@pytest.fixture
def timed_as(monkeypatch):
    """Let tune_loader run every setting, but take these seconds for what it measured.

    ``load`` and ``step`` are those of one batch, ``together(settings)`` those of a step with its batch.
    """
    measure, loop = loader_tuning.measure_costs, Bench._loop

    def install(*, load, step, together):
        def costs(*arguments):
            found, batches = measure(*arguments)
            return replace(found, samples=load, collate=0.0, step=step), batches

        def timed(self, batches, settings):
            taken, memory = loop(self, batches, settings)
            return (together(settings) if taken else taken), memory

        monkeypatch.setattr(loader_tuning, "measure_costs", costs)
        monkeypatch.setattr(Bench, "_loop", timed)

    return install
