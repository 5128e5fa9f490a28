"""Further forms that a report can take: of a cold start, of compiled models, of requests, of jobs of several ranks."""

from dataclasses import replace

from diagnose.model.charts import CodeTime, CodeTimes, KernelTime
from diagnose.model.diagnosis import Diagnosis, Finding, Partition, Prescription, RankSummary, Where
from diagnose.model.job import CollectiveSummary, Job, RankRow
from tests.reports.forms import MS, SOURCE, cpu_bound, finding, gaps, prescription


def low_trust() -> Diagnosis:
    """A recording of a cold start: the command to record again takes the place of the changes."""
    cold = Finding("warm-up", "The recording is of a cold start: capture again once steps are steady", 15 * MS)
    again = Prescription(
        "warm-up", "capture-steady-steps", "Capture again after the warm-up", "", "diagnose trace train.py --epochs 1",
        (0, 0), None, "same numbers", records_again=True,
    )  # fmt: skip
    found, fixes = (cold, *gaps().findings), (again, *gaps().prescriptions)
    return replace(gaps(), dominant="warm-up", findings=found, prescriptions=fixes, waterfall=None)


def compiled() -> Diagnosis:
    """A compiled model: generated kernels, regions in the place of modules, float32 products."""
    region, d = Where("/home/ada/project/model.py", 8, "forward", "Torch-Compiled Region: 0/0"), gaps()
    rows = (("triton_poi_fused_add_gelu_0", "elementwise", 0.3), ("ampere_sgemm_128x64_tn", "gemm", 0.6),
            ("triton_red_fused_native_layer_norm_1", "reduction", 0.1))  # fmt: skip
    kernels = tuple(
        KernelTime(name, kind, 12.0, share * 18 * MS, share, "float32", 0.4, region) for name, kind, share in rows
    )
    found = replace(finding("launch-bound", 1.2, region, "CompiledFxGraph"), title="Products run in float32")
    shown = d.picture._replace(kernels=kernels)
    code = CodeTimes(
        "frames", 40 * MS, False, modules=(CodeTime("OptimizedModule_0", 8 * MS, 0.2, 8 * MS, 1.0, 18.0 * MS),)
    )
    return replace(
        d, verdict="kernel-bound", dominant="launch-bound", findings=(found,),
        prescriptions=(prescription("launch-bound", 4, 6),), picture=shown, code=code,
        partition=Partition(0.94, 0.0, 0.0, 0.06), idle_by_cause={"launch-bound": 0.06},
        queue=d.queue._replace(busy_share=0.94, idle_share=0.06), waterfall=None, kernels=kernels,
    )  # fmt: skip


def inference() -> Diagnosis:
    """Requests to a model: no optimizer, no unprofiled steps, the batch is assembled by the script."""
    d = cpu_bound()
    source = replace(SOURCE, command="serve.py --requests 64", found_steps_by="forward", unprofiled_step_ns=())
    shown = d.picture._replace(steps=(), readings=())
    return replace(d, source=source, picture=shown, profiler_overhead=None, phases={"inference": 0.7, "loading": 0.3})


def job_of(num: int) -> Diagnosis:
    """A job of which rank 3 comes late to each collective, for the batches that it waits for."""
    late = 3
    summaries = tuple(
        RankSummary(
            r, "gaps", "data-stall" if r == late else "exposed-communication", (20 if r == late else 19.5) * MS,
            Partition(0.4, 0.05 if r == late else 0.3, 0.0, 0.55 if r == late else 0.3), {"data-stall": 0.3},
            0.0 if r == late else 4.0 * MS,
        )
        for r in range(num)
    )  # fmt: skip
    rows = tuple(
        RankRow(
            r, 4.0 * MS if r == late else 0.0, (4.0 * MS, 3.9 * MS) if r == late else (0.0, None),
            0.95 if r == late else 0.0, 0.0, (0.0, 0.0) if r == late else (4.0 * MS, 3.8 * MS),
        )
        for r in sorted(range(min(num, 64)), key=lambda r: r != late)
    )  # fmt: skip
    reduce = CollectiveSummary(
        "all_reduce",
        "ddp-bucket",
        "default_pg",
        num,
        1,
        25 << 20,
        "Float",
        4.0,
        3.8 * MS,
        3.8 * MS,
        900_000,
        0.2,
        27.0,
        50.0,
    )
    job = Job(
        num, 8, 20_000, (7, 8), rows, ("all_reduce", "all_reduce"), (late,), 4.0 * MS, 3.8 * MS, "data-stall",
        3.6 * MS, 0.9, collectives=(reduce,),
    )  # fmt: skip
    d = replace(gaps(), step_ns=summaries[late].step_ns, partition=summaries[late].partition)
    source = replace(SOURCE, world_size=num, devices=("NVIDIA H100 80GB HBM3",) * num)
    return replace(d, ranks=summaries, job=job, source=source)


def ranks_8() -> Diagnosis:
    return job_of(8)


def ranks_256() -> Diagnosis:
    return job_of(256)
