"""Constant work: the same in both steps, from values that are known to be."""

from diagnose.dataflow.repeats import constant_work
from tests.dataflow.table import Table, lines


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


def test_a_size_that_python_reads_is_no_reason_to_find_it_again():
    t = Table()
    done = t.value(64, role="constant")
    for t.step in range(2):
        t.op("nonzero", done, line=2, content="ends", reads_host=True)
    (found,) = constant_work(t.graph())
    assert (found.is_certain, lines(found.work)) == (True, [2])
