"""one-hot-product: rows that a product with one-hot rows looks up. Times in µs."""

import json

import pytest

from diagnose.analyzers import one_hot_product
from diagnose.changes.common.prescribe import prescribe
from diagnose.pipeline.find import build_tables
from diagnose.tables.program import program_of

HOT, WEIGHTS = [64, 320], [8, 320]
CONVERSION = ("aten::to", [HOT, [], [], [], []], "")
SOURCE = ("aten::one_hot", [[64], []], "")
PRODUCT = ("aten::linear", [HOT, WEIGHTS, []], "")
ZEROS = ("aten::zeros", [[], [], [], [], []], "")
SCATTER = ("aten::scatter_", [HOT, [], [64, 1], []], '["", "-1", "", "1"]')


def tables(recording, *operators, devices=(), after=()):
    """Return two steps of 1000 µs: operators of 40 µs each 10 apart, and the backward pass from 600 on.

    Functions of products take 40 µs each.
    """
    r = recording(devices=devices) if devices == () else recording()
    each = (*operators, *after)
    for step in range(2):
        at, number = 1000 * step, 100 * step
        r.step(step + 1, at, at + 1000)
        for i, (name, shapes, values) in enumerate(each):
            begin = at + 50 * i
            texts = {"shapes": json.dumps(shapes), "values": values, "detail": f"train.py({10 + i}): forward"}
            r.op(name, begin, begin + 40, sequence=number + i, **texts)
            if devices != ():
                r.kernel(name, begin + 10, begin + 45, launched=(begin + 1, begin + 5))
        r.op("aten::ones_like", at + 580, at + 590, sequence=number + len(each), shapes="[[]]")
        for i, (name, *_rest) in enumerate(each):
            if name in ("aten::linear", "aten::mm", "aten::addmm", "aten::matmul"):
                r.op("autograd::engine::evaluate_function: MmBackward0", at + 600 + 50 * i, at + 640 + 50 * i)
                r.op("MmBackward0", at + 600 + 50 * i, at + 640 + 50 * i, sequence=number + i)
                if devices != ():
                    launched = (at + 601 + 50 * i, at + 605 + 50 * i)
                    r.kernel("gemm_backward", at + 610 + 50 * i, at + 645 + 50 * i, launched=launched)
    capture = r.capture(attribution=r)
    return build_tables(capture, capture.trace)


def test_source_conversion_and_product_with_its_backward_are_lost(recording):
    t = tables(recording, SOURCE, CONVERSION, PRODUCT)
    (finding,) = one_hot_product.find(t)
    assert finding.lost_ns == pytest.approx((40 + 40 + 0.9 * (40 + 40)) * 1000)
    assert finding.evidence[-1] == (
        "One-hot rows of 320 columns are multiplied by a weight 1 × a step: each row of the result is a row of the "
        "weight."
    )
    assert (finding.where[0].file, finding.where[0].line, finding.where[0].op) == ("train.py", 12, "aten::linear")
    (change,) = prescribe(finding, t.steps.step_ns, program_of(t))
    assert (change.id, change.title) == ("index-lookup", "Look rows up by index instead of multiplying one-hot rows")
    assert "F.embedding(ids, " in change.after
    assert change.saves_ns[1] == finding.lost_ns


def test_beside_a_device_it_is_the_time_of_their_kernels(recording):
    (finding,) = one_hot_product.find(tables(recording, SOURCE, CONVERSION, PRODUCT, devices="one"))
    assert finding.lost_ns == pytest.approx((35 + 35 + 35 + 35) * 0.95 * 1000)
    assert finding.where[0].line == 12


@pytest.mark.parametrize(
    "product",
    [
        ("aten::mm", [HOT, [320, 8]], ""),
        ("aten::matmul", [[4, 16, 320], [320, 8]], ""),
        ("aten::addmm", [[8], HOT, [320, 8], [], []], ""),
    ],
)
def test_other_products_are_known(recording, product):
    assert len(one_hot_product.find(tables(recording, SOURCE, CONVERSION, product))) == 1


def test_rows_of_several_dimensions_and_views_of_them_are_followed(recording):
    source = ("aten::one_hot", [[4, 16], []], "")
    convert = ("aten::to", [[4, 16, 320], [], [], [], []], "")
    view = ("aten::view", [[4, 16, 320], []], "")
    assert len(one_hot_product.find(tables(recording, source, convert, view, PRODUCT))) == 1


@pytest.mark.parametrize("rows", [(SOURCE, CONVERSION, SOURCE, CONVERSION), (SOURCE, SOURCE, CONVERSION, CONVERSION)])
def test_two_of_one_shape_have_a_product_each(recording, rows):
    (finding,) = one_hot_product.find(tables(recording, *rows, PRODUCT, PRODUCT))
    assert finding.lost_ns == pytest.approx(2 * (40 + 40 + 0.9 * (40 + 40)) * 1000)


def test_a_one_scattered_into_zeros_is_a_one_hot_row(recording):
    (finding,) = one_hot_product.find(tables(recording, ZEROS, SCATTER, PRODUCT))
    assert finding.lost_ns == pytest.approx((40 + 40 + 0.9 * (40 + 40)) * 1000)


