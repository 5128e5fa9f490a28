"""unfused-attention: product, softmax, product, told by shapes that fit."""

import json

import pytest

from diagnose.analyzers import unfused_attention
from diagnose.changes.common.prescribe import prescribe
from diagnose.pipeline.find import build_tables
from diagnose.tables.program import program_of

QK, SCORES, PV = "[[8, 128, 64], [8, 64, 128]]", "[[2, 4, 128, 128], [], []]", "[[8, 128, 128], [8, 128, 64]]"
FLOATS = '["float", "float"]'


def attending(recording, *, qk=QK, scores=SCORES, pv=PV, softmax=200, last="aten::bmm"):
    """Return a step of 1000 busy µs: product 100, scaling 50, softmax, product 100, and the rest."""
    r = recording()
    r.step(1, 0, 1000)
    parts = [
        ("aten::bmm", qk, FLOATS, "gemm", 100),
        ("aten::mul", "[[2, 4, 128, 128], []]", FLOATS, "elementwise", 50),
        ("aten::_softmax", scores, '["float", "", ""]', "softmax_warp_forward", softmax),
        (last, pv, FLOATS, "gemm", 100),
    ]
    time = 0
    for i, (op, shapes, types, kernel, took) in enumerate(parts):
        r.op(op, -100 + 10 * i, -91 + 10 * i, shapes=shapes, types=types)
        r.kernel(kernel, time, time + took, launched=(-98 + 10 * i, -96 + 10 * i))
        time += took
    r.kernel("other", time, 1000, launched=(-20, -15))
    return r


def test_what_stands_between_the_products_is_lost(recording):
    finding = attending(recording).find("unfused-attention")
    assert (finding.lost_ns, finding.count, finding.total_ns) == (250_000, 1, 250_000)
    assert finding.evidence[0].endswith("what runs between takes 250 µs, the products 200 µs.")
    assert finding.where[0].op == "aten::_softmax"


@pytest.mark.parametrize(
    "change",
    [
        {"qk": "[[8, 128, 64], [8, 64, 64]]"},
        {"scores": "[[128, 128], [], []]"},
        {"pv": "[[8, 64, 128], [8, 128, 64]]"},
        {"pv": "[]"},
        {"last": "aten::mm"},
    ],
)
def test_shapes_that_do_not_fit_are_no_attention(recording, change):
    assert attending(recording, **change).find("unfused-attention") is None


def test_little_time_is_not_worth_a_line(recording):
    assert attending(recording, softmax=1).find("unfused-attention").total_ns == 51_000
    short = attending(recording, softmax=1)
    short.rows = [row for row in short.rows if row.name != "elementwise"]
    assert short.find("unfused-attention") is None


def test_the_fused_operator(recording):
    (p,) = attending(recording).prescribe("unfused-attention")
    assert p.id == "fused-attention"
    assert "scaled_dot_product_attention" in p.after
    assert p.saves_ns == (125_000, 250_000)


@pytest.mark.parametrize(("last", "found"), [("aten::bmm", 250_000), ("aten::mm", None)])
def test_without_shapes_the_order_shows_it(recording, last, found):
    r = attending(recording, last=last)
    for row in r.rows:
        row.values = {key: value for key, value in row.values.items() if key not in ("shapes", "types")}
    finding = r.find("unfused-attention")
    assert (finding.total_ns, finding.confidence, len(finding.evidence)) == (250_000, "medium", 1) if found else True
    assert (finding is None) == (found is None)


Q, K, S, V = [8, 4, 64, 16], [8, 4, 16, 64], [8, 4, 64, 64], [8, 4, 64, 16]
WRITTEN = (
    ("aten::matmul", [Q, K]),
    ("aten::mul", [S, []]),
    ("aten::masked_fill", [S, [1, 1, 64, 64], []]),
    ("aten::softmax", [S, [], []]),
    ("aten::matmul", [S, V]),
)
BACKWARD_US = {"aten::matmul": 90, "aten::mul": 5, "aten::masked_fill": 15, "aten::softmax": 30}


