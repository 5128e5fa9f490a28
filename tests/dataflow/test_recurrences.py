"""What the turns of a loop hand on, and which lines of its body do not need the turn before."""

import pytest

from diagnose.dataflow.loops import loops
from tests.dataflow.table import Table, lines

N, WIDTH = 6, 8  # turns, and the state's width


class Cells(Table):
    """Steps of recurrent cells on a batch of two: an input of each turn, and weights that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = [self.value(2, WIDTH) for _ in range(N)]
        self.weight = self.value(WIDTH, WIDTH, role="parameter")
        self.line, self.at = 7, (20,)

    def of(self, name: str, *reads, width: int = WIDTH, line: int = 0, at: tuple[int, ...] = ()):
        """Add an operator of the cell; ``at`` are further lines that it is called through."""
        return self.op(name, *reads, shape=(2, width), line=line or self.line, at=(*at, *self.at))

    def gru(self, x, state, reset_first: bool = False):
        """Return the next state: as torch computes it, or with the state reset before the product."""
        gates = self.of("add.Tensor", x, self.of("mm", state, self.weight, width=2 * WIDTH), width=2 * WIDTH)
        reset, update = self.of("sigmoid", gates), self.of("sigmoid", gates)
        if reset_first:
            new = self.of("mm", self.of("mul.Tensor", reset, state), self.weight)
        else:
            new = self.of("mul.Tensor", reset, self.of("mm", state, self.weight))
        new = self.of("tanh", self.of("add.Tensor", x, new))
        return self.of("lerp.Tensor", new, state, update)

    def lstm(self, x, state, cell):
        """Return the next state and cell."""
        gates = self.of("add.Tensor", x, self.of("mm", state, self.weight, width=4 * WIDTH), width=4 * WIDTH)
        forget, put, out = (self.of("sigmoid", gates) for _ in range(3))
        kept, new = self.of("mul.Tensor", forget, cell), self.of("mul.Tensor", put, self.of("tanh", gates))
        cell = self.of("add.Tensor", kept, new)
        return self.of("mul.Tensor", out, self.of("tanh", cell)), cell


def test_the_cell_of_an_lstm_is_one():
    t = Cells()
    state = cell = t.value(2, WIDTH)
    for x in t.inputs:
        state, cell = t.lstm(x, state, cell)
    (found,) = loops(t.graph())
    assert (found.kind, found.form) == ("recurrent", "LSTM")


def test_the_cell_of_a_gru_is_one_if_it_resets_behind_the_product():
    forms = []
    for reset_first in (False, True):
        t = Cells()
        state = t.value(2, WIDTH)
        for x in t.inputs:
            state = t.gru(x, state, reset_first)
        forms.append([one.form for one in loops(t.graph())])
    assert forms == [["GRU"], []]


def test_the_two_layers_of_a_stack_that_one_loop_runs_are_one():
    t = Cells()
    first = second = t.value(2, WIDTH)
    for x in t.inputs:
        t.line = 7
        first = t.gru(x, first)
        t.line = 9
        second = t.gru(t.of("mm", first, t.weight), second)
    assert [one.form for one in loops(t.graph())] == ["GRU"]


@pytest.mark.parametrize("what", ["input feeding", "mask", "norm", "residual", "other weights", "decay"])
def test_more_than_a_cell_in_the_chain_is_none(what):
    t = Cells()
    state = fed = t.value(2, WIDTH)
    for x in t.inputs:
        if what == "other weights":
            t.weight = t.value(WIDTH, WIDTH)
        state = t.gru(t.of("add.Tensor", x, fed) if what == "input feeding" else x, state)
        if what == "input feeding":
            fed = t.of("_softmax", t.of("mm", state, t.weight))
        elif what in ("mask", "decay"):
            state = t.of("mul.Tensor", state, *([t.value(2, WIDTH)] if what == "mask" else []))
        elif what == "norm":
            state = t.of("native_layer_norm", state)
        elif what == "residual":
            state = t.of("add.Tensor", state, x)
    assert loops(t.graph()) == ()


def test_a_fused_cell_is_one():
    t = Cells()
    state = t.value(2, WIDTH)
    for x in t.inputs:
        state = t.of("_thnn_fused_gru_cell", x, t.of("mm", state, t.weight, width=3 * WIDTH), state)
    assert [one.form for one in loops(t.graph())] == ["GRU"]


def test_a_state_that_is_scaled_and_added_to_is_a_scan():
    t = Cells()
    state, decay = t.value(2, WIDTH), t.value(WIDTH)
    for x in t.inputs:
        state = t.of("add.Tensor", t.of("mul.Tensor", state, decay), x)
    assert [one.form for one in loops(t.graph())] == ["scan"]


def test_a_state_that_is_multiplied_by_itself_is_none():
    t = Cells()
    state = t.value(2, WIDTH)
    for x in t.inputs:
        state = t.of("add.Tensor", t.of("mul.Tensor", state, state), x)
    assert loops(t.graph()) == ()


def test_scans_of_several_layers_at_one_line_are_each_one():
    t = Cells()
    x, decay = t.value(2, WIDTH), t.value(WIDTH)
    for layer in range(2):
        state, every = t.value(2, WIDTH), []
        for _ in range(N):
            state = t.op("add.Tensor", t.op("mul.Tensor", state, decay, line=7, at=(32, 60)), x, line=7, at=(32, 60))
            every.append(state)
        x = t.op("native_layer_norm", t.op("stack", *every, line=32, at=(60,)), line=40, module=f"norms.{layer}")
    (found,) = loops(t.graph())
    assert (found.form, found.num_calls) == ("scan", 2 * N)


def sequential(t, x, state):
    """Return the next state of a recurrence that no operator of torch computes."""
    return t.of("native_layer_norm", t.of("add.Tensor", t.of("mm", state, t.weight), x))


@pytest.mark.parametrize(("products", "line", "moves"), [((2, 1), 6, "before"), ((1, 2), 8, "after")])
def test_lines_that_do_not_need_the_turn_before_can_be_moved(products, line, moves):
    t = Cells()
    state = t.value(2, WIDTH)
    for x in t.inputs:
        drive = x
        for _ in range(products[0]):
            drive = t.of("mm", drive, t.weight, line=6)
        state = out = sequential(t, drive, state)
        for _ in range(products[1]):
            out = t.of("mm", out, t.weight, line=8)
    (found,) = loops(t.graph())
    assert (found.kind, found.line.line, found.moves) == ("separable", line, moves)
    assert (lines(found.work), len(found.work.operators)) == ([6, 8], 3 * N)


def test_a_line_with_a_part_that_needs_it_stays():
    t = Cells()
    state = t.value(2, WIDTH)
    for x in t.inputs:
        state = sequential(t, t.of("mm", x, t.weight), state)
    assert loops(t.graph()) == ()


def test_what_python_reads_of_the_state_may_decide_on_the_next_turn():
    t = Cells()
    state = t.value(2, WIDTH)
    for x in t.inputs:
        state = sequential(t, t.of("mm", x, t.weight, line=6), state)
        t.op("_local_scalar_dense", state, line=8, at=t.at, writes=(), reads_host=True)
    assert loops(t.graph()) == ()


def test_of_a_function_that_two_lines_call_the_line_that_can_be_moved_is_named():
    t = Cells()
    state = t.value(2, WIDTH)
    for x in t.inputs:
        state = t.of("native_layer_norm", t.of("mm", t.of("add.Tensor", state, x, line=20), t.weight, line=5, at=(20,)))
        t.of("mm", t.of("mm", state, t.weight, line=5, at=(21,)), t.weight, line=5, at=(21,))
    (found,) = loops(t.graph())
    assert (found.kind, found.line.line, found.moves) == ("separable", 21, "after")
