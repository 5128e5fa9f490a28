"""Diagnoses made by hand, of the forms that a report can take; numbers a reader can add up."""

from dataclasses import replace

from diagnose.model.charts import (
    CodeTime,
    CodeTimes,
    DeviceShare,
    Flame,
    Frame,
    Gap,
    HostOperator,
    KernelTime,
    Memory,
    Picture,
    Readings,
    Roofline,
    RooflinePoint,
    Span,
    StepParts,
)
from diagnose.model.diagnosis import (
    CriticalPath,
    Diagnosis,
    Example,
    Finding,
    Forecast,
    Partition,
    PathSegment,
    Prescription,
    Queue,
    RankSummary,
    Source,
    Trial,
    Waterfall,
    Where,
)
from diagnose.model.events import Note
from tests.reports.code_forms import code
from tests.reports.flow_forms import memory_of_lines

MS = 1_000_000
KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>>"
    "(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)
HOSTILE = "</script><img src=x onerror=alert(1)>[red]\x1b[31m\u2028\u202e{{ 7*7 }}'\"&\udc80"

ITEM = Where("/home/ada/project/train.py", 42, "train_step", "aten::item", ("train.py(42): train_step",), "loss.item()")
LOADER = Where("/home/ada/project/train.py", 31, "main", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")

TITLES = {
    "data-stall": "The step waits for its batch, loaded in the main process",
    "host-sync": "loss.item() makes the host wait for the device every step",
    "launch-bound": "Operators are issued slower than the device runs them",
    "exposed-copy": "Pageable copies hold the first layer back",
    "python-stall": "Python code runs between the operators",
    "kernel-latency": "The usual pause between two queued kernels",
}


def finding(rule: str, lost_ms: float, where: Where, host: str) -> Finding:
    example = Example(3, 2 * MS, int(lost_ms * MS), KERNEL, "Memcpy HtoD (Pageable -> Device)", host, where)
    return Finding(
        rule, TITLES[rule], lost_ms * MS, 20, int(lost_ms * MS) * 10, int(lost_ms * MS / 2),
        evidence=(f"20 of 20 gaps of this kind lie inside {host}", f"{lost_ms} ms of each step"),
        examples=(example, example._replace(step=4, start_ns=5 * MS)),
        where=(where, LOADER),
        facts={"num_workers": 0, "batch_size": 64},
        worth_ns=lost_ms * MS,
    )  # fmt: skip


def prescription(rule: str, least_ms: float, most_ms: float) -> Prescription:
    return Prescription(
        rule, f"{rule}-fix", "Load batches in worker processes",
        "loader = DataLoader(dataset, batch_size=64, shuffle=True)",
        "loader = DataLoader(\n    dataset,\n    batch_size=64,\n    shuffle=True,\n    num_workers=4,\n"
        "    persistent_workers=True,\n    pin_memory=True,\n)",
        (least_ms * MS, most_ms * MS), (20 - most_ms) * MS,
        "may change the numbers: augmentation draws from one generator a worker; compare the loss of two epochs",
        "other", "four free cores", "diagnose.kernels.workers",
    )  # fmt: skip


SOURCE = Source(
    "/home/ada/captures/run-7", "train.py --epochs 1", "2.13.0", ("NVIDIA H100 80GB HBM3",), found_steps_by="optimizer",
    unprofiled_step_ns=tuple(18 * MS + i * 50_000 for i in range(30)), settled_after=4,
    samples={"utilisation": 0.46, "sm_clock_mhz": 1980},
)  # fmt: skip

GAP_CAUSES = {
    "data-stall": 0.30, "host-sync": 0.12, "launch-bound": 0.06, "exposed-copy": 0.03, "python-stall": 0.02,
    "kernel-latency": 0.01,
}  # fmt: skip


def picture(step_ns: int = 20 * MS, num_kernels: int = 40) -> Picture:
    """A step that loads for 6 ms, computes with small gaps, and ends in a sync of 2.4 ms; causes as in GAP_CAUSES."""
    busy_from, busy_to = 6 * MS, step_ns - int(2.4 * MS)
    slot = (busy_to - busy_from) // num_kernels
    causes = ("launch-bound", "launch-bound", "exposed-copy", "python-stall", "launch-bound", "kernel-latency")
    spans, gaps = [], [Gap(0, busy_from, "data-stall", "enumerate(DataLoader).__next__")]
    depth = [(0, 0)]
    for i in range(num_kernels):
        start = busy_from + i * slot
        end = start + int(slot * 0.8)
        category = ("compute", "compute", "compute", "communication", "compute", "copy")[i % 6]
        spans.append(Span(f"GPU 0 stream {20 if category == 'communication' else 7}", start, end, KERNEL, category))
        gaps.append(Gap(end, start + slot, causes[i % 6], "aten::add_"))
        depth += [(start, 1 + (i * 7) % 30), (end, i % 3)]
    gaps.append(Gap(busy_to, step_ns, "host-sync", "aten::item · cudaStreamSynchronize"))
    depth.append((busy_to, 0))
    for name, start, end, category in (
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.0, 5.8, "annotation"),
        ("aten::linear", 6.0, 9.0, "operator"),
        ("aten::addmm", 6.2, 8.8, "operator"),
        ("cudaLaunchKernel", 6.4, 6.6, "runtime"),
        ("Optimizer.step#AdamW.step", 12.0, 17.0, "annotation"),
        ("aten::item", 17.4, 20.0, "operator"),
        ("cudaStreamSynchronize", 17.6, 19.9, "runtime"),
    ):
        spans.append(Span("host 4711", int(start * MS), int(end * MS), name, category))
    return Picture(
        3, step_ns, tuple(spans), tuple(gaps), tuple(depth), num_spans_left_out=17,
        titles={"host 4711": "thread 4711 (python) · training thread"},
        steps=tuple(StepParts(i + 1, 20 * MS, PARTS) for i in range(6)),
        kernels=KERNELS,
        flames=FLAMES,
        readings=READINGS,
        by_operator=(DeviceShare("aten::mm", 24.0, 8 * MS, 0.8), DeviceShare("aten::add", 9.0, 2 * MS, 0.2)),
    )  # fmt: skip


