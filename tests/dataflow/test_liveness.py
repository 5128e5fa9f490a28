"""Dead work: a result or gradient that reaches no parameter, state or host read."""

import pytest

from diagnose.dataflow.liveness import dead_work
from diagnose.model.dataflow import ASKS_FOR_GRADIENT
from tests.dataflow.table import Table, lines


def two_steps(step) -> Table:
    """Return two steps with one weight that an optimizer changes at the end of each."""
    t = Table()
    weight = t.value(4, 4, role="parameter")
    for t.step in range(2):
        weight = t.update(weight, step(t, weight))
    return t


def test_a_metric_that_is_not_read_is_dead():
    def step(t, weight):
        out = t.op("mm", t.value(4, 4), weight, line=2, ns=70)
        t.op("std", t.op("sub", out, line=3, ns=9), shape=(), line=4, ns=20)
        return out

    (found,) = dead_work(two_steps(step).graph())
    assert (found.kind, found.value_line.line, lines(found.work), found.is_certain) == ("result", 4, [3, 4], True)
    assert found.work.share == 29 / 100


def test_a_metric_that_python_reads_is_not():
    def step(t, weight):
        out = t.op("mm", t.value(4, 4), weight, line=2, ns=70)
        t.read_on_host(t.op("std", out, shape=(), line=4, ns=20))
        return out

    assert dead_work(two_steps(step).graph()) == ()


def test_a_result_that_the_script_holds_at_the_end_is_not():
    t = Table()
    t.roots.add(t.op("sum", t.value(4), shape=(), ns=5).value)
    assert dead_work(t.graph()) == ()


def test_a_result_that_is_overwritten_is_dead_and_one_that_is_added_to_is_not():
    t = Table()
    buffer = t.value(4, role="buffer")
    lost = t.op("mul_.Tensor", t.value(4), into=buffer, line=2)
    t.op("add_.Tensor", t.value(4), into=t.op("zero_", into=lost, line=3), line=4)
    (found,) = dead_work(t.graph())
    assert lines(found.work) == [2]


def test_a_backward_pass_that_goes_on_for_nothing_ends_where_the_lines_of_the_forward_part():
    def step(t, weight):
        made = t.op("mm", t.value(4, 4), line=2, at=(20,), ns=30)
        out = t.op("mm", made, weight, line=3, at=(21,), ns=30)
        gradient = t.op("mm", out, line=3, at=(21,), ns=20, phase="backward")
        t.op("mm", t.op("tanh_backward", gradient, line=2, at=(20,), phase="backward"), line=2, phase="backward")
        return gradient

    (found,) = dead_work(two_steps(step).graph())
    assert (found.kind, found.value_line.line, found.use_line.line) == ("gradient", 20, 21)
    assert (lines(found.work), found.work.share) == ([2], 20 / 101)


def test_a_gradient_that_no_optimizer_reads_is_not_certainly_dead():
    t = Table()
    weight, frozen = t.value(4, 4, role="parameter"), None
    for t.step in range(2):
        frozen = t.op("mm", t.value(4, 4), line=2, phase="backward", facts={"role": "gradient"})
        weight = t.update(weight, t.value(4, 4))
    t.roots.add(frozen.value)
    (found,) = dead_work(t.graph())
    assert found.kind == "gradient"


def test_a_gradient_that_accumulates_over_the_steps_is_kept_if_no_optimizer_ran():
    t = Table()
    total = t.value(4, 4, role="gradient")
    t.step = 0
    total = t.op("add_.Tensor", t.value(4, 4), into=total, line=2, phase="backward", facts={"role": "gradient"})
    t.roots.add(total.value)
    assert dead_work(t.graph()) == ()
    weight = t.value(4, 4, role="parameter")
    t.update(weight, t.value(4, 4))
    (found,) = dead_work(t.graph())
    assert not found.is_certain


def test_collectives_and_operators_without_results_are_needed():
    t = Table()
    t.op("all_reduce_", t.op("mul", t.value(4)), is_collective=True)
    t.op("_assert_async", t.op("isfinite", t.value(4)), writes=())
    assert dead_work(t.graph()) == ()


def test_memory_that_nobody_wrote_is_no_work():
    t = Table()
    t.op("empty.memory_format", shape=(4,))
    assert dead_work(t.graph()) == ()


def test_a_result_is_named_by_the_outermost_call_of_which_nothing_is_needed():
    def step(t, weight):
        out = t.op("mm", t.value(4, 4), weight, line=2, at=(50, 71), ns=70)
        t.op("std", t.op("sub", out, line=30, at=(51, 71)), shape=(), line=31, at=(51, 71), ns=20)
        return out

    (found,) = dead_work(two_steps(step).graph())
    assert (found.value_line.line, lines(found.work)) == (51, [30, 31])


