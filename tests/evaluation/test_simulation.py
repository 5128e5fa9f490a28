"""The simulated machine: numbers that a reader can add up, and what holds for every run."""

import random
from dataclasses import replace

import pytest
from simulation import kernel_names
from simulation.cases import draw_case
from simulation.checks import faults
from simulation.dialects import DIALECTS
from simulation.engine import run
from simulation.instructions import Emitter
from simulation.layers import Shaper
from simulation.machine import GPUS, Machine, draw_machine
from simulation.scoring import names_of
from simulation.steps import _up_to_saved
from simulation.timeline import Levers, Loader, Program
from simulation.workloads import Block

US = 1_000
EXACT = Machine(GPUS[1], first_use_ns=0, host_noise=0, device_noise=0)
NO_LEVERS = Levers()


def launch(emitter, name, us, **kw):
    emitter.launch(name, "other", us * US, **kw)


def ran(*ranks, machine=EXACT, steps=1, loader=None, levers=NO_LEVERS):
    """Run one step of each rank; a rank is a function that emits it."""
    programs = []
    for emit in ranks:
        emitter = Emitter()
        emit(emitter)
        programs.append(tuple(emitter.instructions))
    done = run(Program(tuple(programs), loader, steps=steps, skipped=0), machine, levers)
    assert not faults(done)
    return done


def spans(tasks):
    return [(task.start / US, task.end / US) for task in tasks]


def test_three_kernels_and_a_wait():
    def step(emitter):
        launch(emitter, "a", 10)  # called 0 to 5, with the device at 8
        launch(emitter, "b", 2)  # called 5 to 10, but the stream is busy until 18, and then 1 µs apart
        launch(emitter, "c", 20)
        emitter.sync()  # drained at 42, back on the host 6 µs later

    log = ran(step).ranks[0]
    assert spans(log.tasks) == [(8, 18), (19, 21), (22, 42)]
    assert [(call.start / US, call.end / US) for call in log.calls[:4]] == [(0, 5), (5, 10), (10, 15), (15, 48)]


def test_an_operator_costs_what_the_host_makes_of_it():
    def step(emitter):
        with emitter.op("aten::add", 10 * US):
            launch(emitter, "a", 1)

    log = ran(step, machine=replace(EXACT, host=2.0, record_ns=1 * US)).ranks[0]
    (event,) = log.events
    assert (event.name, event.start, event.end) == ("aten::add", 0, 26 * US)  # 20 of its own, 5 to launch, 1 to record
    assert log.calls[0].start == 13 * US


def test_the_host_waits_where_the_queue_is_full():
    def step(emitter):
        for _ in range(4):
            launch(emitter, "a", 100)

    log = ran(step, machine=replace(EXACT, queue_depth=2)).ranks[0]
    assert [call.end / US for call in log.calls[:4]] == [5, 10, 108, 209]


def test_a_pageable_copy_holds_the_host_and_a_pinned_one_does_not():
    machine = replace(EXACT, pageable_gbps=5.0, pinned_gbps=20.0)

    def copied(*, pinned):
        def step(emitter):
            emitter.copy("HtoD", 1_000_000, pinned=pinned, blocking=False)

        log = ran(step, machine=machine).ranks[0]
        return log.tasks[0].end - log.tasks[0].start, log.calls[0].end

    assert copied(pinned=True) == (51_500, 8_000)
    assert copied(pinned=False) == (201_500, 212_500)


def test_a_stream_waits_for_the_event_of_another():
    def step(emitter):
        launch(emitter, "a", 50)
        emitter.order(0, 3)
        launch(emitter, "b", 5, stream=3)

    first, second = ran(step).ranks[0].tasks
    assert (first.end, second.start) == (58_000, 59_000)


def test_a_collective_ends_on_all_ranks_after_the_last_one_came():
    machine = replace(EXACT, link_gbps=10.0, collective_ns=20 * US)

    def rank(late_us):
        def step(emitter):
            emitter.host("python", late_us * US)
            emitter.collective("allreduce", 100_000)

        return step

    early, late = (log.tasks[0] for log in ran(rank(0), rank(70), machine=machine).ranks)
    assert (early.start, late.start) == (8_000, 78_000)
    assert (early.end, late.end) == (108_000, 108_000)


def test_a_barrier_holds_the_early_host():
    def rank(late_us):
        def step(emitter):
            emitter.host("python", late_us * US)
            emitter.barrier()

        return step

    done = ran(rank(0), rank(40))
    assert [log.step_ends[0] for log in done.ranks] == [65_000, 65_000]


