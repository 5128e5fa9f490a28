"""The same operator on the same contents: in one step, and in both steps from values that are known to be the same."""

import pytest

from diagnose.dataflow.repeats import computed_again, constant_work
from diagnose.model.dataflow import Frame, Use
from tests.dataflow.table import Table, lines


def test_the_second_of_two_equal_products_is_computed_again():
    t = Table()
    x, weight = t.value(4, 4), t.value(4, 4, role="parameter")
    t.op("mm", x, weight, line=2, ns=60, content="y")
    t.op("mm", x, weight, line=3, ns=40, content="y")
    (found,) = computed_again(t.graph())
    assert (found.kind, found.work.share, found.is_certain) == ("repeated", 0.4, True)
    assert (found.value_line.line, found.use_line.line) == (2, 3)


def test_the_lines_of_two_calls_are_named_where_their_stacks_part():
    t = Table()
    x = t.value(4, content="x")
    t.op("exp", x, line=5, at=(20,), content="y")
    t.op("exp", x, line=5, at=(21,), content="y")
    (found,) = computed_again(t.graph())
    assert (found.value_line.line, found.use_line.line, lines(found.work)) == (20, 21, [5])


def test_other_attributes_views_contents_or_draws_are_not_the_same():
    t = Table()
    x, y = t.value(4, 4, content="x"), t.value(4, 4, content="y")
    t.op("sum", x, attributes="0", content="a")
    t.op("sum", x, attributes="1", content="a")
    t.op("sum", y, attributes="0", content="a")
    turned = type(x)(x.value, x.shape, (1, 4), 0, x.dtype)
    t.op("sum", turned, attributes="0", content="a")
    t.op("rand_like", x, content="a", draws=True)
    t.op("rand_like", x, content="a", draws=True)
    assert computed_again(t.graph()) == ()


def test_a_forward_that_the_backward_pass_runs_again_has_its_own_kind():
    t = Table()
    x = t.value(4, content="x")
    t.op("exp", x, content="y")
    t.op("exp", x, content="y", phase="backward")
    assert [found.kind for found in computed_again(t.graph())] == ["recomputed"]


def test_state_that_is_set_to_the_same_is_not_computed_again():
    t = Table()
    for _ in range(2):
        t.op("add_.Tensor", into=t.value(4, role="optimizer state", content="0"), content="1")
    assert computed_again(t.graph()) == ()


def test_a_result_that_is_changed_in_place_has_to_be_made_again():
    t = Table()
    first, second = (t.op("zeros", shape=(4,), line=2, content="0") for _ in range(2))
    t.op("add_.Tensor", t.value(4), into=first)
    t.op("add_.Tensor", t.value(4), into=second)
    assert computed_again(t.graph()) == ()


def test_a_chain_of_equal_changes_in_place_is():
    t = Table()
    x = t.value(4, content="x")
    for line in (2, 3):
        t.op("mul_.Scalar", into=t.op("exp", x, line=line, content="y"), line=line, content="z")
    (found,) = computed_again(t.graph())
    assert len(found.work.operators) == 2


def test_equal_samples_of_a_large_value_are_not_certain_but_the_same_computation_is():
    t = Table()
    sampled = {"is_exact": False}
    x, other = t.value(4, content="x", **sampled), t.value(4, content="x", **sampled)
    t.op("exp", x, content="y", facts=sampled)
    t.op("exp", other, line=2, content="y", facts=sampled)
    t.op("log", x, content="z", facts=sampled)
    t.op("log", x, line=3, content="z", facts=sampled)
    assert {found.use_line.line: found.is_certain for found in computed_again(t.graph())} == {2: False, 3: True}


def test_equal_samples_of_nearly_nothing_but_zeros_say_nothing():
    t = Table()
    for _ in range(2):
        t.op("_to_copy", t.value(99, 99, content="x", is_exact=False, zeros=0.99), content="y")
    assert computed_again(t.graph()) == ()


def test_a_function_that_two_others_call_is_named_where_those_call_it():
    t = Table()
    x = t.value(4, content="x")
    t.op("exp", x, line=5, at=(13, 20), content="y")
    t.op("exp", x, line=5, at=(17, 21), content="y")
    (found,) = computed_again(t.graph())
    assert (found.value_line.line, found.use_line.line) == (13, 17)


def test_calls_of_a_loop_are_named_where_the_loop_makes_them():
    t = Table()
    x = t.value(4, content="x")
    for _ in range(2):
        t.op("exp", x, line=5, at=(13, 20), content="y")
        t.op("relu", t.value(4), line=14, at=(20,))
    (found,) = computed_again(t.graph())
    assert (found.value_line.line, found.use_line.line) == (13, 13)


