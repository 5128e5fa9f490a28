"""Loops: how many calls a line makes, and how many of them follow from each other."""

from diagnose.dataflow.loops import loops
from tests.dataflow.table import Table


def test_calls_on_the_same_input_are_independent():
    t = Table()
    x = t.value(4, 4)
    for i in range(8):
        t.op("addmm", x, t.value(4, 4, role="parameter"), line=7, at=(30,), module=f"experts.{i}")
    (found,) = loops(t.graph())
    assert (found.kind, found.line.line, found.num_calls, found.longest_chain) == ("independent", 30, 8, 1)
    assert (found.same_shapes, found.same_weights) == (True, False)


def test_calls_that_each_read_the_last_one_are_a_recurrence():
    t = Table()
    weight, state = t.value(4, 4, role="parameter"), t.value(4, 4)
    for _ in range(8):
        state = t.op("tanh", t.op("mm", state, weight, line=7, ns=50), line=7)
    (found,) = loops(t.graph())
    assert (found.kind, found.num_calls, found.longest_chain, found.same_weights) == ("recurrent", 8, 8, True)


def test_layers_with_weights_of_their_own_are_neither():
    t = Table()
    x = t.value(4, 4)
    for i in range(8):
        x = t.op("mm", x, t.value(4, 4, role="parameter"), line=7, module=f"layers.{i}")
    assert loops(t.graph()) == ()


def test_passes_with_a_backward_in_between_accumulate_gradients():
    t = Table()
    weight = t.value(4, 4, role="parameter")
    for _ in range(8):
        out = t.op("mm", t.value(4, 4), weight, line=7)
        t.op("mm", out, line=7, phase="backward")
    assert loops(t.graph()) == ()


def test_three_calls_are_no_loop():
    t = Table()
    for _ in range(3):
        t.op("mm", t.value(4, 4), line=7)
    assert loops(t.graph()) == ()


def test_what_calls_cost_at_least_is_that_of_the_cheapest_operators():
    t = Table()
    for _ in range(10):
        t.op("mm", t.value(4, 4), line=7, ns=10)
    t.op("mm", t.value(4, 4), line=8, ns=100)
    (found,) = loops(t.graph())
    assert (found.work.share, found.overhead_share) == (0.5, 9 * 10 / 200)


def test_a_body_of_several_lines_is_one_loop_and_what_it_calls_belongs_to_it():
    t = Table()
    t.op("zeros", shape=(4,), line=80, at=(150,))
    for _ in range(8):
        for _ in range(2):
            t.op("minimum", t.value(4), line=54, at=(81, 150))
        t.op("maximum", t.value(4), line=55, at=(81, 150))
        t.op("where.self", t.value(4), line=82, at=(150,))
    t.op("stack", shape=(8, 4), line=84, at=(150,), ns=1)
    (found,) = loops(t.graph())
    assert (found.line.line, found.num_calls, len(found.work.operators)) == (81, 8, 32)


def test_layers_whose_weights_are_each_made_at_the_same_line_are_no_loop():
    t = Table()
    x = t.value(4, 4)
    for i in range(8):
        for _ in range(2):
            weight = t.op("mv", t.value(4, 4, role="parameter"), line=7, module=f"layers.{i}", ns=90)
        t.op("vdot", weight, line=7, module=f"layers.{i}")
        t.op("dot", weight, line=7, module=f"layers.{i}")
        x = t.op("convolution", x, weight, line=7, module=f"layers.{i}")
    assert loops(t.graph()) == ()


def test_a_sum_of_the_results_is_no_dependence():
    t = Table()
    sim, total = t.value(8, 8), t.value(1)
    for _ in range(8):
        row = t.op("logsumexp", sim, shape=(1,), line=7, ns=90)
        total = t.op("add.Tensor", total, row, line=8)
    (found,) = loops(t.graph())
    assert (found.kind, found.num_calls, found.longest_chain, len(found.work.operators)) == ("independent", 8, 1, 16)


def test_a_product_that_the_loop_reads_elsewhere_is_a_recurrence():
    t = Table()
    alive, colour = t.value(4), t.value(4)
    for _ in range(8):
        colour = t.op("add.Tensor", colour, t.op("mul.Tensor", alive, t.value(4), line=7), line=7)
        alive = t.op("mul.Tensor", alive, t.value(4), line=8)
    (found,) = loops(t.graph())
    assert (found.kind, found.line.line, found.longest_chain) == ("recurrent", 7, 8)


def test_heads_in_each_of_several_layers_are_a_loop_at_the_comprehension():
    t = Table()
    x = t.value(4, 4)
    for layer in range(4):
        x = t.op("native_layer_norm", x, line=50, at=(68,), module=f"blocks.{layer}")
        heads = [
            t.op("mm", x, t.value(4, 4, role="parameter"), line=15, at=(25, 50, 68), module=f"blocks.{layer}.{head}")
            for head in range(8)
        ]
        joined = t.op("cat", *heads, line=25, at=(50, 68), ns=40)
        x = t.op("mm", joined, t.value(4, 4, role="parameter"), line=25, at=(50, 68), ns=40, module=f"blocks.{layer}")
    (found,) = loops(t.graph())
    assert (found.kind, found.line.line, found.num_calls, len(found.work.operators)) == ("independent", 25, 32, 32)


def test_views_of_a_loop_belong_to_it():
    t = Table()
    for _ in range(8):
        row = t.op("select.int", t.value(8, 4), line=7, is_view=True, writes=())
        t.op("exp", row, line=7)
    (found,) = loops(t.graph())
    assert len(found.work.operators) == 16


def test_an_average_that_a_library_updates_one_by_one_is_a_loop_over_the_model():
    t = Table()
    count = t.value(1, role="buffer")
    for _ in range(8):
        weight, average = t.value(4, 4, role="parameter"), t.value(4, 4, role="buffer")
        t.op("_to_copy", count, line=95, phase="optimizer")
        scaled = t.op("mul.Tensor", average, line=95, phase="optimizer")
        t.op("lerp", scaled, weight, line=95, phase="optimizer")
    t.op("add_.Tensor", into=count, line=95, phase="optimizer")
    (found,) = loops(t.graph())
    assert (found.kind, found.line.line, found.num_calls, found.longest_chain) == ("independent", 95, 8, 1)
    assert (found.of_model, len(found.work.operators)) == (True, 24)


def test_experts_with_weights_of_their_own_are_no_loop_over_the_model():
    t = Table()
    x = t.value(4, 4)
    for i in range(8):
        t.op("native_layer_norm", x, t.value(4, role="parameter"), line=7, module=f"experts.{i}")
    (found,) = loops(t.graph())
    assert not found.of_model


def test_the_lines_that_all_of_a_loop_is_called_through_are_known():
    t = Table()
    for _ in range(8):
        each = t.op("mul.Tensor", t.value(4), line=19, at=(16, 20, 95))
        t.op("copy_", each, into=t.value(4), line=16, at=(20, 95))
    (found,) = loops(t.graph())
    assert (found.line.line, [frame.line for frame in found.called]) == (95, [20, 16])


def test_two_loops_of_one_function_that_run_as_often_are_two():
    t = Table()
    for line, inner in ((107, 30), (109, 60)):
        for _ in range(8):
            t.op("mul_", into=t.value(4), line=inner, at=(line,), phase="other")
            t.op("sqrt", t.value(4), line=inner + 1, at=(line,), phase="other")
    assert sorted((one.line.line, one.num_calls) for one in loops(t.graph())) == [(107, 8), (109, 8)]
