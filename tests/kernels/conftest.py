import io
import tarfile

import numpy as np
import pytest


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