def test_the_backward_pass_of_both_counts_as_well():
    def share(first_has_one: bool) -> float:
        t = Table()
        x = t.value(4, content="x")
        t.op("exp", x, line=2, ns=10, content="y")
        t.op("exp", x, line=3, ns=10, content="y")
        t.op("mul", t.value(4), ns=20, phase="backward", forward=1)
        t.op("mul", t.value(4), ns=60, phase="backward", forward=0 if first_has_one else -1)
        (found,) = computed_again(t.graph())
        return found.work.share

    assert share(first_has_one=True) == 0.3
    assert share(first_has_one=False) == 0.1


def test_whether_a_backward_pass_goes_through_it_is_stated():
    for differentiated in (False, True):
        t = Table()
        x = t.value(4, content="x")
        for _ in range(2):
            t.op("exp", x, content="y")
        t.op("mul", x, phase="backward", forward=1 if differentiated else -1)
        (found,) = computed_again(t.graph())
        assert found.with_gradients is differentiated


def test_a_mask_that_each_step_makes_is_constant():
    t = Table()
    for t.step in range(2):
        ones = t.op("ones", shape=(8, 8), line=41, ns=20, content="ones", facts={"kind": "constant"})
        mask = t.op("tril", ones, line=42, ns=30, content="mask", facts={"kind": "triangular"})
        t.op("masked_fill.Scalar", t.value(8, 8), mask, line=50, ns=50)
    (found,) = constant_work(t.graph())
    assert (found.kind, found.shape, found.work.share, found.is_certain) == ("triangular", (8, 8), 0.5, True)
    assert (found.value_line.line, found.use_line.line, lines(found.work)) == (42, 50, [41, 42])


def test_what_depends_on_a_batch_or_a_weight_is_not():
    t = Table()
    weight = t.value(4, 4, role="parameter")
    for t.step in range(2):
        t.op("mm", t.value(4, 4), t.value(4, 4, role="constant"), line=2)
        t.op("mm", weight, line=3)
        weight = t.update(weight)
    assert constant_work(t.graph()) == ()


def test_a_padding_mask_that_happens_to_be_empty_in_both_steps_is_not():
    t = Table()
    for t.step in range(2):
        mask = t.op("eq.Scalar", t.value(4, 4), line=2, content="no padding", facts={"kind": "constant"})
        t.op("mul.Tensor", mask, line=3, content="still none")
    assert constant_work(t.graph()) == ()


def test_what_is_made_of_the_same_array_in_each_step_is_but_not_certainly():
    t = Table()
    for t.step in range(2):
        t.op("mul.Tensor", t.value(64, content="window"), line=2, content="scaled")
    (found,) = constant_work(t.graph())
    assert not found.is_certain


def test_a_batch_of_ones_may_be_luck():
    t = Table()
    for t.step in range(2):
        t.op("mul.Tensor", t.value(64, content="ones", kind="constant"), line=2, content="scaled")
    assert constant_work(t.graph()) == ()


def test_ones_that_python_made_in_both_steps_may_be_luck():
    t = Table()
    for t.step in range(2):
        mask = t.op("lift_fresh", shape=(64,), line=2, content="ones", facts={"kind": "constant"})
        t.op("mul.Tensor", mask, line=2, content="scaled")
    assert constant_work(t.graph()) == ()


def test_zeros_that_the_step_writes_into_have_to_be_made():
    t = Table()
    for t.step in range(2):
        zeros = t.op("zeros", shape=(4,), line=2, content="0", facts={"kind": "constant"})
        t.op("index_put_", t.value(4), into=zeros, line=3)
    assert constant_work(t.graph()) == ()


def test_an_update_of_state_is_no_constant_work():
    t = Table()
    state = t.value(4, role="buffer", content="0")
    for t.step in range(2):
        state = t.op("zero_", into=state, content="0", line=2)
    assert constant_work(t.graph()) == ()


def test_what_no_sample_tells_apart_is_constant_if_it_is_made_alike():
    t = Table()
    adjacency, hidden = t.value(99, 99, role="constant"), {"is_exact": False, "zeros": 0.99, "kind": "one-hot"}
    for t.step in range(2):
        loops = t.op("eye", shape=(99, 99), attributes="n=99", line=2, content="eye", facts=hidden)
        t.op("add.Tensor", adjacency, loops, line=2, content="looped")
        t.op("eye", shape=(99, 99), attributes=f"n={t.step}", line=3, content="eye", facts=hidden)
    (found,) = constant_work(t.graph())
    assert len(found.work.operators) == 2


def passes(*, between: str = "", again: bool = True) -> Table:
    """Return an encoder of line 2 whose gradients two losses add to, each with its head and its backward call."""
    t = Table()
    two_passes(t, between=between, again=again)
    return t