FLAMES = (
    Flame("data-stall", 6 * MS, (
        Frame("/home/ada/project/train.py(31): main", "own", 0, 6 * MS),
        Frame("torch/utils/data/dataloader.py(701): __next__", "library", 1, 5_800_000),
        Frame("/home/ada/project/data.py(12): __getitem__", "own", 2, 4 * MS),
        Frame("<built-in method decode of Codec object>", "library", 3, 3 * MS),
        Frame("aten::stack", "operator", 2, 1 * MS),
    ), is_scaled=True),
    Flame("host-sync", 2_400_000, (Frame("aten::item", "operator", 0, 2_400_000),)),
)  # fmt: skip
READINGS = (
    Readings("GPU utilisation", "%", ((0.2, 40.0), (2.5, 46.0), (5.1, 52.0)), 100.0),
    Readings("SM clock", "MHz", ((0.2, 1980.0), (2.5, 1410.0), (5.1, 1980.0)), 1980.0),
)
PARTS = {"busy": 9 * MS, "data-stall": 6 * MS, "host-sync": 5 * MS}
KERNELS = tuple(
    KernelTime(f"kernel_{i}", ("gemm", "elementwise")[i % 2], 24.0 + i, (12 - i) * MS, (12 - i) / 78, "float32", 0.5,
               Where("train.py", 12 + i, "step", "aten::mm"))
    for i in range(12)
)  # fmt: skip


def gaps() -> Diagnosis:
    return Diagnosis(
        verdict="gaps",
        headline="The GPU is idle 54 % of each step, mostly waiting for data loaded in the main process (train.py:31).",
        dominant="data-stall",
        step_ns=20 * MS,
        step_times_ns=tuple(20 * MS + (i % 5 - 2) * 100_000 for i in range(10)),
        queue=Queue(0.46, 0.54, 11, 28, 0.51, 640, 0.12, 45_000),
        partition=Partition(0.38, 0.05, 0.03, 0.54),
        idle_by_cause=GAP_CAUSES,
        findings=tuple(
            finding(rule, 20 * share, LOADER if rule == "data-stall" else ITEM, "aten::item · cudaStreamSynchronize")
            for rule, share in GAP_CAUSES.items()
        ),
        prescriptions=(prescription("data-stall", 4.0, 5.8), prescription("host-sync", 0, 2.2)),
        trust=(
            Note("Stacks were not recorded in the timing window."),
            Note("12 of 6400 launches have no task.", "lost-records"),
        ),
        source=SOURCE,
        operators=(HostOperator("aten::addmm", 24, 1.9 * MS, 2.4 * MS, "[[64, 1024], [1024, 4096]]"),),
        picture=picture(),
        code=code(),
        replay_error=0.021,
        profiler_overhead=0.08,
        critical_path=CriticalPath(
            {"host": 0.6, "compute": 0.37, "latency": 0.03, "copy": 0.0},
            (
                PathSegment(0, 12 * MS, "host", "cudaLaunchKernel", "host 1"),
                PathSegment(12 * MS, 20 * MS, "compute", "sm90_gemm<128, 64>", "GPU 0 stream 7"),
            ),
        ),
        waterfall=Waterfall(
            (
                Forecast((), "now", 20 * MS, 20 * MS, 20 * MS),
                Forecast(("data-stall-fix",), "Load in workers", 15 * MS, 14 * MS, 16 * MS),
                Forecast(("data-stall-fix", "host-sync-fix"), "Defer the sync", 12 * MS, 12 * MS, 13 * MS),
            ),
            "the device's own kernels",
            {"compute": 0.9, "host": 0.1},
            tuple(Forecast((), "", step * MS, step * MS, step * MS) for step in (20, 15, 18, 12)),
        ),
    )


