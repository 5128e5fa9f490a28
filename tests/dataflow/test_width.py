"""Width: a wider type than what goes in and what comes out."""

from diagnose.dataflow.width import narrows_inputs, too_wide
from diagnose.model.dataflow import TAKES_OVER
from tests.dataflow.table import Table, lines


def test_float64_between_float32_is_too_wide():
    t = Table()
    double = t.op("_to_copy", t.value(4, 4), dtype="float64", line=2, ns=10)
    total = t.op("std", double, line=3, ns=30)
    t.op("_to_copy", total, dtype="float32", line=4, ns=60)
    (found,) = too_wide(t.graph())
    assert (found.kind, found.work.share, lines(found.work), found.is_certain) == ("float64", 0.4, [2, 3], True)
    assert (found.value_line.line, found.use_line.line) == (2, 4)


def test_float64_weights_are_a_choice():
    t = Table()
    t.op("mm", t.value(4, 4, dtype="float64"), t.value(4, 4, dtype="float64", role="parameter"))
    (found,) = too_wide(t.graph())
    assert not found.is_certain


def test_a_float64_sum_that_goes_on_over_the_steps_is_a_choice():
    t = Table()
    total = t.value(1, dtype="float64", role="state")
    t.op("add_.Tensor", t.value(1), into=total, dtype="float64")
    (found,) = too_wide(t.graph())
    assert not found.is_certain


def test_a_product_in_float32_between_bfloat16_is_too_wide():
    t = Table()
    wide = [t.op("_to_copy", t.value(4, 4, dtype="bfloat16"), dtype="float32", line=line) for line in (2, 3)]
    product = t.op("mm", *wide, line=4, dtype="float32", ns=70)
    t.op("_to_copy", product, dtype="bfloat16", line=5)
    (found,) = too_wide(t.graph())
    assert (found.kind, found.work.share) == ("float32", 1.0)


def test_a_product_that_is_used_in_float32_too_is_not():
    t = Table()
    wide = t.op("_to_copy", t.value(4, 4, dtype="bfloat16"), dtype="float32")
    product = t.op("mm", wide, dtype="float32")
    t.op("_to_copy", product, dtype="bfloat16")
    t.op("sum", product, dtype="float32")
    assert too_wide(t.graph()) == ()


def test_a_chain_in_float32_with_products_between_16_bit_ends_is_too_wide():
    t = Table()
    wide = t.op("_to_copy", t.value(4, 4, dtype="bfloat16"), dtype="float32", line=2)
    weight = t.op("_to_copy", t.value(4, 4, dtype="bfloat16", role="parameter"), dtype="float32", line=3)
    gated = t.op("silu", t.op("mm", wide, weight, line=3), line=4)
    t.op("_to_copy", gated, dtype="bfloat16", line=5)
    (found,) = too_wide(t.graph())
    assert (found.kind, found.value_line.line, found.use_line.line, found.work.operators) == (
        "float32", 2, 5, (0, 1, 2, 3, 4),
    )  # fmt: skip


def test_a_float64_batch_that_is_narrowed_at_once_need_not_be_wide():
    t = Table()
    batch = t.op("stack", *(t.value(8, dtype="float64") for _ in range(2)), shape=(2, 8))
    t.op("mul.Tensor", t.op("_to_copy", batch, dtype="float32"))
    assert narrows_inputs(t.graph())
    t.op("mul.Tensor", batch)
    assert not narrows_inputs(t.graph())


def test_without_a_float64_batch_nothing_is_narrowed():
    t = Table()
    t.op("_to_copy", t.value(8), dtype="bfloat16")
    assert not narrows_inputs(t.graph())


def test_wide_values_have_the_buffer_or_the_line_that_they_come_from():
    t = Table()
    window = t.value(4, 4, role="buffer", name="window", dtype="float64")
    t.op("sum", t.op("mul", window, line=3), shape=(), dtype="float32", line=4)
    (found,) = too_wide(t.graph())
    assert (found.source, found.names) == ("kept", ("window",))
    t = Table()
    target = t.value(2, 4, dtype="float64")
    t.op("from_numpy", target, line=2, writes=(), is_view=True)
    t.operators[-1] = t.operators[-1]._replace(name=TAKES_OVER)
    t.op("sum", t.op("mul", target, line=3), shape=(), dtype="float32", line=4)
    (found,) = too_wide(t.graph())
    assert (found.source, found.shapes, found.input_line.line) == ("input", ((2, 4),), 2)
