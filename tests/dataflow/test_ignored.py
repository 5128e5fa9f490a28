"""Rows without an effect: from a loss or a mask back to the first operator that mixes rows."""

import pytest

from diagnose.dataflow.contents import work_on_nothing
from diagnose.dataflow.ignored import ignored_rows
from tests.dataflow.table import Table, lines, strides

ROWS, WIDTH, CLASSES = 64, 8, 100


def seen(use, *shape: int):
    """Return a value seen through a view that keeps the order of its elements."""
    return use._replace(shape=shape, stride=strides(shape))


def ignored(t: Table) -> dict[int, float]:
    """Return for each line of the last step the shares of its operators."""
    graph = t.graph()
    return {
        graph.operators[one.operator].place.line: round(one.share, 3)
        for one in ignored_rows(graph, graph.of_step(graph.last_step))
    }


def names(t: Table, phase: str = "forward") -> set[str]:
    graph = t.graph()
    found = (graph.operators[one.operator] for one in ignored_rows(graph, graph.of_step(graph.last_step)))
    return {f"{one.name[6:]} {one.place.line}" for one in found if one.phase == phase}


def model(
    *,
    share: float = 0.75,
    metric: bool = False,
    layers: int = 1,
    targets: float = -1.0,
    on_device: bool = False,
    zeros: float = 0.75,
    shifted: bool = False,
) -> Table:
    """Return attention of line 1, a layer of line 2, a head of lines 3 to 5; of some targets the loss ignores a share.

    On a device no gradient shows its rows; ``zeros`` is the share of zeros in that of the logits.
    """
    t = Table()
    of_rows = {"zero_rows": -1.0 if on_device else share, "zeros": zeros}
    weight, head = t.value(WIDTH, WIDTH, role="parameter"), t.value(WIDTH, CLASSES, role="parameter")
    x = t.value(4, 16, WIDTH)
    made: list[tuple[int, str, int]] = []

    def op(name, *reads, line, shape, **more):
        use = t.op(name, *reads, line=line, shape=shape, **more)
        made.append((len(t.operators) - 1, name, line))
        return use

    for _ in range(layers):
        x = op("_scaled_dot_product_attention", x, x, x, line=1, shape=(4, 16, WIDTH))
        x = op("mm", seen(x, ROWS, WIDTH), weight, line=2, shape=(ROWS, WIDTH))
    x = op("native_layer_norm", seen(x, 4, 16, WIDTH), line=3, shape=(4, 16, WIDTH))
    logits = op("mm", seen(x, ROWS, WIDTH), head, line=4, shape=(ROWS, CLASSES))
    if metric:
        t.op("argmax", logits, shape=(ROWS,), line=9)
    if shifted:  # all but the last position of each
        part = logits._replace(shape=(4, 12, CLASSES), stride=strides((4, 16, CLASSES)))
        logits = seen(op("clone", part, line=5, shape=(4, 12, CLASSES)), 48, CLASSES)
    num = logits.shape[0]
    loss = op("_log_softmax", logits, line=5, shape=(num, CLASSES), attributes="dim=1, half_to_float=False")
    classes = t.value(4, num // 4, dtype="int64", padded=targets)
    op("nll_loss_forward", loss, seen(classes, num), line=5, shape=())
    unlike = {"_scaled_dot_product_attention": {"zero_rows": 0.0, "zeros": 0.0}}
    unlike["nll_loss_forward"] = {**of_rows, "zeros": 0.99}
    unlike["clone"] = {**of_rows, "zero_rows": 1 - (1 - share) * 12 / 16}
    gradient = t.value(1)
    for forward, name, line in reversed(made):
        back = {"phase": "backward", "line": line, "forward": forward, "facts": unlike.get(name, of_rows)}
        if name == "mm":  # of the weight
            transposed = gradient._replace(shape=(gradient.shape[1], ROWS), stride=(1, gradient.shape[1]))
            t.op("mm", transposed, **{**back, "facts": {}})
        shape = t.operators[forward].reads[0].shape
        gradient = t.op(f"{name}_backward", gradient, loss, shape=shape, **back)
        if name == "clone":
            gradient = seen(t.op("slice_backward", gradient, shape=(4, 16, CLASSES), **back), ROWS, CLASSES)
    return t


def test_rows_without_an_effect_go_back_to_the_operator_that_mixes_them():
    t = model()
    assert ignored(t) == dict.fromkeys((2, 3, 4, 5), 0.75)
    assert names(t) == {"mm 2", "native_layer_norm 3", "mm 4", "_log_softmax 5", "nll_loss_forward 5"}
    assert {"mm 2", "mm_backward 4", "nll_loss_forward_backward 5"} <= names(t, "backward")
    (found,) = work_on_nothing(t.graph())
    assert (found.kind, found.value_line.line, lines(found.work)) == ("ignored rows", 5, [2, 3, 4, 5])


def test_all_rows_of_most_have_an_effect():
    assert ignored(model(share=0.25)) == {}


def test_a_line_that_runs_for_the_layers_before_as_well_is_not_to_be_changed():
    assert ignored(model(layers=2)) == dict.fromkeys((3, 4, 5), 0.75)


def test_what_a_metric_reads_is_needed_in_the_forward_pass():
    t = model(metric=True)
    assert names(t) == {"_log_softmax 5", "nll_loss_forward 5"}
    assert "mm_backward 4" in names(t, "backward")


def test_rows_that_a_view_leaves_out_have_no_effect_either():
    found = ignored(model(shifted=True))
    assert (found[4], found[2]) == (pytest.approx(1 - 0.25 * 12 / 16, abs=0.01), 0.75)


@pytest.mark.parametrize(
    ("targets", "zeros", "found"),
    [
        (0.875, 0.9, dict.fromkeys((2, 3, 4, 5), 0.875)),  # what a few elements show is less exact
        (0.875, 0.8, dict.fromkeys((2, 3, 4, 5), 0.8)),
        (0.875, 0.0, {}),  # a class like others
        (-1.0, 0.9, {}),  # masked classes may be the zeros of a gradient
    ],
)
def test_where_gradients_were_not_seen_whole_the_targets_say_which_rows_are_ignored(targets, zeros, found):
    assert ignored(model(on_device=True, targets=targets, zeros=zeros)) == found


def masked(name: str, *, own: float = 0.0, width: int = WIDTH) -> Table:
    """Return rows of a layer of line 2 that an operator of line 3 multiplies by zero, or lets through."""
    t = Table()
    rows = t.op("mm", t.value(ROWS, 4), t.value(4, width, role="parameter"), shape=(ROWS, width), line=2)
    t.op(name, rows, t.value(ROWS, 1), line=3)
    back = {"phase": "backward", "facts": {"zero_rows": 0.75, "zeros": 0.75}}
    above = t.op("expand", t.value(1), shape=(ROWS, width), phase="backward", facts={"zero_rows": own, "zeros": own})
    gradient = t.op(f"{name}_backward", above, line=3, forward=1, **back)
    t.op("mm", t.value(4, ROWS), gradient, shape=(4, width), line=2, forward=0, phase="backward")
    return t


@pytest.mark.parametrize(("name", "found"), [("mul", {2: 0.75, 3: 0.75}), ("relu", {}), ("bmm", {})])
def test_a_mask_leaves_rows_out_but_not_what_depends_on_the_rows_or_mixes_them(name, found):
    assert ignored(masked(name)) == found


def test_looking_up_a_few_rows_of_a_table_computes_none_for_nothing():
    t = Table()
    t.op("index", t.value(100, WIDTH, role="parameter"), t.value(4, dtype="int64"), shape=(4, WIDTH), line=2)
    gradient = t.op("new_zeros", shape=(100, WIDTH), line=2, phase="backward", forward=0, facts={"zero_rows": 0.96})
    t.op("index_put_", t.value(4, WIDTH), into=gradient, phase="backward", forward=0, facts={"zero_rows": 0.96})
    assert ignored(t) == {}


def test_a_loss_of_each_row_is_as_narrow_as_its_weights():
    t = Table()
    rows = t.op("mm", t.value(ROWS, 4), t.value(4, WIDTH, role="parameter"), shape=(ROWS, WIDTH), line=2)
    each = t.op(
        "sum", t.op("mse_loss", seen(rows, 4, 16, WIDTH), line=3), shape=(4, 16), line=4, attributes="dim=(-1,)"
    )
    t.op("mul", each, t.value(4, 16), line=5)
    back, few = {"phase": "backward"}, {"zero_rows": 0.0, "zeros": 0.75}
    gradient = t.op("mul", t.value(1), t.value(4, 16), shape=(4, 16), line=5, forward=3, facts=few, **back)
    t.op("expand", gradient, line=4, forward=2, is_view=True, writes=(), **back)
    wide = gradient._replace(shape=(4, 16, WIDTH), stride=(16, 1, 0))
    gradient = t.op("mul", wide, shape=(4, 16, WIDTH), line=3, forward=1, facts={"zero_rows": 0.75}, **back)
    t.op("mm", t.value(4, ROWS), seen(gradient, ROWS, WIDTH), shape=(4, WIDTH), line=2, forward=0, **back)
    assert ignored(t) == dict.fromkeys((2, 3, 4, 5), 0.75)
