"""small-collectives: more than 10 a step of under 100 µs, with nothing beside them."""

from dataclasses import replace

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.pipeline.find import build_tables
from tests.conftest import analyzer
from tests.dataflow.table import Table

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def reducing(recording, num=40, length=20, *, name=ALL_REDUCE, hidden=False):
    """Return a step of 4000 µs with ``num`` collectives, one every 100 µs."""
    r = recording()
    r.step(1, 0, 4000)
    for i in range(num):
        r.kernel(name, 100 * i, 100 * i + length, stream=20, launched=(-100 + i, -99.5 + i))
    r.kernel("gemm", 0 if hidden else 3990, 4000, launched=(-20, -19.5))
    return r


def test_forty_of_twenty_microseconds(recording):
    r = reducing(recording)
    finding = r.find("small-collectives")
    assert (finding.lost_ns, finding.count, finding.median_ns) == (pytest.approx(800_000), 40, 20_000)
    assert finding.evidence[0] == ("40 collectives of 20 µs at the median a step; nothing hides 800 µs of them.")
    assert [p.id for p in r.prescribe("small-collectives")] == ["bucket-gradients"]
    assert r.diagnosis().partition.exposed_communication == pytest.approx(0.2)


@pytest.mark.parametrize(
    "change",
    [
        {"num": 10},
        {"length": 100},
        {"num": 35, "length": 1},
        {"hidden": True},
        {"name": "gemm"},
        {"name": "void deep_ep::internode_ll::dispatch<true>(int4*)"},  # goes into no bucket
    ],  # 1: under 1 % of the step
)
def test_what_is_left_to_others(recording, change):
    assert reducing(recording, **change).find("small-collectives") is None


def on_the_host(recording, units, *, num=1, fsdp=True, elements=1000, place=None, module_of_ops=()):
    """Return tables of a step that gathers and reduces for each unit; FSDP's ranges take 20 of each 40 µs."""
    t = Table()
    for t.step in range(2):
        x = t.value(elements)
        for unit in units:
            for name in ("_allgather_base_", "_reduce_scatter_base_") if fsdp else ("allreduce_",) * num:
                more = {"module": unit} if fsdp else {"phase": "other"}
                t.op(name, x, is_collective=True, line=place or 5, **more)
        for module in module_of_ops:
            t.op("mm", x, module=module)
    r = recording(devices=())
    for step in range(2):
        begin = 1000 * step
        r.step(step + 1, begin, begin + 1000)
        for i in range(20):
            at = begin + 40 * i
            if fsdp:
                r.annotation("FSDP::pre_forward (unit)", at, at + 20)
            else:
                r.annotation("gloo:all_reduce", at, at + 20, thread="gloo")
            r.op("aten::mm", at + 20, at + 40)
    lines = {("train.py", 50): "fully_shard(module)", ("train.py", 1): "from torch import fully_shard"}
    capture = replace(r.capture(), dataflow=t.graph().flow, lines=lines)
    return build_tables(capture, capture.trace)


LAYERS = tuple(f"layers.{n}.{name}" for n in range(3) for name in ("up", "down"))


def test_fsdp_of_single_layers(recording):
    t = on_the_host(recording, LAYERS)
    (finding,) = analyzer("small-collectives").find(t)
    # 20 of 40 µs, 400 a step; three blocks need half of what six layers do
    assert finding.lost_ns == pytest.approx(200_000)
    assert finding.title == "FSDP gathers and reduces single layers: many small collectives"
    assert (
        finding.evidence[1] == "12 collectives of 4 kB (mean) a step; 6 would do. FSDP is applied to 6 single "
        "layers, such as layers.0.up."
    )
    assert (finding.where[0].line, finding.where[0].code) == (50, "fully_shard(module)")
    assert [p.id for p in prescribe(finding, 1e6)] == ["shard-blocks"]


@pytest.mark.parametrize(
    ("units", "options"),
    [
        (tuple(f"layers.{n}" for n in range(8)), {"module_of_ops": tuple(f"layers.{n}.up.0" for n in range(8))}),
        (LAYERS, {"elements": 1 << 20}),  # their bytes are what takes time
        (LAYERS[:4], {}),  # few
    ],
)
def test_whole_blocks_large_layers_and_few_of_them_are_fine(recording, units, options):
    assert analyzer("small-collectives").find(on_the_host(recording, units, **options)) == []


def test_gradients_that_a_line_reduces_one_by_one(recording):
    (finding,) = analyzer("small-collectives").find(on_the_host(recording, ("",), num=20, fsdp=False, place=9))
    assert finding.lost_ns == pytest.approx(400_000 * 19 / 20)
    assert finding.where[0].line == 9
    assert [p.id for p in prescribe(finding, 1e6)] == ["bucket-gradients"]
    assert analyzer("small-collectives").find(on_the_host(recording, ("",), num=8, fsdp=False)) == []