def test_gradients_of_parameters_without_an_optimizer_are_named_where_the_backward_pass_begins():
    def found(frozen: str):
        def step(t, weight):
            out = t.op("mm", t.value(4, 4), weight, line=2)
            t.op("ones_like", out, line=83, phase="backward")
            t.op("mm", out, line=23, ns=50, phase="backward", facts={"role": "gradient", "name": frozen})
            return out

        t = Table()
        weight = t.value(4, 4, role="parameter", name="head")
        for t.step in range(2):
            weight = t.op("add_", step(t, weight), into=weight, phase="optimizer", line=99, facts={"name": "head"})
        return dead_work(t.graph())[0]

    assert (found("base").value_line.line, found("base").parameters) == (83, ("base",))
    assert (found("head").value_line.line, found("head").parameters) == (23, ())


def convolution_backward(t, gradient, **more):
    """Add the backward of a convolution; return the gradients of its input and of its weight."""
    to_input = t.op("convolution_backward", gradient, shape=(2, 3, 8, 8), phase="backward", **more)
    to_weight = t.value(4, 3, 3, 3, role="gradient")
    t.values[-1] = t.values[-1]._replace(producer=len(t.operators) - 1)
    t.operators[-1] = t.operators[-1]._replace(writes=(to_input, to_weight))
    return to_input, to_weight


@pytest.mark.parametrize("is_read", [False, True])
def test_of_a_convolution_the_gradient_of_the_weight_may_be_dead_alone(is_read):
    def step(t, weight):
        out = t.op("mm", t.value(4, 4), weight, line=10, ns=50)
        start = t.op("ones_like", out, line=11, ns=0, phase="backward")
        to_input, to_weight = convolution_backward(t, start, line=33, at=(10,), ns=50)
        return t.op("add", to_input, to_weight, shape=(4, 4), ns=0) if is_read else to_input

    found = dead_work(two_steps(step).graph())
    if is_read:
        assert found == ()
    else:
        (one,) = found
        assert (one.kind, one.value_line.line, one.use_line.line, one.avoidable) == ("gradient", 10, 11, 0.5)
        assert (lines(one.work), one.work.share, one.is_certain) == ([33], 50 / 101, True)


def penalised(*, factor: str = "attribute", second: float = 0.0, role: str = "buffer", read: bool = False) -> Table:
    """Return steps whose loss of line 3 gets a term of line 5 that line 6 multiplies by zero, forward and backward."""
    zero = {"zeros": 1.0}
    number = {}

    def step(t, weight):
        if not number:  # it stays the same over the steps
            number["given"] = t.value(role=role, **zero)
        given = number["given"]
        times = {"attributes": f"other={second if t.step else 0.0}"} if factor == "attribute" else {}
        out = t.op("mm", t.value(4, 4), weight, line=2)
        loss = t.op("sum", out, shape=(), line=3)
        term = t.op("mm", t.op("exp", out, line=5, ns=50), weight, line=5, ns=50)
        product = len(t.operators) + 1
        if factor == "computed":
            given, product = t.op("amax", out, shape=(), line=5, facts=zero), product + 1
        mean = t.op("mean", term, shape=(), line=6)
        reads = (mean,) if times else (mean, given)
        seen = {} if t.step and second else zero
        small = t.op("mul.Tensor", *reads, shape=(), line=6, facts=seen, **times)
        if read:
            t.read_on_host(mean)
        total = t.op("add", loss, small, shape=(), line=7)
        start = t.op("ones_like", total, line=8, phase="backward", shape=())
        back = {"phase": "backward", "facts": zero}
        gradient = t.op("mul.Tensor", start, shape=(), line=6, forward=product, **back)
        gradient = t.op("mm", gradient, weight, shape=(4, 4), line=5, ns=40, forward=product - 2, **back)
        own = t.op("ge", term, line=5, phase="backward", forward=product - 3)
        gradient = t.op("where", own, gradient, line=5, forward=product - 3, **back)
        of_loss = t.op("expand_copy", start, shape=(4, 4), line=3, phase="backward", forward=product - 4)
        return t.op("add", gradient, of_loss, line=2, phase="backward", forward=product - 5)

    return two_steps(step)


@pytest.mark.parametrize("factor", ["attribute", "tensor"])
def test_a_term_times_zero_is_dead_with_its_gradients(factor):
    (found,) = dead_work((t := penalised(factor=factor)).graph())
    assert (found.kind, found.value_line.line, found.use_line.line, found.is_certain) == ("zero factor", 5, 6, True)
    names = [t.operators[i].name[6:] for i in found.work.operators]
    assert names == ["exp", "mm", "mean", "mul.Tensor", "mul.Tensor", "mm", "ge", "where"]


def test_a_term_that_python_reads_is_needed_and_its_gradients_are_not():
    found = dead_work((t := penalised(read=True)).graph())
    assert {(one.kind, one.use_line.line) for one in found} == {("zero factor", 6)}
    names = [t.operators[i].name[6:] for i in sorted(i for one in found for i in one.work.operators)]
    assert names == ["mul.Tensor", "mul.Tensor", "mm", "ge", "where"]


