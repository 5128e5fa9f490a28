"""The functions around sampled lines, and what binds the names that they use."""

import os

from diagnose.capture.record.source_lines import SourceLines
from diagnose.model.assignments import Binding

SCRIPT = """import numpy as np
NUM = 30
WORDS = [{words}]
class Rows:
    def __init__(self, share):
        self.share = share / share.sum()
        self.unused = 3
    def update(self, i):
        self.share[i] = 0.5

    def draw(self):
        token = "hf_0123456789abcdefghijABCDEFGHIJ0123"
        return rng.choice(NUM, p=self.share), WORDS
for step in range(3):
    for row in step:
        use(row)
def main():
    kept = sorted(range(9))
    def join(rows):
        return [kept.index(row) for row in rows]
""".replace("{words}", ", ".join(f"'word{i}'" for i in range(60)))


def stored(folder, line):
    path = folder / "train.py"
    path.write_text(SCRIPT)
    os.utime(path, (1e9, 1e9))
    return SourceLines(folder).stored([("train.py", line)])["files"]["train.py"]


def test_a_method_comes_with_its_module_and_its_attributes(tmp_path):
    file = stored(tmp_path, 13)
    (text,) = file["texts"].values()
    assert text.startswith("def draw(self):\n    token = ")
    assert "hf_0123456789" not in text
    assert [(each.name, each.function, each.text) for each in file["bindings"]] == [
        ("NUM", "", "NUM = 30"),
        ("WORDS", "", "WORDS = [...]"),
        ("self.share", "__init__", "self.share = share / share.sum()"),
        ("self.share", "update", "self.share[i] = 0.5"),
    ]


def test_outside_of_functions_the_outermost_loop_is_stored(tmp_path):
    assert stored(tmp_path, 16)["texts"] == {"14": "for step in range(3):\n    for row in step:\n        use(row)"}


def test_an_inner_function_comes_with_names_of_the_outer_one(tmp_path):
    file = stored(tmp_path, 20)
    assert list(file["texts"]) == ["19"]
    assert Binding("kept", "main", "kept = sorted(range(9))", 18) in file["bindings"]
