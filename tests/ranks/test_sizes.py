"""Sizes that differ from rank to rank: the line from which on they do, and the draw that they come from."""

import pytest

from diagnose.model.assignments import StoredSource
from diagnose.model.capture import Capture
from diagnose.model.dataflow import Frame
from diagnose.model.events import Trace
from diagnose.ranks.profile import MadeLine, RankProfile
from diagnose.ranks.sizes import made_lines, make_as_much, uneven_sizes
from tests.dataflow.table import FILE, Table


def rank(number, *steps):
    """Return a rank whose steps make so many elements at lines; a third number is the line of a draw."""
    rows = [
        MadeLine(step, FILE, line, "main", f"line {line}", 1, made, FILE if draw else "", draw, "n = draw()")
        for step, lines in enumerate(steps)
        for line, made, draw in ((*each, 0)[:3] for each in lines)
    ]
    return RankProfile(rank=number, made=tuple(rows))


def test_the_first_line_that_makes_more_is_named_with_its_draw():
    small, large = [(5, 100), (7, 200, 3), (8, 400)], [(5, 100), (7, 600, 3), (8, 1200)]
    found = uneven_sizes([rank(0, small, large), rank(1, large, small)], 0.5)
    assert [(w.line, w.code) for w in found.where] == [(3, "n = draw()"), (7, "line 7")]
    assert found.is_drawn
    assert found.share == pytest.approx((1900 - 700) / 1300)  # the larger less the other, of the mean


def test_without_a_draw_the_line_itself_is_where_batches_differ():
    found = uneven_sizes([rank(0, [(5, 100)]), rank(1, [(5, 300)])], 0.5)
    assert ([w.line for w in found.where], found.is_drawn) == ([5], False)


@pytest.mark.parametrize("time_share", [0.5, 3.0])
def test_equal_sizes_and_small_differences_explain_nothing(time_share):
    larger = [(5, 100)] if time_share == 0.5 else [(5, 200)]
    assert uneven_sizes([rank(0, [(5, 100)]), rank(1, larger)], time_share) is None


def test_a_branch_that_one_rank_takes_comes_after_lines_that_all_run():
    found = uneven_sizes([rank(0, [(4, 100), (5, 100), (6, 500)]), rank(1, [(5, 100), (6, 100)])], 0.5)
    assert [w.line for w in found.where] == [6]
    found = uneven_sizes([rank(0, [(4, 100), (5, 100)]), rank(1, [(5, 100)])], 0.5)
    assert [w.line for w in found.where] == [4]  # unless nothing else differs


@pytest.mark.parametrize(
    ("draw", "line"),
    [
        ("n = self.rng.choice(self.sizes)", 2),
        ("n = int(torch.randint(32, 257, (1,)))", 2),
        ("n = torch.randint(8, (1,)).item()", 2),
        ("n = int(lengths.integers(32, 257)) // 8 * 8", 2),
        ("n = torch.randint(9, (4,))", 0),  # a tensor of one size
        ("n = rng.integers(0, 9, 4)", 0),
        ("n = len(x)", 0),
    ],
)
def test_what_a_line_reads_is_followed_to_the_draw_of_a_number(draw, line):
    text = f"def crop(x):\n    {draw}\n    half = n // 2\n    return x[:, :half].clone()"
    t = Table()
    x = t.value(4, 64)
    t.op("clone", x, shape=(4, 16), stack=(Frame(FILE, 4, "crop"), Frame(FILE, 20, "main")))
    capture = Capture(Trace.__new__(Trace), dataflow=t.graph().flow, sources={FILE: StoredSource(((1, text),))})
    (made,) = made_lines(capture)
    assert (made.line, made.made, made.draw_line) == (4, 64, line)


def test_the_draw_may_stand_where_the_function_is_called():
    loop = "for step in range(9):\n    horizon = random.randint(1, 8)\n    loss = model(u, horizon)"
    inner = "def forward(self, u, n):\n    for _ in range(n):\n        u = self.a(u)\n    return u"
    t = Table()
    t.op("mm", t.value(4, 4), stack=(Frame(FILE, 13, "forward"), Frame(FILE, 32, "<module>")))
    sources = {FILE: StoredSource(((11, inner), (30, loop)))}
    (made,) = made_lines(Capture(Trace.__new__(Trace), dataflow=t.graph().flow, sources=sources))
    assert (made.draw_line, made.draw_code) == (31, "horizon = random.randint(1, 8)")


def test_ranks_that_make_as_much_have_equal_work():
    ranks = [rank(0, [(5, 100)]), rank(1, [(5, 100)])]
    assert make_as_much(ranks)
    assert not make_as_much([*ranks, rank(2, [(5, 101)])])
    assert not make_as_much([rank(0), rank(1)])  # without a data flow nothing is known
