"""recompilation: compile frames or code loads in half of the steps or more."""

import pytest

from diagnose.model.capture import CaptureInfo
from diagnose.model.records import CompiledRecord, VersionsRecord

FRAME = "torch/_dynamo/convert_frame.py(700): _compile"


def steps(recording, num, compiled, *, devices=None, mark="frame", name=FRAME):
    """Return steps of 1000 µs whose device idles from 300 to 700, with 300 µs of compiling in some of them."""
    r = recording() if devices is None else recording(devices=devices)
    for i in range(num):
        at = 1000 * i
        r.step(i, at, at + 1000)
        if devices is None:
            r.kernel("gemm", at, at + 300, launched=(at - 20, at - 15))
            r.kernel("relu", at + 700, at + 1000, launched=(at + 690, at + 695))
        r.op("aten::mm", at, at + 350)
        r.op("aten::relu", at + 650, at + 1000)
        getattr(r, mark if i in compiled else "op")(name if i in compiled else "aten::mm", at + 350, at + 650)
    return r


def test_compiling_in_half_of_the_steps(recording):
    r = steps(recording, 4, {1, 3})
    assert r.booked() == {"launch-bound": 1_000_000, "recompilation": 600_000}
    finding = r.find("recompilation")
    assert (finding.lost_ns, finding.count, finding.total_ns, finding.median_ns) == (150_000, 2, 600_000, 300_000)
    assert [e.step for e in finding.examples] == [1, 3]
    assert finding.examples[0].start_ns == 350_000


def test_compiling_in_fewer_steps_is_a_warm_up(recording):
    assert steps(recording, 4, {3}).booked() == {"launch-bound": 1_300_000, "warm-up": 300_000}


@pytest.mark.parametrize(("compiled", "rule"), [({0, 1, 2, 3}, "recompilation"), ({0}, "warm-up")])
def test_without_marks_the_optimizers_steps_part_the_recording(recording, compiled, rule):
    r = steps(recording, 4, compiled)
    r.rows = [row for row in r.rows if not row.name.startswith("ProfilerStep#")]
    for i in range(4):
        r.annotation("Optimizer.step#AdamW.step", 1000 * i + 900, 1000 * i + 1000)
    assert r.booked()[rule] == 300_000 * len(compiled)


def test_one_step_alone_cannot_show_that_it_recurs(recording):
    assert "recompilation" not in steps(recording, 1, {0}).booked()


@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("annotation", "entire_frame_compile (dynamo_timed)"),
        ("annotation", "backend_compile (dynamo_timed)"),
        ("frame", "torch/_inductor/compile_fx.py(1000): compile_fx"),
        ("frame", "triton/compiler/compiler.py(220): compile"),
        ("runtime", "cuModuleLoadData"),
    ],
)
def test_marks_of_a_compilation(recording, mark, name):
    assert steps(recording, 2, {0, 1}, mark=mark, name=name).booked()["recompilation"] == 600_000


@pytest.mark.parametrize("name", ["Torch-Compiled Region: 0/0", "TorchDynamo Cache Lookup", "CompiledFxGraph"])
def test_running_compiled_code_is_none(recording, name):
    assert "recompilation" not in steps(recording, 2, {0, 1}, mark="annotation", name=name).booked()


@pytest.mark.parametrize("function", ["run", "copy_misaligned_inputs"])
def test_frames_of_the_compiler_s_file_that_run_its_code_are_none(recording, function):
    frame = f"torch/_inductor/compile_fx.py(979): {function}"
    assert "recompilation" not in steps(recording, 2, {0, 1}, mark="frame", name=frame).booked()


def test_dynamic_shapes_are_prescribed(recording):
    (p,) = steps(recording, 2, {0, 1}).prescribe("recompilation")
    assert p.id == "stop-recompiling"
    assert p.title == "Mark the changing dimension dynamic so that one graph serves all sizes"
    assert "mark_dynamic" in p.after
    assert p.saves_ns == (pytest.approx(160_000), 300_000), "kernels for all sizes may add a fifth of the other 700 µs"


def test_without_a_device_the_compilation_itself_is_the_loss(recording):
    r = steps(recording, 2, {0, 1}, devices=())
    assert r.booked()["recompilation"] == 600_000
    assert r.diagnosis().dominant == "recompilation"


@pytest.mark.parametrize(
    ("versions", "long", "is_named"), [(4, {18, 28}, True), (2, {18, 28}, False), (4, {18}, False)]
)
def test_steps_that_are_long_now_and_then_are_compilations_where_code_has_versions(
    recording, run_steps, versions, long, is_named
):
    r = recording(devices=())
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    r.run = run_steps([500.0 if i in long else 10.0 for i in range(40)])
    one = VersionsRecord(file="train.py", line=5, function="forward", num=versions, guards=("self.tau == 10",))
    r.info = CaptureInfo(compiled=CompiledRecord(versions=(one,), took_s=0.4 * versions))
    finding = r.find("recompilation")
    assert (finding is not None) is is_named
    if is_named:
        assert finding.lost_ns == pytest.approx(2 * 400e6 / 38)
        assert finding.evidence[-1].endswith("The guard that failed last: self.tau == 10.")
        assert [p.id for p in r.prescribe("recompilation")] == ["steady-guard"]
