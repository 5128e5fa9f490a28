"""unfused-attention: product, softmax, product, told by their order."""

import pytest

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
    assert (finding.lost_ns, finding.count, finding.total_ns) == (250_000, 2, 250_000)
    assert finding.evidence[1].endswith("what runs between takes 250 µs, the products 200 µs.")
    assert finding.where[0].op == "aten::_softmax"


def test_a_softmax_before_a_product_that_is_not_batched_is_no_attention(recording):
    assert attending(recording, last="aten::mm").find("unfused-attention") is None


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
    assert (finding.total_ns, finding.confidence, len(finding.evidence)) == (250_000, "medium", 2) if found else True
    assert (finding is None) == (found is None)