@pytest.mark.parametrize(
    "more", [{"second": 0.5}, {"factor": "computed"}, {"factor": "tensor", "role": "parameter"}], ids=str
)
def test_a_factor_that_is_not_zero_in_each_step_or_was_computed_or_learns_says_nothing(more):
    assert all(one.kind != "zero factor" for one in dead_work(penalised(**more).graph()))


def test_a_pass_into_frozen_layers_has_the_line_that_asked_for_it():
    t = Table()
    weight, frozen = t.value(4, 4, role="parameter", name="top.w"), t.value(4, 4, role="parameter", name="low.w")
    for t.step in range(2):
        x = t.value(4, 4)
        t.op("ask", x, line=69, writes=(), is_view=True)
        t.operators[-1] = t.operators[-1]._replace(name=ASKS_FOR_GRADIENT)
        made = t.op("mm", x, frozen, line=2, ns=30)
        low = len(t.operators) - 1
        out = t.op("tanh", made, weight, line=3, ns=30, module="top")
        gradient = t.op("tanh_backward", out, line=3, phase="backward", module="top", forward=low + 1)
        t.op("mm", gradient, line=2, ns=20, phase="backward", forward=low, shape=(4, 5))
        weight = t.update(weight, gradient)
    (found,) = dead_work(t.graph())
    assert (found.asked_line.line, found.frozen, found.below) == (69, ("low.w",), "top")


def test_a_gradient_that_another_pass_needs_was_asked_for_rightly():
    """Forces are gradients of positions; the pass of their loss goes on to the positions for nothing."""
    t = Table()
    weight = t.value(4, 4, role="parameter", name="top.w")
    for t.step in range(2):
        x = t.value(4, 4)
        t.op("ask", x, line=69, writes=(), is_view=True)
        t.operators[-1] = t.operators[-1]._replace(name=ASKS_FOR_GRADIENT)
        made = t.op("sin", x, line=2, ns=30)
        low = len(t.operators) - 1
        out = t.op("mul", made, weight, line=3, ns=30)
        force = t.op("mul", out, line=2, phase="backward", forward=low)
        gradient = t.op("mul", force, line=3, phase="backward", forward=low + 1)
        t.op("cos", gradient, line=2, ns=20, phase="backward", forward=low)
        weight = t.update(weight, gradient)
    (found,) = dead_work(t.graph())
    assert (found.ends_early, found.asked_line, found.below) == (True, None, "")


def test_gradients_of_a_model_that_another_loss_trains_name_its_parameters():
    t = Table()
    weights = [t.value(4, 5, role="parameter", name=name) for name in ("gen.w", "critic.w")]
    for t.step in range(2):
        out = t.op("mm", t.value(4, 4), weights[1], line=18)
        forward = len(t.operators) - 1
        start = t.op("ones_like", out, line=20, phase="backward")
        through = t.op("mm", start, line=18, phase="backward", forward=forward, shape=(4, 4))
        t.op("mm", start, line=18, ns=50, phase="backward", forward=forward, shape=(4, 5))
        weights = [t.update(weights[0], through), t.update(weights[1], t.value(4, 5))]
    (found,) = dead_work(t.graph())
    assert (found.unused, found.call_line.line) == (("critic.w",), 18)


def with_a_rate_of_zero(*, moves: bool = False, clips: bool = False):
    """Return what is dead in two steps of a frozen layer below one that trains, by its learning rate alone."""
    t = Table()
    low, top = (t.value(4, 4, role="parameter", name=name, content="weights") for name in ("low.w", "top.w"))
    t.held = {t.values[low.value].storage}
    for t.step in range(2):
        out = t.op("mm", t.op("mm", t.value(4, 4), low, line=2), top, line=3)
        first = len(t.operators) - 2
        start = t.op("ones_like", out, line=8, phase="backward")
        trained = t.op("mm", start, line=3, phase="backward", forward=first + 1)
        through = t.op("mm", start, top, line=3, phase="backward", forward=first + 1)
        frozen = t.op(
            "mm", through, line=2, phase="backward", forward=first, ns=50, facts={"role": "gradient", "name": "low.w"}
        )
        if clips:
            trained = t.op("mul", trained, t.op("norm", frozen, shape=(), line=9))
        facts = {"role": "parameter", "name": "low.w"}
        low = t.op("add_", frozen, into=low, phase="optimizer", facts=facts, content="others" if moves else "weights")
        top = t.update(top, trained)
    return dead_work(t.graph())


def test_a_learning_rate_of_zero_is_no_reason_for_a_gradient():
    (found,) = with_a_rate_of_zero()
    assert (found.has_no_rate, found.parameters, found.value_line.line) == (True, ("low.w",), 8)
    assert lines(found.work) == [1, 2, 3]


@pytest.mark.parametrize("what", ["moves", "clips"])
def test_a_parameter_that_moves_or_whose_gradient_is_read_is_not_frozen(what):
    assert with_a_rate_of_zero(**{what: True}) == ()