def healthy() -> Diagnosis:
    return replace(
        gaps(),
        verdict="kernel-bound", headline="The GPU is busy 98.8 % of each step: nothing holds it back.", dominant=None,
        queue=Queue(0.988, 0.012, 310, 420, 0.001, 640, 0.01, 9 * MS),
        partition=Partition(0.968, 0.02, 0.0, 0.012),
        idle_by_cause={"kernel-latency": 0.012},
        findings=(), prescriptions=(), waterfall=None, trust=(),
        picture=Picture(5, 20 * MS, (Span("GPU 0 stream 7", 0, 19 * MS, "sm90_gemm", "compute"),), (), ((0, 300),)),
    )  # fmt: skip


def cpu_bound() -> Diagnosis:
    return replace(
        gaps(), verdict="cpu-bound", headline="The CPU cannot issue work fast enough.", dominant="launch-bound",
        queue=Queue(0.19, 0.81, 0, 2, 0.81, 4100, 0.93, 4_000), partition=Partition(0.19, 0, 0, 0.81),
        idle_by_cause={"launch-bound": 0.70, "python-stall": 0.11},
        findings=(finding("launch-bound", 14, ITEM, "aten::add_"),),
        prescriptions=(prescription("launch-bound", 9, 12),),
    )  # fmt: skip


def no_gpu() -> Diagnosis:
    names = ("aten::mkldnn_convolution", "aten::native_batch_norm", "aten::max_pool2d_with_indices", "aten::add_")
    return replace(
        gaps(), verdict="no-gpu", headline="No device in this trace.", dominant="data-stall",
        queue=None, partition=None, idle_by_cause={},
        findings=(finding("data-stall", 7.6, LOADER, "enumerate(DataLoader).__next__"),),
        prescriptions=(prescription("data-stall", 5, 7),),
        operators=tuple(
            HostOperator(name, 20 / (i + 1), (4 - i) * MS, (5 - i) * MS, "[[64, 64, 56, 56]]")
            for i, name in enumerate(names)
        ),
        picture=Picture(
            2,
            20 * MS,
            (Span("host 1", 0, 9 * MS, "aten::conv2d", "operator"), Span("host 1 +1", 1 * MS, 2 * MS, "b", "operator")),
            (Gap(0, 12 * MS, "operators", "aten::conv2d"), Gap(12 * MS, 20 * MS, "data-stall", "__next__")),
        ),
        code=CodeTimes("samples", 20 * MS, functions=(CodeTime("train.py:31 main", 7 * MS, 0.35),)),
        source=replace(SOURCE, devices=()),
    )  # fmt: skip


def ranks() -> Diagnosis:
    summaries = tuple(
        RankSummary(r, "gaps", "data-stall", (18 + r) * MS, Partition(0.4, 0.1, 0.0, 0.5), {"data-stall": 0.5})
        for r in range(4)
    )
    source = replace(SOURCE, world_size=4, devices=("NVIDIA H100 80GB HBM3",) * 4)
    return replace(gaps(), ranks=summaries, source=source)


def trials() -> Diagnosis:
    fast = Trial(
        "data-stall-fix", (20.0, 20.4, 19.9), (14.1, 14.3, 14.0), 1.42, (1.38, 1.46), "identical", predicted_ms=15.0,
        peak_bytes=(100, 130), losses=((1.0, 0.5), (1.0, 0.5)),
    )  # fmt: skip
    slow = Trial("host-sync-fix", (20.0, 20.2), (20.4, 20.6), 0.98, (0.95, 0.99), "drifted", note="It found nothing.")
    failed = Trial("compile-fix", (), (), 1.0, (0.0, 0.0), "unknown", failure="It ended with exit code 1.")
    part = replace(fast, ids=("other",), kind="without", predicted_ms=None)
    return replace(gaps(), trials=(fast, slow, failed, part), after=healthy())