def two_passes(t: Table, *, between: str = "", again: bool = True) -> Use:
    """Add that to a step, and return the parameter at its end."""
    begin = len(t.operators)
    weight = t.value(4, 4, role="parameter")
    x = t.op("mm", t.value(4, 4), weight, line=2, sequence_nr=1)
    gradient = t.value(4, 4, role="gradient") if between == "cleared" else None
    for number, line in ((2, 5), (4, 7)):
        encoder = begin
        if number == 4 and not again:
            encoder = len(t.operators)
            x = t.op("mm", t.value(4, 4), weight, line=2, sequence_nr=3)
        loss = t.op("sum", x, shape=(), line=line, sequence_nr=number)
        head = len(t.operators) - 1
        start = t.op("ones_like", loss, shape=(), line=line + 1, phase="backward")
        up = t.op("expand_copy", start, shape=(4, 4), phase="backward", line=line, forward=head, sequence_nr=number)
        role = {"role": "gradient"} if gradient is None else {}
        back = {"phase": "backward", "line": 2, "forward": encoder, "sequence_nr": number - 1 if encoder > begin else 1}
        made = t.op("mm", t.value(4, 4), up, facts=role, **back)
        added = made if gradient is None else t.op("add_.Tensor", made, into=gradient, phase="backward", line=line + 1)
        gradient = added
        if number == 4:
            break
        if between == "read":
            t.op("norm", made, shape=(), line=6)
        elif between == "cleared":
            gradient = t.op("zero_", into=added, line=6)
        elif between == "set to none":
            t.values[made.value] = t.values[made.value]._replace(dies=len(t.operators) - 1)
            gradient = None
        elif between == "optimizer":
            t.update(t.value(4, role="parameter"), t.value(4))
    return t.update(weight, gradient)


def test_two_backward_passes_whose_gradients_are_added_up_are_one():
    t = passes()
    (found,) = computed_again(t.graph())
    assert (found.kind, [line.line for line in found.starts]) == ("backward", [6, 8])
    assert (found.value_line.line, found.use_line.line) == (6, 8)
    assert [t.operators[i].name[6:] for i in found.work.operators] == ["mm", "add_.Tensor"]


@pytest.mark.parametrize("between", ["read", "cleared", "set to none", "optimizer"])
def test_passes_are_needed_if_something_uses_the_gradients_in_between(between):
    assert computed_again(passes(between=between).graph()) == ()


def test_passes_through_graphs_of_their_own_are_needed():
    assert computed_again(passes(again=False).graph()) == ()


def test_what_each_module_computes_has_the_method_and_its_caller():
    t = Table()
    x = t.value(4, 4)
    calls = (Frame("net.py", 57, "forward"), Frame("net.py", 75, "forward"), Frame("net.py", 94, "train"))
    for layer in range(3):
        made = t.op("cdist", x, stack=(Frame("net.py", 39, "knn"), *calls), module=f"layers.{layer}", content="y")
        t.roots.add(t.op("mul", made, t.value(4, 4), stack=(Frame("net.py", 58, "forward"), *calls[1:])).value)
    (found,) = computed_again(t.graph())
    assert (found.inner, found.callers, found.is_whole) == (calls[0], calls[1:], True)
    assert found.modules == ("layers.0", "layers.1", "layers.2")
    t.op("cdist", t.value(4, 4), stack=(Frame("net.py", 39, "knn"), *calls), module="layers.3")
    (found,) = computed_again(t.graph())
    assert not found.is_whole  # another call of the line computes something else


def gradients(*, start="ones", other_function=False) -> Table:
    """Return an encoder of line 2 whose gradients by two inputs are taken at lines 5 and 6, in a helper of line 20."""
    t = Table()
    x = t.op("mm", t.value(4, 4), t.value(4, 4, role="parameter"), line=2, sequence_nr=1)
    y = t.op("tanh", x, line=3, sequence_nr=2)
    other = t.op("tanh", x, line=4, sequence_nr=3) if other_function else y
    for line, output, content in ((5, y, "ones"), (6, other, start)):
        head = t.values[output.value].producer
        up = t.op("ones_like", output, content=content, line=20, at=(line,), attributes=content)
        back = {"phase": "backward", "sequence_nr": 2}
        up = t.op("tanh_backward", up, output, line=3, forward=head, content=f"a {content} {head}", **back)
        t.op("mm", up, x, line=2, forward=0, content=f"b {content} {head}", **{**back, "sequence_nr": 1})
    t.read_on_host(up)
    return t


def test_gradients_by_two_inputs_are_one_pass():
    t = gradients()
    found = next(one for one in computed_again(t.graph()) if one.kind == "gradients")
    assert [line.line for line in found.starts] == [5, 6]
    assert [t.operators[i].name[6:] for i in found.work.operators] == ["tanh_backward", "mm"]


@pytest.mark.parametrize("options", [{"start": "others"}, {"other_function": True}])
def test_gradients_of_other_outputs_are_needed(options):
    assert not [one for one in computed_again(gradients(**options).graph()) if one.kind == "gradients"]