@pytest.mark.parametrize(
    "scatter",
    [
        ("aten::scatter_", [HOT, [], [64, 2], []], SCATTER[2]),  # several to a row
        ("aten::scatter_", [HOT, [], [64, 1], []], '["", "-1", "", "0.5"]'),
        ("aten::scatter_", [HOT, [], [64, 1], [64, 1]], '["", "-1", "", ""]'),  # whatever that tensor holds
        ("aten::scatter_", [HOT, [], [64, 1], []], ""),
    ],
)
def test_other_scattered_rows_are_none(recording, scatter):
    assert one_hot_product.find(tables(recording, ZEROS, scatter, PRODUCT)) == []


def test_a_one_scattered_into_something_else_is_none(recording):
    assert one_hot_product.find(tables(recording, ("aten::mul", [HOT, []], ""), SCATTER, PRODUCT)) == []


def test_what_else_reads_the_rows_keeps_their_making(recording):
    (finding,) = one_hot_product.find(
        tables(recording, SOURCE, CONVERSION, PRODUCT, after=[("aten::mean", [HOT, [], [], []], "")])
    )
    assert finding.lost_ns == pytest.approx(0.9 * (40 + 40) * 1000)


@pytest.mark.parametrize(
    "after",
    [
        [("aten::cross_entropy_loss", [HOT, HOT, [], [], [], []], "")],  # soft labels
        [("aten::log_softmax", [HOT, [], []], ""), ("aten::mul", [HOT, HOT], "")],
    ],
)
@pytest.mark.parametrize("between", [(), (PRODUCT,)])
def test_labels_are_no_lookup(recording, after, between):
    assert one_hot_product.find(tables(recording, SOURCE, CONVERSION, *between, after=after)) == []


@pytest.mark.parametrize(
    "operators",
    [
        (SOURCE, CONVERSION),  # no product
        (PRODUCT,),  # no one-hot rows
        (PRODUCT, SOURCE, CONVERSION),
        (SOURCE, PRODUCT),  # whole numbers are no operand
        (SOURCE, CONVERSION, ("aten::linear", [[32, 320], WEIGHTS, []], "")),  # other rows
        (SOURCE, CONVERSION, ("aten::linear", [[64, 8], [320, 8], []], "")),  # its result has that shape
        (SOURCE, CONVERSION, ("aten::mm", [[320, 64], HOT], "")),  # it is the weight
        (SOURCE, CONVERSION, ("aten::matmul", [[4, 16, 320], [4, 320, 8]], "")),  # a weight for each of a batch
        (SOURCE, CONVERSION, ("aten::mul", [HOT, []], ""), PRODUCT),  # smoothed
        (SOURCE, CONVERSION, ("aten::t", [HOT], ""), ("aten::mm", [[320, 64], [64, 8]], "")),  # sums by id
        (SOURCE, CONVERSION, ("aten::cat", [[HOT, HOT], []], ""), PRODUCT),
    ],
)
def test_nothing_is_found_without_a_product_of_the_rows(recording, operators):
    assert one_hot_product.find(tables(recording, *operators)) == []


def test_rows_as_many_as_columns_that_are_transposed_are_no_lookup(recording):
    operators = (
        ("aten::one_hot", [[64], []], ""), ("aten::to", [[64, 64], [], [], [], []], ""),
        ("aten::t", [[64, 64]], ""), ("aten::mm", [[64, 64], [64, 8]], ""),
    )  # fmt: skip
    assert one_hot_product.find(tables(recording, *operators)) == []
    assert len(one_hot_product.find(tables(recording, *operators[:2], operators[3]))) == 1


def test_few_columns_are_as_fast_to_multiply(recording):
    def found(num):
        hot = [64, num]
        return one_hot_product.find(
            tables(recording, SOURCE, ("aten::to", [hot, [], []], ""), ("aten::linear", [hot, [8, num], []], ""))
        )

    assert found(31) == []
    (finding,) = found(32)
    assert finding.lost_ns == pytest.approx((40 + 40) * 1000)  # the rows' own making


def test_far_away_it_may_be_another_tensor_of_that_shape(recording):
    others = [("aten::relu", [[64, 8]], "")] * 30
    assert one_hot_product.find(tables(recording, SOURCE, CONVERSION, *others, PRODUCT)) == []


def test_a_small_part_of_the_step_is_no_finding(recording, monkeypatch):
    monkeypatch.setattr(one_hot_product, "MIN_STEP_SHARE", 0.16)
    assert one_hot_product.find(tables(recording, SOURCE, CONVERSION, PRODUCT)) == []
    monkeypatch.setattr(one_hot_product, "MIN_STEP_SHARE", 0.15)
    assert len(one_hot_product.find(tables(recording, SOURCE, CONVERSION, PRODUCT))) == 1


def test_a_recording_without_shapes_has_nothing_to_go_by(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::one_hot", 0, 100)
    r.op("aten::to", 100, 200)
    r.op("aten::linear", 200, 900)
    assert one_hot_product.find(r.tables()) == []