def attending_on_a_cpu(recording, operators=WRITTEN, *, drawing=False):
    """Return the findings in two steps of 1000 µs: operators of 20 µs, and the functions of their backward pass."""
    r = recording(devices=())
    for step in range(2):
        at, number = 1000 * step, 100 * step
        r.step(step + 1, at, at + 1000)
        for i, (name, shapes) in enumerate(operators):
            begin = at + 20 * i
            detail = f"model.py({40 + i}): forward"
            r.op(name, begin, begin + 20, sequence=number + i, shapes=json.dumps(shapes), detail=detail)
            if name == "aten::dropout" and drawing:
                r.op("aten::native_dropout", begin + 1, begin + 19, sequence=number + i)
        r.op("aten::sum", at + 400, at + 420, sequence=number + len(operators), shapes=json.dumps([V]))
        begin = at + 500
        for i, (name, _) in reversed([*enumerate(operators)]):
            end = begin + BACKWARD_US.get(name, 0)
            r.op("autograd::engine::evaluate_function: XBackward0", begin, end)
            r.op("XBackward0", begin, end, sequence=number + i)
            begin = end
    capture = r.capture(attribution=r)
    t = build_tables(capture, capture.trace)
    return unfused_attention.find(t), t


def test_without_a_device_operators_between_the_products_are_lost_with_their_backward_pass(recording):
    """Three operators of 20 µs, and functions of 5, 15 and 30."""
    (finding,), t = attending_on_a_cpu(recording)
    assert finding.lost_ns == 110_000
    assert finding.title == "Attention runs as separate operators around a softmax"
    assert [(w.file, w.line, w.op) for w in finding.where] == [("model.py", 43, "aten::softmax")]
    (p,) = prescribe(finding, t.steps.step_ns, program_of(t))
    assert (p.id, p.saves_ns) == ("fused-attention", (55_000, 110_000))
    assert "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)" in p.after
    assert p.safety.startswith("may change the numbers: the fused kernel adds in another order")


def test_without_a_mask_none_is_passed(recording):
    (finding,), t = attending_on_a_cpu(recording, [op for op in WRITTEN if op[0] != "aten::masked_fill"])
    (p,) = prescribe(finding, t.steps.step_ns, program_of(t))
    assert p.after == "y = F.scaled_dot_product_attention(q, k, v)"


@pytest.mark.parametrize(("drawing", "is_found"), [(True, False), (False, True)])
def test_a_dropout_that_draws_keeps_the_operators_of_a_cpu_apart(recording, drawing, is_found):
    operators = [*WRITTEN[:4], ("aten::dropout", [S, [], []]), WRITTEN[4]]
    found, _ = attending_on_a_cpu(recording, operators, drawing=drawing)
    assert bool(found) == is_found


@pytest.mark.parametrize(
    ("place", "operator"),
    [
        (0, ("aten::matmul", [Q, [8, 4, 16, 32]])),  # makes another number of scores
        (0, ("aten::linear", [[8, 4, 64, 16], [64, 16], []])),  # logits
        (3, ("aten::softmax", [[8, 4, 64, 8], [], []])),  # a gate of eight
        (3, ("aten::log_softmax", [S, [], []])),
        (4, ("aten::matmul", [Q, K])),
        (4, ("aten::sum", [S])),
    ],
)
def test_without_a_device_what_is_no_attention(recording, place, operator):
    operators = list(WRITTEN)
    operators[place] = operator
    assert attending_on_a_cpu(recording, operators)[0] == []


def test_without_a_device_little_of_the_step_is_not_worth_a_line(recording, monkeypatch):
    monkeypatch.setattr(unfused_attention, "MIN_HOST_SHARE", 0.111)  # of 11 %
    assert attending_on_a_cpu(recording)[0] == []
