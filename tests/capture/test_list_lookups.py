"""Tests of membership in a list that is built once: where, what builds it, and when it can be a set."""

import ast
import textwrap

import pytest

from diagnose.capture.record.source_lines import MIN_LIST, SourceLines, list_lookups
from tests.capture.test_source_lines import an_hour_old


def found(text):
    text = textwrap.dedent(text)
    return list_lookups(ast.parse(text), text.split("\n"))


def shown(text):
    """Return each test's line, the list's name and line, and the expression that becomes a set, None where none can."""
    return [(one["line"], one["name"], one["built"], one["made"] and _text(one["made"], text)) for one in found(text)]


def _text(made, text):
    lines = textwrap.dedent(text).split("\n")
    (top, left), (bottom, right) = made["begin"], made["end"]
    assert made["lines"] == lines[made["first"] - 1 : made["first"] - 1 + len(made["lines"])]
    return (
        lines[top - 1][left:right] if top == bottom else "\n".join([lines[top - 1][left:], lines[bottom - 1][:right]])
    )


def rows(builds, uses="", more=""):
    return f"""class Rows:
    def __init__(self, words):
        self.stop = {builds}
    def __getitem__(self, i):
        {uses or "pass"}
        return [w for w in self.docs[i] if w not in self.stop]
{more}"""


def test_an_attribute_that_a_class_builds():
    assert shown(rows("[w for w in words if w]")) == [(6, "self.stop", 3, "[w for w in words if w]")]
    assert shown(rows("list(words)")) == [(6, "self.stop", 3, "list(words)")]
    assert shown(rows("['ä', *words]")) == [(6, "self.stop", 3, "['ä', *words]")]
    assert shown(rows("list(\n            words)")) == [(7, "self.stop", 3, "list(\n            words)")]


def test_a_name_that_the_module_builds():
    text = "STOP = list(open('x'))\ndef rows(words):\n    return [w in STOP for w in words]\n"
    assert shown(text) == [(3, "STOP", 1, "list(open('x'))")]
    for beside in ("STOP = set(STOP)", "def f(STOP): pass", "for STOP in x: pass", "import STOP", "STOP += [1]"):
        assert shown(text + beside) == [], beside


@pytest.mark.parametrize("builds", ["tuple(words)", "sorted(words)", "(*words,)", "list()"])
def test_what_is_no_plain_list_is_named_without_an_edit(builds):
    assert shown(rows(builds)) == [(6, "self.stop", 3, None)]


@pytest.mark.parametrize(
    "uses",
    [
        "x = self.stop[i]",
        "x = self.stop[:i]",
        "self.stop.sort()",
        "self.stop.append(i)",
        "x = len(self.stop)",
        "for w in self.stop: pass",
        "use(self.stop)",
        "x = getattr(self, 'stop')",
        "x = self.stop == []",
    ],
)
def test_no_edit_where_anything_else_reads_the_list(uses):
    assert shown(rows("list(words)", uses)) == [(6, "self.stop", 3, None)]


def test_a_read_in_another_class_counts_too():
    assert shown(rows("list(words)", more="class B:\n    def f(self, rows):\n        return rows.stop[0]\n")) == [
        (6, "self.stop", 3, None)
    ]


@pytest.mark.parametrize(
    "builds",
    [
        "set(words)",
        "{w for w in words}",
        "words",
        "np.array(words)",
        "[[w] for w in words]",
        f"{list(range(MIN_LIST - 1))}",
        "[]",
    ],
)
def test_sets_unknown_and_short_lists_are_left(builds):
    assert shown(rows(builds)) == []


def test_a_list_of_some_length_is_one():
    assert len(shown(rows(f"{list(range(MIN_LIST))}"))) == 1


@pytest.mark.parametrize("uses", ["self.stop = {1}", "self.stop += [i]", "del self.stop", "other.stop = 1"])
def test_an_attribute_that_is_assigned_again_is_left(uses):
    assert shown(rows("list(words)", uses)) == []


def test_the_list_of_another_class_is_not_meant():
    other = "class B:\n    def __getitem__(self, i):\n        return i in self.stop\n"
    assert [line for line, *_ in shown(rows("list(words)", more=other))] == [6]


def test_a_list_in_the_body_of_a_class():
    text = "class A:\n    stop = list(WORDS)\n    def __getitem__(this, i):\n        return i in this.stop\n"
    assert shown(text) == [(4, "this.stop", 2, "list(WORDS)")]


def test_lines_with_a_credential_are_not_stored():
    assert shown(rows("list(words)", more="").replace("words):", "words, api_key='abc'):"))[0][3] is None


def test_those_at_the_lines_that_a_capture_stores(tmp_path):
    an_hour_old(tmp_path / "data.py", rows("list(words)"))
    lines = SourceLines(tmp_path)
    stored = [lines.stored([("data.py", line), ("data.py", line)])["files"]["data.py"]["lookups"] for line in (6, 3)]
    assert [[one["name"] for one in each] for each in stored] == [["self.stop"], []]


REPLAY = """from collections import deque
class Replay:
    def __init__(self, capacity):
        self.items = {built}
    def sample(self, rows):
        return {read}
"""


@pytest.mark.parametrize(
    ("built", "read", "is_found"),
    [
        ("deque(maxlen=capacity)", "[self.items[row] for row in rows]", True),
        ("collections.deque((), 500_000)", "self.items[-rows]", True),
        ("deque(maxlen=capacity)", "self.items[-1]", False),  # an end
        ("deque(maxlen=8)", "[self.items[row] for row in rows]", False),
        ("list(capacity)", "[self.items[row] for row in rows]", False),
    ],
)
def test_a_deque_that_is_indexed(built, read, is_found):
    records = found(REPLAY.format(built=built, read=read))
    expected = [(6, "self.items", 4, True, None)] if is_found else []
    assert [tuple(each[key] for key in ("line", "name", "built", "indexed", "made")) for each in records] == expected


def test_a_list_that_is_indexed_besides_becomes_no_set():
    assert shown(rows("list(words)", "first = self.stop[i]")) == [(6, "self.stop", 3, None)]
