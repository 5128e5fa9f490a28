"""The source lines that a capture stores: what ran, little of it, masked."""

import linecache
import os
import stat
import time

import pytest

from diagnose.capture.record.folder import CaptureFolder
from diagnose.capture.record.source_lines import MAX_LINE_WIDTH, SourceLines
from diagnose.trace_reader.documents import read_lines

TEXT = "import time\n\n    api_key = 'abc'; train()\nlast()"


def an_hour_old(path, text=TEXT):
    path.write_bytes(text.encode("latin-1"))
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def texts(found):
    return {name: file["lines"] for name, file in found["files"].items()}


def test_the_lines_asked_for_and_no_others(tmp_path):
    file = an_hour_old(tmp_path / "train.py")
    found = SourceLines(tmp_path).stored([("train.py", 3), (str(file), 4), ("train.py", 2), ("train.py", 99)])
    assert texts(found) == {"train.py": {"3": "api_key = '***'; train()"}, str(file): {"4": "last()"}}


SEVERAL = "loss = measure(\n    model(x),\n    y,\n)\nfor a, b in zip(\n    x, y\n):\n    add(a)\n    add(b)\n"


@pytest.mark.parametrize(("line", "first", "last"), [(1, 1, 4), (3, 1, 4), (6, 5, 7)])
def test_a_statement_on_several_lines_is_stored_on_one_with_its_first(tmp_path, line, first, last):
    an_hour_old(tmp_path / "train.py", SEVERAL)
    found = SourceLines(tmp_path).stored([("train.py", line)])["files"]["train.py"]
    assert found["statements"] == {str(first): last}
    text = {1: "loss = measure( model(x), y, )", 5: "for a, b in zip( x, y ):"}[first]
    assert found["lines"][str(first)] == text


def test_the_body_of_a_loop_is_no_part_of_its_head(tmp_path):
    an_hour_old(tmp_path / "train.py", SEVERAL)
    assert SourceLines(tmp_path).stored([("train.py", 8)])["files"]["train.py"]["statements"] == {}


