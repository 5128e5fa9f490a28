"""A trace that torch did not write to its end is no trace."""

import gzip
from pathlib import Path

import pytest

from diagnose.capture.record.window import Window
from diagnose.errors import OutputError

EVENTS = '{"schemaVersion": 1,\n"traceEvents": [\n{"ph": "i", "args": {"Input Dims": [[2, 3]]}}\n'
WHOLE = EVENTS + '  ],"traceName": "/tmp/a.json" }\n'


class Profiler:
    """Writes a text as torch does: under another name first, which stays if the disk is full."""

    def __init__(self, text, renamed=True):
        self.text, self.renamed = text, renamed

    def export_chrome_trace(self, path):
        with Path(path if self.renamed else f"{path}.tmp").open("w") as file:
            file.write(self.text)


def window(profiler):
    window = Window.__new__(Window)
    window._profiler, window._unfinished = profiler, ""
    return window


def test_a_whole_trace_is_packed(tmp_path):
    path = tmp_path / "rank0.light.pt.trace.json.gz"
    assert window(Profiler(WHOLE)).export(path) == len(WHOLE) / 1e6
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert gzip.decompress(path.read_bytes()).decode() == WHOLE.replace("/tmp/", "")  # folders are nobody's business
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("num_bytes", [0, 40, len(EVENTS), len(WHOLE) - 3])
@pytest.mark.parametrize("renamed", [True, False])
def test_a_trace_cut_off_is_refused_and_removed(tmp_path, num_bytes, renamed):
    with pytest.raises(OutputError, match=r"did not write all of it, with \d+ MB free there. Free some space"):
        window(Profiler(WHOLE[:num_bytes], renamed)).export(tmp_path / "rank0.light.pt.trace.json.gz")
    assert list(tmp_path.iterdir()) == []
