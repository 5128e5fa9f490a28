"""Deques that are indexed by what is computed: where, and the line that builds them."""

import ast

import pytest

from diagnose.capture.record.source_lines import SourceLines, indexed_deques
from tests.capture.test_source_lines import an_hour_old

REPLAY = """from collections import deque
class Replay:
    def __init__(self, capacity):
        self.items = {built}
    def sample(self, rows):
        return {read}
"""
LONG, EACH = "deque(maxlen=capacity)", "[self.items[row] for row in rows]"


@pytest.mark.parametrize(
    ("built", "read", "is_found"),
    [
        (LONG, EACH, True),
        ("collections.deque((), 500_000)", "self.items[-rows]", True),
        (LONG, "self.items[-1]", False),  # an end
        ("deque(maxlen=8)", EACH, False),
        ("list(capacity)", EACH, False),
        ("deque(); self.items = list()", EACH, False),
    ],
)
def test_a_deque_that_is_indexed(built, read, is_found):
    expected = [{"line": 6, "last": 6, "name": "self.items", "built": 4}] if is_found else []
    assert indexed_deques(ast.parse(REPLAY.format(built=built, read=read))) == expected


def test_those_at_the_lines_that_a_capture_stores(tmp_path):
    an_hour_old(tmp_path / "data.py", REPLAY.format(built=LONG, read=EACH))
    lines = SourceLines(tmp_path)
    stored = [lines.stored([("data.py", line), ("data.py", line)])["files"]["data.py"]["deques"] for line in (6, 3)]
    assert [[one["name"] for one in each] for each in stored] == [["self.items"], []]
