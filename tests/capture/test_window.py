"""A trace that torch did not write to its end is no trace."""

import errno
import gzip
import os
import re
import resource
from pathlib import Path

import pytest

from diagnose.capture.record.window import Window
from diagnose.errors import OutputError
from diagnose.model.files import reason

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


def test_the_script_s_own_step_marks_are_not_ours(tmp_path):
    names = ("ProfilerStep#3", "DiagnoseStep#7", "DiagnoseStep#8", "Optimizer.step#SGD.step")
    marks = "".join(f'{{"ph": "X", "name": "{name}"}},\n' for name in names)
    path = tmp_path / "rank0.light.pt.trace.json.gz"
    cut = window(Profiler(EVENTS + marks + '  ],"traceName": "/tmp/a.json" }\n'))
    cut._unfinished = "DiagnoseStep#8"
    cut.export(path)
    stored = re.findall(r'"name": "(.*?)"', gzip.decompress(path.read_bytes()).decode())
    assert stored == ["ScriptProfilerStep#3", "ProfilerStep#7", "UnfinishedProfilerStep#8", names[3]]


@pytest.mark.parametrize("num_bytes", [0, 40, len(EVENTS), len(WHOLE) - 3])
@pytest.mark.parametrize("renamed", [True, False])
def test_a_trace_cut_off_is_refused_and_removed(tmp_path, num_bytes, renamed):
    with pytest.raises(OutputError, match=r"did not write all of it, with \d+ MB free there. Free some space"):
        window(Profiler(WHOLE[:num_bytes], renamed)).export(tmp_path / "rank0.light.pt.trace.json.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def limited():
    """Set a limit of this process for one test."""
    before = {}

    def limit(kind, value):
        before[kind] = resource.getrlimit(kind)
        resource.setrlimit(kind, (value, before[kind][1]))

    yield limit
    for kind, values in before.items():
        resource.setrlimit(kind, values)


def test_a_limit_on_the_size_of_files_is_named(tmp_path, limited):
    limited(resource.RLIMIT_FSIZE, 1 << 30)

    class Cut:
        def export_chrome_trace(self, path):
            with Path(f"{path}.tmp").open("wb") as file:
                file.truncate(1 << 30)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    with pytest.raises(OutputError, match=r"did not write all of it: File too large\. Raise the limit on the size"):
        window(Cut()).export(tmp_path / "rank0.light.pt.trace.json.gz")
    assert list(tmp_path.iterdir()) == []


def test_too_many_open_files_are_named(tmp_path, limited):
    class Profiler:
        def export_chrome_trace(self, path):
            limited(resource.RLIMIT_NOFILE, 3)  # the numbers 0 to 2 are in use
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    with pytest.raises(OSError, match="Too many open files") as caught:
        window(Profiler()).export(tmp_path / "rank0.light.pt.trace.json.gz")
    assert reason(caught.value) == "Too many open files. Raise the limit on open files (ulimit -n)."
