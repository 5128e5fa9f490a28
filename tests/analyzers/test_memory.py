"""Memory of the steady steps: its peak, and what it consists of then."""

import pytest

from diagnose.analyzers.common.memory import BEFORE, memory_of
from diagnose.model.events import Device

MB = 1_000_000
GPU = Device(0, "NVIDIA A100", 1000 * MB, 108, (8, 0))


def training(recording, *, device=GPU):
    """Return a step: batch copied, forward, backward, optimizer; 100 MB were there before it."""
    r = recording(devices=[device])
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    r.op("aten::to", 10, 40)
    r.memory(20, 5 * MB, 1, 105 * MB, reserved=400 * MB)
    r.copy("Memcpy HtoD (Pinned -> Device)", 31, 35, launched=(30, 31))
    r.op("aten::linear", 100, 200)
    r.memory(110, 40 * MB, 2, 145 * MB, reserved=400 * MB)  # freed in the backward: an activation
    r.memory(120, 7 * MB, 3, 152 * MB, reserved=400 * MB)
    r.memory(130, -7 * MB, 3, 145 * MB, reserved=400 * MB)  # freed in the forward, before the peak
    r.op("autograd::engine::evaluate_function: AddmmBackward0", 400, 600)
    r.memory(410, 30 * MB, 4, 175 * MB, reserved=400 * MB)  # a gradient
    r.memory(420, 20 * MB, 5, 195 * MB, reserved=500 * MB)  # freed in the backward: workspace; here is the peak
    r.memory(430, -20 * MB, 5, 175 * MB, reserved=500 * MB)
    r.memory(500, -40 * MB, 2, 135 * MB, reserved=500 * MB)
    r.annotation("Optimizer.step#AdamW.step", 700, 800)
    r.memory(710, 9 * MB, 6, 144 * MB, reserved=500 * MB)
    r.memory(900, -30 * MB, 4, 114 * MB, reserved=500 * MB)
    r.memory(910, -5 * MB, 1, 109 * MB, reserved=500 * MB)
    return r


def test_the_peak_and_what_it_consists_of(recording):
    memory = memory_of(training(recording).tables())
    assert (memory.device, memory.peak_allocated, memory.peak_reserved) == ("NVIDIA A100", 195 * MB, 500 * MB)
    assert (memory.capacity, memory.peak_at_ns) == (1000 * MB, 420_000)
    assert memory.by_category == {
        BEFORE: 100 * MB, "activations": 40 * MB, "gradients": 30 * MB, "workspace": 20 * MB, "input": 5 * MB,
    }  # fmt: skip
    assert sum(memory.by_category.values()) == memory.peak_allocated
    assert [(where.op, size) for where, size in memory.by_place] == [
        ("autograd::engine::evaluate_function: AddmmBackward0", 50 * MB),
        ("aten::linear", 40 * MB),
        ("aten::to", 5 * MB),
    ]  # fmt: skip
    assert memory.timeline[0] == (20_000, 105 * MB, 400 * MB)


def test_each_category_is_followed_over_time(recording):
    memory = memory_of(training(recording).tables())
    over_time = memory.categories_over_time
    assert [time // 1000 for time, *_ in memory.timeline][:5] == [20, 110, 120, 130, 410]
    assert [size // MB for size in over_time["activations"]] == [0, 40, 40, 40, 40, 40, 40, 0, 0, 0, 0]
    assert [size // MB for size in over_time["workspace"]] == [0, 0, 7, 0, 0, 20, 0, 0, 0, 0, 0]
    assert [sum(sizes) for sizes in zip(*over_time.values(), strict=True)] == [size for _, size, _ in memory.timeline]


def test_the_optimizers_state_and_its_workspace(recording):
    r = training(recording)
    r.memory(720, 80 * MB, 7, 224 * MB, reserved=500 * MB)  # now here is the peak
    r.memory(790, -80 * MB, 7, 144 * MB, reserved=500 * MB)
    held = memory_of(r.tables()).by_category
    assert (held["optimizer state"], held["workspace"], held["gradients"]) == (9 * MB, 80 * MB, 30 * MB)


@pytest.mark.parametrize(
    ("info", "held"),
    [
        ({"param_bytes": 30 * MB, "state_bytes": 60 * MB}, {"parameters": 30, "optimizer state": 60, "others": 10}),
        (
            {"param_bytes": 20 * MB, "state_bytes": 40 * MB, "others": [{"param_bytes": 10 * MB, "state_bytes": 0}]},
            {"parameters": 30, "optimizer state": 40, "others": 30},
        ),
        ({"param_bytes": 80 * MB, "state_bytes": 160 * MB}, {"parameters": 80, "optimizer state": 20}),
        ({"param_bytes": 0, "state_bytes": 0}, {"parameters, optimizer state": 100}),
    ],
)
def test_a_capture_knows_what_was_there_before(recording, info, held):
    r = training(recording)
    r.with_info(optimizer={"class": "AdamW", **info})
    memory = memory_of(r.tables())
    assert sum(memory.by_category.values()) == memory.peak_allocated
    for name, size in held.items():
        assert [value for category, value in memory.by_category.items() if name in category] == [size * MB]


def test_an_address_that_is_used_again(recording):
    r = recording(devices=[GPU])
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    for i in range(3):
        r.memory(100 + 100 * i, 10 * MB, 1, 10 * MB)
        r.memory(150 + 100 * i, -10 * MB, 1, 0)
    memory = memory_of(r.tables())
    assert (memory.peak_allocated, memory.peak_reserved) == (10 * MB, None)
    assert memory.by_category == {"workspace": 10 * MB, BEFORE: 0}


def test_without_events_there_is_nothing_to_say(recording):
    r = recording(devices=[GPU])
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    assert memory_of(r.tables()) is None


def test_old_files_without_totals_say_nothing(recording):
    r = recording(devices=[GPU])
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(2, 3))
    r.memory(100, 10 * MB, 1, -1)
    assert memory_of(r.tables()) is None


def test_it_comes_from_the_attribution_window_where_the_light_one_lacks_it(recording):
    light = recording(devices=[GPU])
    light.step(1, 0, 1000)
    light.kernel("gemm", 0, 1000, launched=(2, 3))
    assert light.diagnosis(training(recording)).memory.peak_allocated == 195 * MB


def test_a_recorded_model(recorded):
    memory = memory_of(recorded.tables["tl_owlv2_h100"])
    assert memory.peak_allocated == 2_707_847_680
    assert memory.peak_reserved == pytest.approx(3.6e9, rel=0.01)
    assert {where.op for where, _ in memory.by_place[:2]} == {"aten::bmm", "aten::softmax"}
    assert memory.by_place[0][0].library.startswith("transformers/models/owlv2/modeling_owlv2.py:410 ")


def test_categories_sum_to_the_peak_of_every_recorded_model(recorded, extent):
    known = [m for name in recorded.of(extent) if (m := memory_of(recorded.tables[name]))]
    assert len(known) >= {"small": 3, "all": 6}[extent]
    for memory in known:
        assert sum(memory.by_category.values()) == memory.peak_allocated
        assert len(memory.timeline) <= 600
