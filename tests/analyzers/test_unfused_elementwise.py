"""unfused-elementwise: different pointwise operators in a row over tensors of one size."""

import pytest

SIZE = {"shapes": "[[8000, 4000], [8000, 4000]]", "types": '["float", "float"]'}
NAME = "vectorized_elementwise_kernel"
RUN = (("aten::mul", 100), ("aten::add", 200), ("aten::relu", 100))


def computing(recording, run=RUN, *, name=NAME, stream=None, optimizer=False, **texts):
    """Return a step that begins with the run, then a product up to 1000 µs."""
    r = recording()
    r.step(1, 0, 1000)
    if optimizer:
        r.annotation("Optimizer.step#SGD.step", -100, 0)
    time = 0
    for i, (op, took) in enumerate(run):
        at = -100 + 10 * i
        r.op(op, at, at + 9, **(SIZE | texts))
        r.kernel(name, time, time + took, launched=(at + 2, at + 4), stream=stream[i] if stream else 7)
        time += took
    r.kernel("gemm", time, 1000, launched=(-20, -15))
    return r


def test_three_operators_become_one_pass(recording):
    finding = computing(recording).find("unfused-elementwise")
    # 100 + 200 + 100 µs, of which the longest stays
    assert (finding.lost_ns, finding.count, finding.total_ns) == (pytest.approx(200_000), 3, 400_000)
    assert finding.evidence == (
        "3 kernels a step: 400 µs of it, 40 % of the busy time.",
        "mul > add > relu: 400 µs a step.",
    )
    assert finding.where[0].op == "aten::add"
    assert finding.confidence == "medium"


@pytest.mark.parametrize(
    "change",
    [
        {"run": (("aten::mul", 200), ("aten::mul", 200))},  # may be a loop over unrelated tensors
        {"run": (("aten::mul", 400),)},
        {"run": (("aten::mul", 45), ("aten::add", 45))},  # less than 10 % of the busy time
        {"name": "gemm"},
        {"name": "reduce_kernel"},
        {"stream": (7, 8, 9)},
        {"optimizer": True},
        {"shapes": "[]"},
    ],
)
def test_what_is_no_run(recording, change):
    assert computing(recording, **change).find("unfused-elementwise") is None


def test_a_single_operator_far_below_the_bandwidth_is_one(recording):
    """It moves 384 MB, which take 188 µs at the bandwidth of 2,039 GB/s, and 235 at four fifths of it."""
    finding = computing(recording, (("aten::mul", 600),)).find("unfused-elementwise")
    assert finding.title == "Pointwise kernels run far below the device's bandwidth"
    assert finding.lost_ns == pytest.approx(600_000 - 384e6 / 2039 / 0.8, abs=2)
    assert finding.evidence[1] == "aten::mul [[8000, 4000], [8000, 4000]]: 640 GB/s, 31 % of the device's bandwidth."
    assert finding.where[0].op == "aten::mul"


@pytest.mark.parametrize(
    "change",
    [
        {"run": (("aten::mul", 450),)},  # 42 % of the bandwidth
        {"run": (("aten::copy_", 600),)},  # copies have rules of their own
        {"run": (("aten::mul", 600),), "name": "gemm"},
        {"run": (("aten::mul", 600),), "optimizer": True},
        {"run": (("aten::mul", 600),), "shapes": "[]"},
    ],
)
def test_a_single_operator_that_is_none(recording, change):
    assert computing(recording, **change).find("unfused-elementwise") is None


