"""Changes that only a trial judges, where operators take most of a step without a device."""

import pytest

from diagnose.pipeline.rank import in_channels_last
from diagnose.reports.html import render as page
from diagnose.reports.json_reading import from_json
from diagnose.reports.text import render
from tests.analyzers.flow_tables import steps, tables


def computing(recording, *operators, command="train.py --lr 1", world_size=1, ready=0.0, **flags):
    """Two steps of 1000 µs, in which operators run that are given as their names and µs."""
    r = recording(devices=())
    info = {"command": command.split(), "world_size": world_size, "sampler": {"ready_share": ready}}
    r.with_info(flags={"bfloat16": True, **flags}, **info)
    for step in range(2):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        for name, took in operators:
            r.op(name, at, at + took)
            at += took
    return r.diagnosis()


MM, CONVOLUTION, ADD = "aten::mm", "aten::mkldnn_convolution", "aten::add"


@pytest.mark.parametrize(
    ("operators", "ids"),
    [
        ([(CONVOLUTION, 400), (ADD, 300)], ("autocast", "channels-last", "compile-model")),
        ([(MM, 200), (CONVOLUTION, 290), (ADD, 300)], ("autocast", "compile-model")),
        ([(MM, 290), (ADD, 500)], ("compile-model",)),
        ([(MM, 250), (ADD, 240)], ()),  # less than half of the step is computed
    ],
)
def test_what_takes_the_step_decides(recording, operators, ids):
    assert computing(recording, *operators).to_try == ids


@pytest.mark.parametrize(
    "flags",
    [{"bfloat16": False}, {"bfloat16": None}, {"autocast": {"device": "cpu", "dtype": "torch.bfloat16"}}],
)
def test_autocast_needs_instructions_and_float32(recording, flags):
    assert computing(recording, (MM, 900), **flags).to_try == ("compile-model",)


@pytest.mark.parametrize(("ready", "threads", "there"), [(0.3, 2, True), (0.1, 2, False), (0.3, 1, False)])
def test_one_thread_is_tried_where_several_wait_for_cores(recording, ready, threads, there):
    d = computing(recording, (ADD, 900), ready=ready, num_threads=threads)
    assert ("one-thread" in d.to_try) is there


def test_a_compiled_model_is_not_compiled_again(recording):
    d = computing(recording, ("CompiledFunction", 100), ("Torch-Compiled Region: 0/0", 10), (MM, 800))
    assert d.to_try == ("autocast",)


def test_beside_a_device_what_kernels_do_answers(recording):
    r = recording()
    r.with_info(flags={"bfloat16": True})
    r.step(1, 0, 1000)
    r.op(MM, 0, 900)
    r.kernel("gemm", 5, 1000, launched=(1, 3))
    assert r.diagnosis().to_try == ()


def test_of_several_ranks_none_is_named(recording):
    assert computing(recording, (MM, 900), world_size=2).to_try == ()


def test_a_step_function_is_tried_from_python(recording):
    assert '>>> diagnose.prove(make_step, apply="autocast,compile-model")' in render(
        computing(recording, (MM, 900), command="")
    )


def test_every_report_has_them_with_the_command(recording):
    d = computing(recording, (MM, 900))
    words = "Faster kernels or settings may exist, which a recording cannot show. To try autocast, compile-model and "
    words += "time the step:"
    command = "diagnose prove --apply autocast,compile-model train.py --lr 1"
    assert words in " ".join(render(d).split())
    assert f"$ {command}" in render(d)
    assert words in page(d)
    assert f"<code>{command}</code>" in page(d)
    assert from_json(d.to_json(), source="a").to_try == d.to_try


@pytest.mark.parametrize(("stride", "there"), [((48, 1, 12, 3), True), ((48, 16, 4, 1), False), ((16, 4, 1), False)])
def test_images_in_channels_last_need_no_conversion(recording, stride, there):
    def operators(t):
        images = t.value(2, 3, 4, 4)._replace(shape=(2, 3, 4, 4)[: len(stride)], stride=stride)
        return t.op("convolution", images, ns=100)

    assert in_channels_last(tables(recording, steps(operators))) is there