def test_they_are_read_back_and_private(tmp_path):
    an_hour_old(tmp_path / "train.py")
    folder = CaptureFolder(tmp_path / "capture", rank=0, num_ranks=1, force=False)
    for _ in range(2):  # a capture is written after each window
        folder.write_rows("rank0.lines.json.gz", SourceLines(tmp_path).stored([("train.py", 4)]))
    path = folder.publish() / "rank0.lines.json.gz"
    assert read_lines(path).lines == {("train.py", 4): "last()"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_changed_since_the_script_began_is_not_quoted(tmp_path):
    lines = SourceLines(tmp_path)
    file = an_hour_old(tmp_path / "train.py")
    os.utime(file, (time.time() + 3600,) * 2)
    assert texts(lines.stored([("train.py", 4)])) == {}
    assert lines.changed == ["train.py"]


@pytest.mark.parametrize(("temporary", "changed"), [("generated", []), ("elsewhere", ["{}"])])
def test_what_a_library_generated_as_the_script_ran_is_not_named(tmp_path, monkeypatch, temporary, changed):
    for folder in ("work", "generated", "elsewhere"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr("diagnose.capture.record.source_lines.tempfile.gettempdir", lambda: str(tmp_path / "generated"))
    lines = SourceLines(tmp_path / "work")
    file = an_hour_old(tmp_path / temporary / "propagate.py")
    os.utime(file, (time.time() + 3600,) * 2)
    assert texts(lines.stored([(str(file), 4)])) == {}
    assert lines.changed == [name.format(file) for name in changed]


NESTED = """def fit(rows, steps):
    for step in range(steps):
        while rows:
            for row in rows:
                use(row)
                keep(
                    row)
            else:
                done()
        loss.backward()
"""


def test_the_loops_around_the_lines_but_that_of_the_training(tmp_path):
    an_hour_old(tmp_path / "train.py", NESTED)
    lines = SourceLines(tmp_path)
    stored = [lines.stored([("train.py", line)])["files"]["train.py"] for line in (5, 9, 10)]
    assert [file["loops"] for file in stored] == [{"3": 9, "4": 7}, {"3": 9}, {}]
    heads = {"1": "def fit(rows, steps):", "3": "while rows:", "4": "for row in rows:"}
    assert stored[0]["lines"] == {"5": "use(row)", **heads}
    assert [file["functions"] for file in stored] == [{"1": 10}] * 3
    assert stored[0]["bound"]["4"] == ["row"]


def test_no_loops_and_draws_of_what_is_no_python(tmp_path):
    an_hour_old(tmp_path / "train.py", "%time\nfor row in rows:\n    use(row)\n    transforms.RandomCrop(8)\n")
    file = SourceLines(tmp_path).stored([("train.py", 3)])["files"]["train.py"]
    assert (file["loops"], file["draws"]) == ({}, [])


DRAWN = """import random
class Rows:
    def __init__(self):
        self.rows = np.random.rand(8)
    def __getitem__(self, i):
        return self.cut(self.rows[i])  # random.random()
    def cut(self, row):
        return row[random.randrange(4):]
class Model:
    def forward(self, x):
        return x + torch.randn(3)
def rows():
    return np.random.rand(8)
use(transforms.Compose([transforms.RandomCrop(8)]), RandomSampler(rows))
"""


def test_where_samples_draw_at_random(tmp_path):
    an_hour_old(tmp_path / "train.py", DRAWN)
    assert SourceLines(tmp_path).stored([("train.py", 6)])["files"]["train.py"]["draws"] == [8, 14]


CALLED = """class Rows:
    def __init__(self):
        self.rows = made()
    def __getitem__(self, i):
        return cut(self.rows[i])
def made():
    return np.random.rand(8)
def cut(row):
    return shift(row)
def shift(row):
    return row + random.random()
def noise(row):
    return row + torch.randn(3)
def weights():
    return torch.randn(3)
use(Rows(), train_transform=noise, start=weights)
augmented = A.Compose([A.Resize(8), A.HorizontalFlip(p=0.5)])
"""


def test_draws_of_functions_that_samples_call_or_are_transformed_by(tmp_path):
    an_hour_old(tmp_path / "train.py", CALLED)
    assert SourceLines(tmp_path).stored([("train.py", 5)])["files"]["train.py"]["draws"] == [11, 13, 17]


SEEDED = """class Rows:
    def __getitem__(self, i):
        rng = np.random.default_rng(self.seeds[i])
        return made(rng.normal(size=3), i)
def made(row, i):
    rng = random.Random(i)
    return row[rng.randrange(3):] + self.rng.normal()
"""


def test_where_samples_draw_by_a_seed_of_their_own(tmp_path):
    an_hour_old(tmp_path / "train.py", SEEDED)
    file = SourceLines(tmp_path).stored([("train.py", 4)])["files"]["train.py"]
    assert (file["draws"], file["seeded"]) == ([7], [3, 4, 6])


def test_the_encoding_that_a_file_declares(tmp_path):
    an_hour_old(tmp_path / "train.py", "# coding: latin-1\r\nname = 'Jörg'\r\n")
    assert texts(SourceLines(tmp_path).stored([("train.py", 2)])) == {"train.py": {"2": "name = 'Jörg'"}}


def test_the_cells_of_a_notebook(tmp_path, monkeypatch):
    monkeypatch.setitem(linecache.cache, "<cell 1>", (12, None, ["step()\n", "b = 2\n"], "<cell 1>"))
    assert texts(SourceLines(tmp_path).stored([("<cell 1>", 1), ("<string>", 1)])) == {"<cell 1>": {"1": "step()"}}


@pytest.mark.parametrize("name", ["", "missing.py", "folder", "pipe", "a\0b", "bad.py"])
def test_what_is_no_source_file_is_left_out(tmp_path, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    an_hour_old(tmp_path / "bad.py", "\xff\xfe")
    assert texts(SourceLines(tmp_path).stored([(name, 1)])) == {}


def test_bounds(tmp_path):
    an_hour_old(tmp_path / "train.py", "x" * 10_000 + "\n" + "y\n" * 2000)
    found = texts(SourceLines(tmp_path).stored([("train.py", line) for line in range(1, 2050)]))["train.py"]
    assert len(found) == 2000
    assert len(found["1"]) == MAX_LINE_WIDTH