@pytest.mark.parametrize(
    ("loader", "steps_us"),
    [(Loader(0, 300 * US), [300, 300, 300]), (Loader(1, 300 * US, 10 * US), [310, 300, 300]),
     (Loader(3, 300 * US, 10 * US), [310, 10, 10])],
)  # fmt: skip
def test_workers_make_batches_side_by_side(loader, steps_us):
    log = ran(lambda emitter: emitter.load(), steps=3, loader=loader).ranks[0]
    assert [(end - start) / US for start, end in zip(log.step_starts, log.step_ends, strict=True)] == steps_us


def test_giving_memory_back_waits_for_the_device():
    def step(emitter):
        launch(emitter, "a", 500)
        emitter.free()
        emitter.malloc(1)

    calls = ran(step).ranks[0].calls
    assert [(call.api, call.end / US) for call in calls[1:3]] == [("free", 568), ("malloc", 678)]


def test_first_uses_of_kernels_load_their_code():
    def step(emitter):
        launch(emitter, "a", 1)

    log = ran(step, machine=replace(EXACT, first_use_ns=900 * US), steps=2).ranks[0]
    assert [call.end - call.start for call in log.calls[:2]] == [905_000, 5_000]


def test_a_free_host_and_waits_that_do_not_wait():
    def step(emitter):
        with emitter.op("aten::item", 10 * US):
            launch(emitter, "a", 100)
            emitter.sync()

    assert ran(step, steps=2, levers=Levers(host_rest=0.0)).step_ns == 103_000  # the latency and the kernel
    assert ran(step, steps=3, levers=Levers(waits=False)).step_ns == pytest.approx(101_000)


@pytest.mark.parametrize("index", [1, 2, 9, 14, 20, 26, 33])
def test_drawn_cases_keep_every_law(index):
    situation = draw_case(1, index).situation
    recorded = situation.recorded()
    assert not faults(recorded)
    assert recorded.step_ns == pytest.approx(situation.step_ns())  # nothing written down, the same times
    for waste in situation.wastes:
        assert situation.step_ns(frozenset({waste.kind})) <= recorded.step_ns * 1.02, waste


def test_a_seed_draws_the_same_machine_case_and_times():
    assert draw_machine(random.Random(3)) == draw_machine(random.Random(3))
    one, other = draw_case(1, 5), draw_case(1, 5)
    assert (one.dialect, one.situation.wastes) == (other.dialect, other.situation.wastes)
    assert one.situation.recorded().ranks[0].tasks == other.situation.recorded().ranks[0].tasks
    assert draw_case(2, 5).situation.machine != one.situation.machine


def test_the_checks_find_what_they_are_for():
    def step(emitter):
        launch(emitter, "a", 10)
        launch(emitter, "b", 10)
        emitter.sync()

    done = ran(step)
    log = done.ranks[0]
    log.tasks[1] = log.tasks[1]._replace(start=0.0)
    log.calls[2] = log.calls[2]._replace(end=0.0)
    assert len(faults(done)) >= 3


NVIDIA = [gpu for gpu in GPUS if gpu.vendor == "nvidia"]


@pytest.mark.parametrize("gpu", NVIDIA, ids=lambda gpu: gpu.name)
def test_float32_convolutions_are_not_named_as_those_of_tensor_cores(gpu):
    name = kernel_names.convolution(gpu, "single")
    assert "tensorop" not in name
    assert "tf32" not in name


@pytest.mark.parametrize("precision", ["half", "tf32", "single"])
@pytest.mark.parametrize("gpu", NVIDIA, ids=lambda gpu: gpu.name)
def test_fused_attention_is_no_slower_than_written_out(gpu, precision):
    if precision == "tf32" and not gpu.tf32_tflops:
        return
    shaper = Shaper(replace(EXACT, gpu=gpu), precision)
    fused, written = (shaper.attention("a", (4, 8, 512, 64), written=written) for written in (False, True))
    taken = [sum(kernel.ns for op in layer.forward for kernel in op.kernels) for layer in (fused, written)]
    assert taken[0] <= taken[1]


def test_a_checkpointed_block_runs_again_up_to_what_saves_something():
    shaper = Shaper(EXACT)
    linear, total = shaper.linear("Linear_0", 8, 8, 8), shaper.add("Residual_0", 64)
    assert _up_to_saved(Block("Block_0", (linear, total))) == (linear,)
    assert _up_to_saved(Block("Block_0", (linear, total, linear))) == (linear, total, linear)


def test_no_machine_copies_faster_than_its_link():
    machines = [draw_machine(random.Random(seed)) for seed in range(50)]
    assert all(m.pageable_gbps <= m.pinned_gbps <= 0.9 * m.gpu.pcie_gbps for m in machines)


@pytest.mark.parametrize(("stacks", "named"), [("none", True), ("text", True), ("frames", False)])
def test_a_pause_has_a_name_of_its_own_only_where_frames_are_events(stacks, named):
    dialect = next(d for d in DIALECTS if d.stacks == stacks)
    assert ("python-stall" in names_of("collector", dialect)) is named
