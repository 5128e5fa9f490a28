"""Layout: copies that only change the order, for operators that take strides."""

from diagnose.dataflow.layout import layout_copies
from diagnose.model.dataflow import Use
from tests.dataflow.table import Table


def turned(use: Use) -> Use:
    """Return a matrix seen through its transpose."""
    return Use(use.value, use.shape[::-1], use.stride[::-1], 0, use.dtype)


def test_a_transposed_copy_for_a_product_is_not_needed():
    t = Table()
    copy = t.op("clone", turned(t.value(4, 8)), line=2, ns=25)
    t.op("mm", t.value(4, 8), copy, line=3, ns=75)
    (found,) = layout_copies(t.graph())
    assert (found.work.line.line, found.work.share, found.use_line.line, found.num_bytes) == (2, 0.25, 3, 128)


def test_a_copy_that_is_reshaped_changed_or_convolved_is():
    t = Table()
    x = turned(t.value(4, 8))
    reshaped = t.op("clone", x)
    t.op("mm", Use(reshaped.value, (2, 16), (16, 1), 0, "float32"))
    t.op("add_.Tensor", t.value(8, 4), into=t.op("clone", x))
    t.op("convolution", t.op("clone", x))
    t.op("mm", t.op("clone", t.value(4, 8)))
    assert layout_copies(t.graph()) == ()
