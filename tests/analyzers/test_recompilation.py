"""recompilation: compile frames or code loads in half of the steps or more."""

import pytest

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


SIZE = "tensor 'x' size mismatch at index 1. expected {}, actual {}"
NUMBER = "self.updates == {}"


@pytest.fixture
def compiling(recording, run_steps):
    """Return what makes a run of steps of 10 ms, of which some compile for 100 ms as a guard fails."""

    def make(guards, *, num=80, first=1):
        r = recording(devices=())
        r.step(1, 0, 10_000)
        r.op("aten::mm", 0, 10_000)
        r.run = run_steps([110.0 if i in guards else 10.0 for i in range(num)], backwards=[1] * num)
        noted = [
            {
                "began_ns": int(r.run.began_ns[i]) + 1_000_000,
                "took_ns": 100_000_000,
                "file": "/home/me/net.py",
                "line": 30,
                "function": "forward",
                "version": first + n,
                "guard": guard,
                "at": ("/home/me/net.py", 36),
            }
            for n, (i, guard) in enumerate(guards.items())
        ]
        r.with_info(compiled={"compilations": noted})
        return r

    return make


def test_a_number_that_changes_now_and_then_is_named_by_what_the_whole_run_compiles(compiling):
    r = compiling({i: NUMBER.format(i - 10) for i in range(10, 80, 10)})
    finding = r.find("recompilation")
    assert finding.title == "torch.compile compiles forward again in 6 of 60 steps"
    assert finding.lost_ns == pytest.approx(10e6)
    assert finding.share == pytest.approx(0.5)
    assert (finding.where[0].file, finding.where[0].line) == ("/home/me/net.py", 36)
    assert finding.evidence[1] == "The guard that failed: self.updates == 60."
    d = r.diagnosis()
    assert d.dominant == "recompilation"
    assert [f.rule for f in d.findings if f.rule in ("warm-up", "periodic-stall")] == []
    assert d.step_ns == pytest.approx(20e6), "the steps without compiling, and its share of each"
    (p,) = r.prescribe("recompilation")
    assert (p.id, p.mean_step_ns) == ("steady-guard", pytest.approx(20e6))


def test_sizes_that_still_come_are_named(compiling):
    r = compiling({i: SIZE.format(i, i + 1) for i in (2, 5, 30, 45, 70)})
    assert r.find("recompilation").title == "torch.compile compiles forward again in 3 of 60 steps"
    (p,) = r.prescribe("recompilation")
    assert p.id == "stop-recompiling"


@pytest.mark.parametrize(
    "guards",
    [
        {i: SIZE.format(i, i + 1) for i in (1, 2, 4, 7, 9, 12, 15)},  # sizes that have all come
        {40: SIZE.format(64, 17), 41: "GLOBAL_STATE changed: grad_mode", 60: "self.training == True"},
        {30: SIZE.format(1, 2), 50: SIZE.format(2, 3)},  # twice may be chance
    ],
)
def test_the_start_and_what_comes_once_is_none(compiling, guards):
    r = compiling(guards)
    assert r.find("recompilation") is None
    assert [f.rule for f in r.diagnosis().findings if f.rule in ("recompilation", "periodic-stall")] == []


def test_more_versions_than_torch_makes_by_itself_are_no_start(compiling):
    r = compiling({i: SIZE.format(i, i + 1) for i in range(0, 27, 3)})
    assert r.find("recompilation").title == "torch.compile compiles forward again in 9 of 80 steps"


def test_a_first_compilation_later_in_the_run_is_none(compiling):
    assert compiling({40: ""}, first=0).find("recompilation") is None
