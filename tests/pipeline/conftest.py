import pytest

from diagnose.trace_reader.inputs import RankFiles
from diagnose.trace_reader.stored import Stored


@pytest.fixture
def ranks(tmp_path) -> list[RankFiles]:
    folder = tmp_path / "ranks"
    folder.mkdir()
    names = ["a", "b", "deadly", "d", "e"]
    for size, name in enumerate(names):
        (folder / f"{name}.json").write_bytes(bytes(size))
    return [RankFiles(None, Stored(str(folder / f"{name}.json"), name)) for name in names]
