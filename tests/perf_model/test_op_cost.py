"""The work of operators from their shapes."""

import json

import pytest

from diagnose.perf_model.op_cost import cost_of, is_pointwise, output_size

BF16, F32 = "c10::BFloat16", "float"


def work(op, shapes, *types):
    return cost_of(op, str(shapes).replace("'", '"'), str(list(types)).replace("'", '"'))


@pytest.mark.parametrize(
    ("op", "shapes", "types", "flop", "moved"),
    [
        ("aten::mm", [[2, 3], [3, 5]], [BF16] * 2, 60, 2 * (6 + 15 + 10)),
        ("aten::addmm", [[5], [2, 3], [3, 5], [], []], [F32] * 3 + ["Scalar"] * 2, 60, 4 * (6 + 15 + 10)),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [F32] * 2, 420, 7 * 4 * 31),
        ("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]], [F32] * 3, 420, 7 * 4 * 31),
        ("aten::linear", [[7, 2, 3], [5, 3], [5]], [F32] * 3, 420, 4 * (42 + 15 + 70)),
        # 2 batches, 8 positions, 4 heads of 16: two products of 2 · 4 · 8 · 8 · 16 multiply-adds; q, k, v and out
        ("aten::_flash_attention_forward", [[2, 8, 4, 16]] * 3, [BF16] * 3, 4 * 2 * 4 * 8 * 8 * 16, 4 * 1024 * 2),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 4, 8, 16]] * 3,
            [BF16] * 3,
            4 * 2 * 4 * 8 * 8 * 16,
            4 * 1024 * 2,
        ),
        ("aten::add", [[10, 10], [10, 10], []], [F32, F32, "Scalar"], 0, 1200),
        ("aten::mul", [[10, 10], [1, 10]], [F32, F32], 0, 400 + 40 + 400),
        ("aten::mul_", [[10, 10], []], [BF16, "Scalar"], 0, 400),
        ("aten::copy_", [[10, 10], [10, 10], []], [BF16, F32, "Scalar"], 0, 600),
        ("aten::eq", [[100], [100]], [F32, F32], 0, 900),
        ("aten::_softmax", [[10, 10], [], []], [BF16, "Scalar", "Scalar"], 0, 400),
    ],
)
def test_formulas(op, shapes, types, flop, moved):
    found = work(op, shapes, *types)
    assert (found.flop, found.bytes) == (flop, moved)


def test_precision_follows_the_type():
    assert work("aten::mm", [[2, 3], [3, 5]], BF16, BF16).precision == "f16"
    assert work("aten::mm", [[2, 3], [3, 5]], F32, F32).precision == "fp32"


@pytest.mark.parametrize(
    ("op", "shapes", "types"),
    [
        ("aten::mm", [[2, 3], [4, 5]], [F32] * 2),
        ("aten::mm", [[2, 3]], [F32]),
        ("aten::mm", [[2, 3], [3, 5]], ["double"] * 2),
        ("aten::bmm", [[2, 3], [3, 5]], [F32] * 2),
        ("aten::add", [[2], [3]], [F32] * 2),
        ("aten::add", [[], []], [F32] * 2),
        ("aten::add", [["x"], [3]], [F32] * 2),
        ("aten::cudnn_convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], [F32] * 2),
        ("aten::_flash_attention_forward", [[8, 4, 16]] * 3, [BF16] * 3),
    ],
)
def test_what_shapes_do_not_tell(op, shapes, types):
    assert work(op, shapes, *types) is None


@pytest.mark.parametrize("shapes", ["", "nothing", "{}", "[1", "3"])
def test_a_text_that_is_no_list_of_shapes(shapes):
    assert cost_of("aten::add", shapes, '["float"]') is None
    assert output_size(shapes, '["float"]') == 0


CONVOLUTION = [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]


@pytest.mark.parametrize(
    ("op", "shapes", "values"),
    [
        ("aten::convolution", CONVOLUTION, ["", "", "", "[0, 0]", "[0]", "[1]", "False", "[0]", "1"]),  # no stride
        ("aten::convolution", CONVOLUTION, ["", "", "", "[1]", f"[{10**200}]", "[1]", "False", "[0]", "1"]),
        ("aten::embedding_dense_backward", [[8, 64], [8], []], ["", "", str(10**400)]),
        ("aten::embedding_dense_backward", [[8, 64], [8], []], ["", "", str(10**30)]),
    ],
)
def test_numbers_that_no_operator_has(op, shapes, values):
    types = [F32 if shape else "" for shape in shapes]
    assert cost_of(op, json.dumps(shapes), json.dumps(types), json.dumps(values)) is None


def test_an_output_has_a_largest_size():
    assert output_size("[[1099511627776, 1], [1, 1099511627776]]", '["float", "float"]') < 2**63


def test_pointwise():
    assert is_pointwise("aten::mul_")
    assert is_pointwise("aten::gelu")
    assert not is_pointwise("aten::mm")
    assert not is_pointwise("mul")
    assert output_size("[[10, 1], [1, 7]]", '["float", "float"]') == 70
