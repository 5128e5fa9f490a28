"""Names of files in a capture that is written."""

import gzip
import json
import sys
from types import SimpleNamespace

import pytest

from diagnose.capture.record.folder import name_cells


@pytest.fixture
def capture(tmp_path):
    names = ["/tmp/ipykernel_7/12.py(3): step", "/tmp/ipykernel_7/123.py(4): load", "<ipython-input-9-0af>(1): loss"]
    text = json.dumps(names)
    (tmp_path / "capture.json").write_text(text)
    (tmp_path / "rank0.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def names_in(capture):
    packed = gzip.decompress((capture / "rank0.pt.trace.json.gz").read_bytes())
    assert json.loads(packed) == json.loads((capture / "capture.json").read_text())
    return json.loads(packed)


def test_the_cells_of_a_notebook_have_their_numbers(capture, monkeypatch):
    cells = {"/tmp/ipykernel_7/12.py": 5, "/tmp/ipykernel_7/123.py": 6}
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map=cells))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    name_cells(capture)
    assert names_in(capture) == ["cell 5(3): step", "cell 6(4): load", "cell 9(1): loss"]


def test_outside_of_a_notebook_names_stay(capture, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    before = names_in(capture)
    name_cells(capture)
    assert names_in(capture) == before
