"""Statements of a script are rewritten where they stand: what differs is replaced, everything else stays."""

import pytest

from diagnose.changes.edits.statement_edits import RewriteError, rewritten
from diagnose.model.own_source import EditedStatement

SCRIPT = '''\
"""A script."""
import torch   # once
from torch import nn

WIDTH = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = ["a", "b"]   # both

    @torch.no_grad()
    def score(self, x, name):
        return (name in self.names) * f(x)


def outer(model, loader):
    def inner(x):
        y = model(x)  # slow

        return y + 1

    for i, batch in enumerate(loader):
        print(f"step {i}: {model(batch)}")
        loss = criterion(
            model(batch),   # again: "ü" and model(batch)
            batch
            * 2,
        ).mean()
        for part in batch:
            loss = loss + model(batch)[0] * part
    while WIDTH:
        break
    return inner
'''


NUMBERS = {line.strip(): number for number, line in enumerate(SCRIPT.split("\n"), 1)}


def edit(line, before, after):
    """Return the edit of the statement that begins with a text."""
    return EditedStatement(
        next(NUMBERS[each] for each in NUMBERS if each.startswith(line)) if line else 0, before, after
    )


def differing(*edits):
    """Return the lines that the edits remove and add, as a diff writes them."""
    before, after = SCRIPT.split("\n"), rewritten(SCRIPT, [edit(*each) for each in edits]).split("\n")
    kept = [line for line in before if line in after]
    assert [line for line in after if line in before] == kept, "what stays, stays in order"
    return [f"-{line}" for line in before if line not in after] + [f"+{line}" for line in after if line not in before]


def test_of_a_statement_on_several_lines_the_expression_is_replaced_that_differs():
    before = "loss = criterion(model(batch), batch * 2).mean()"
    assert differing(
        ("loss = criterion(", before, "seen = model(batch)\nloss = criterion(seen, batch * 2).mean()"),
        ("loss = loss", "loss = loss + model(batch)[0] * part", "loss = loss + seen[0] * part"),
    ) == [
        '-            model(batch),   # again: "ü" and model(batch)',
        "-            loss = loss + model(batch)[0] * part",
        "+        seen = model(batch)",
        '+            seen,   # again: "ü" and model(batch)',
        "+            loss = loss + seen[0] * part",
    ]


def test_an_operator_that_takes_the_place_of_a_name_keeps_its_operands():
    assert differing(
        ("loss = loss", "loss = loss + model(batch)[0] * part", "loss = loss + model(batch)[0] * (part + 1)")
    ) == [
        "-            loss = loss + model(batch)[0] * part",
        "+            loss = loss + model(batch)[0] * (part + 1)",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(x).mean()", "f(x + 1).mean()"),
        ("f(x).mean()", "f(x if x is not None else y).mean()"),
        ("f(x)[i]", "f(x)[i + 1]"),
        ("f(x, k=y)", "f(-x, k=y + 1)"),
        ("x.mean()", "(x + 1).mean()"),
        ("x[i]", "(x + 1)[i]"),
        ("x * y", "x * (y + 1)"),
    ],
)
def test_parentheses_stand_only_where_they_are_needed(before, after):
    source = "x = y = i = f = None\nz = {}\n"
    made = rewritten(source.format(before), [EditedStatement(2, f"z = {before}", f"z = {after}")])
    assert made == source.format(after)


def test_a_line_below_a_statement_and_imports_at_the_top():
    assert differing(
        (None, "", "import heapq"),
        (None, "", "import torch"),
        ("self.names", "", "self.known = set(self.names)"),
        ("return (name", "return (name in self.names) * f(x)", "return (name in self.known) * f(x)"),
    ) == [
        "-        return (name in self.names) * f(x)",
        "+import heapq",
        "+        self.known = set(self.names)",
        "+        return (name in self.known) * f(x)",
    ]


def test_a_loop_and_a_decorated_function_get_lines_before_and_below_them():
    assert differing(("def score", "def score(self, x, name):", "limit = 3\ndef score(self, x, name, limit=limit):"))[
        -2:
    ] == [
        "+    limit = 3",
        "+    def score(self, x, name, limit=limit):",
    ]
    assert differing(
        ("for part", "for part in batch:", "pieces = []\nfor part in batch:"),
        ("loss = loss", "loss = loss + model(batch)[0] * part", "pieces.append(part)"),
        ("for part", "", "loss = sum(pieces)"),
    ) == [
        "-            loss = loss + model(batch)[0] * part",
        "+        pieces = []",
        "+            pieces.append(part)",
        "+        loss = sum(pieces)",
    ]


def test_a_statement_or_a_loop_is_put_into_a_block():
    assert differing(("y = model", "y = model(x)", "with torch.no_grad():\n    y = model(x)")) == [
        "-        y = model(x)  # slow",
        "+        with torch.no_grad():",
        "+            y = model(x)  # slow",
    ]
    loop = "for part in batch:"
    assert differing(("for part", loop, f"with torch.no_grad():\n    {loop}")) == [
        "-        for part in batch:",
        "-            loss = loss + model(batch)[0] * part",
        "+        with torch.no_grad():",
        "+            for part in batch:",
        "+                loss = loss + model(batch)[0] * part",
    ]


def test_a_statement_is_left_out():
    assert differing(("y = model", "y = model(x)", "")) == ["-        y = model(x)  # slow"]
    assert differing(("break", "break", "")) == ["-        break", "+        pass"]


def test_the_last_line_of_a_file_need_not_end():
    below = EditedStatement(1, "", "y = 2")
    assert rewritten("x = 1", [below]) == "x = 1\ny = 2"
    assert rewritten("x = 1\n", [below]) == "x = 1\ny = 2\n"


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ([("y = model", "y = model(z)", "y = x")], "line 20 of the script reads otherwise"),
        ([("return y", "y = x", "y = 1")], "line 22 of the script reads otherwise"),
        ([("y = model", "y = model(x)", "y = np.stack(x)")], "the script has no np"),
        ([("y = model", "y = model(x)", "loss = x\ny = model(x)")], "the script has a loss already"),
        (
            [
                ("self.names", "", "self.weight = 3"),
                ("return (name", "return (name in self.names) * f(x)", "return self.score"),
            ],
            "",
        ),
        ([("self.names", "", "self.score = 3")], "the script has a score already"),
        ([("loss = loss", "loss = loss + model(batch)[0] * part", "return")], ""),
        ([("y = model", "y = model(x)", "y = model(")], "the script would be no Python"),
        (
            [("break", "break", "kept = 3"), ("return inner", "return inner", "return kept")],
            "line 35 may run without line 34",
        ),
        ([(None, "", "kept = WIDTH")], "WIDTH is not imported at the top of the script"),
        ([("for part", "for part in batch:", "pieces = 3")], "line 31 begins a block"),
    ],
)
def test_what_does_not_fit_is_not_written(edits, why):
    edits = [edit(*each) for each in edits]
    if not why:
        rewritten(SCRIPT, edits)
        return
    with pytest.raises(RewriteError, match=f"^{why}"):
        rewritten(SCRIPT, edits)


def test_what_python_cannot_read_is_left():
    for source in ("x = (", "x = 1\n"):
        with pytest.raises(RewriteError):
            rewritten(source, [EditedStatement(2, "x = 1", "x = 2")])