def device(op: str = "aten::mm", name: str = "NVIDIA H100 80GB HBM3") -> Diagnosis:
    """A device whose kernels and memory are known."""
    points = (
        RooflinePoint(op, "[[4096, 4096], [4096, 4096]]", op, 0.4, "16-bit", 1365.0, 620.0, 450.0, "compute", 0.63),
        RooflinePoint("aten::add", "[[4096, 4096]]", "elementwise", 0.2, "fp32", 0.0, 0.0, 2400.0, "memory", 0.72),
    )
    memory = Memory(
        name, 40 * 10**9, 52 * 10**9, 85 * 10**9, 5 * MS,
        tuple((i * MS, i * 8 * 10**9, 52 * 10**9) for i in range(6)),
        {"activations": 25 * 10**9, op: 15 * 10**9}, ((Where("model.py", 12, op=op), 9 * 10**9),), 2,
    )  # fmt: skip
    state = Finding("memory-pressure", "Memory is full: 2 allocations had to empty the cache first", 0.0, 2)
    return replace(
        gaps(),
        findings=(*gaps().findings, state),
        roofline=Roofline(name, {"16-bit": 989.0, "fp32": 67.0}, 3350.0, points),
        memory=memory,
        memory_by_line=memory_of_lines(name),
    )


def hostile() -> Diagnosis:
    """Every string that a user, a path, a kernel or a source line can put into a report is HOSTILE."""
    where = Where(HOSTILE, 1, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE)
    found = Finding(
        "host-sync", HOSTILE, 2.0 * MS, 3, 6 * MS, 2 * MS, (HOSTILE,),
        (Example(3, 0, 2 * MS, HOSTILE, HOSTILE, HOSTILE, where),), (where,), "low", {HOSTILE: HOSTILE},
    )  # fmt: skip
    fix = Prescription("host-sync", HOSTILE, HOSTILE, HOSTILE, HOSTILE, (0, MS), None, HOSTILE, "", HOSTILE, HOSTILE)
    shown = Picture(
        3, 20 * MS, (Span(HOSTILE, 0, MS, HOSTILE, HOSTILE),), (Gap(MS, 3 * MS, "host-sync", HOSTILE),), ((0, 1),),
        flames=(Flame(HOSTILE, MS, (Frame(HOSTILE, HOSTILE, 0, MS), Frame(HOSTILE, "own", 1, MS))),),
        readings=(Readings(HOSTILE, HOSTILE, ((0.5, 1.0),)),), steps=(StepParts(3, MS, {HOSTILE: MS}),) * 2,
    )  # fmt: skip
    return replace(
        device(HOSTILE, HOSTILE),
        headline=HOSTILE,
        findings=(found,),
        prescriptions=(fix,),
        trust=(Note(HOSTILE),),
        source=Source(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), 1, HOSTILE, samples={HOSTILE: HOSTILE}),
        operators=(HostOperator(HOSTILE, 1, MS, MS, HOSTILE),),
        trials=(Trial(HOSTILE, (1.0,), (1.0,), 1.0, (1.0, 1.0), "unknown"),),
        picture=shown,
        code=CodeTimes("frames", MS, False, *((CodeTime(HOSTILE, MS, 1.0, MS, 1.0),) for _ in range(3))),
    )


def bare() -> Diagnosis:
    """The least that a diagnosis can hold: one step, no marks, nothing else known; some numbers are not finite."""
    return Diagnosis(
        verdict="cpu-bound",
        headline="The queue is empty most of the time.",
        dominant=None,
        step_ns=0.0,
        step_times_ns=(),
        queue=Queue(0, 1, 0, 0, 1, float("nan"), 0, 0),
        partition=Partition(0, 0, 0, 1),
        idle_by_cause={"unexplained-host": 1.0},
        findings=(Finding("unexplained-host", "The host was late", float("inf"), facts={"nan": float("nan")}),),
        prescriptions=(
            Prescription("unexplained-host", "look", "Look", "", "", (float("nan"), 0), None, "same numbers"),
        ),
        trust=(),
        source=Source("trace.json"),
        picture=Picture(0, 0),
        replay_error=float("nan"),
    )