def test_another_size_ends_a_run(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i, (op, rows) in enumerate([("aten::mul", 4_000_000), ("aten::add", 4_000_000), ("aten::relu", 3_900_000)]):
        r.op(op, -100 + 10 * i, -91 + 10 * i, shapes=f"[[{rows}, 10]]", types='["float"]')
        r.kernel(NAME, 300 * i, 300 * i + 300, launched=(-98 + 10 * i, -96 + 10 * i))
    assert r.find("unfused-elementwise").total_ns == 600_000


def test_the_model_is_compiled(recording):
    (p,) = computing(recording).prescribe("unfused-elementwise")
    assert p.id == "compile-model"
    assert p.saves_ns == pytest.approx((80_000, 200_000))


@pytest.mark.parametrize(("took", "total"), [(200, 500_000), (201, None)])
def test_without_shapes_kernels_of_about_the_same_time_are_of_one_size(recording, took, total):
    r = computing(recording, (("aten::mul", 100), ("aten::add", took), ("aten::relu", 200)))
    for row in r.rows:
        row.values = {key: value for key, value in row.values.items() if key not in ("shapes", "types")}
    finding = r.find("unfused-elementwise")
    assert finding.confidence == "low"
    assert finding.total_ns == (total or 401_000)


def test_kernels_at_the_floor_show_no_size(recording):
    r = computing(recording, (("aten::mul", 4), ("aten::add", 4), ("aten::relu", 4)))
    r.rows = [row for row in r.rows if row.name != "gemm"]
    for row in r.rows:
        row.values = {key: value for key, value in row.values.items() if key not in ("shapes", "types")}
    assert r.find("unfused-elementwise") is None


def test_an_operator_that_seems_to_end_within_the_launch_did_not_launch(recording):
    # Rounded times: aten::empty ends a moment after the launch behind it begins.
    r = recording()
    r.step(1, 0, 1000)
    for i, op in enumerate(["aten::mul", "aten::add"]):
        at = -100 + 10 * i
        r.op(op, at, at + 9, **SIZE)
        r.op("aten::empty", at + 1, at + 2.01)
        r.kernel(NAME, 300 * i, 300 * i + 300, launched=(at + 2, at + 4))
    assert r.find("unfused-elementwise").total_ns == 600_000


ADD, MUL = (
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{f}<float>>"
    for f in ("CUDAFunctor_add", "MulFunctor")
)


def graphed(recording, nodes):
    """Return a step of 1000 µs that is one graph: nodes of 100 µs (kernel, grid, factor), then a product."""
    r = recording()
    r.step(1, 0, 1000)
    time, tasks = 0, []
    for name, grid, factor in nodes:
        tasks.append(r.kernel(name, time, time + 100 * factor, grid=grid))
        time += 100 * factor
    tasks.append(r.kernel("gemm", time, 1000, grid=108))
    r.runtime("cudaGraphLaunch", -10, -5, launches=tasks)
    return r


def test_nodes_of_a_graph_of_one_grid_become_one_pass(recording):
    r = graphed(recording, [(ADD, 512, 1), (MUL, 512, 1), (ADD, 512, 1)])
    finding = r.find("unfused-elementwise")
    assert (finding.lost_ns, finding.total_ns, finding.confidence) == (pytest.approx(200_000), 300_000, "low")
    assert finding.title == "Pointwise operators of a CUDA graph move more memory than a fused pass"
    assert finding.evidence[1] == "add > Mul > add: 300 µs a step."
    (p,) = r.prescribe("unfused-elementwise")
    assert p.title == "Compile what the CUDA graph captures, so that pointwise nodes become one pass"


@pytest.mark.parametrize(
    "nodes",
    [
        [(ADD, 512, 1), (MUL, 256, 1)],  # other sizes
        [(ADD, 512, 1), (MUL, 512, 3)],  # other times
        [(ADD, 512, 1), (ADD, 512, 1)],  # may be a loop over unrelated tensors
        [("triton_poi_fused_add_0", 512, 1), ("triton_poi_fused_mul_1", 512, 1)],  # a compiler's
        [(ADD, -1, 1), (MUL, -1, 1)],  # not known
    ],
)
def test_what_is_no_run_of_nodes(recording, nodes):
    assert graphed(recording, nodes).find("unfused-elementwise") is None
