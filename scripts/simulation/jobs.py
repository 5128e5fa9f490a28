"""Jobs of several ranks with one planted reason for waiting, and what it truly costs.

A step is the same program on all ranks: a batch is loaded, layers run forward and backward, gradients are reduced in
buckets, an optimizer step ends it. Where layers are split, their outputs are reduced within a group as well. Time runs
on three lanes of each rank (host, computing, communication) and a collective ends for all members at once, after the
last of them has come. What the reason costs is the difference to the same job, with the same random numbers, without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

__all__ = ["REASONS", "JobRun", "Plan", "draw_plan", "run_job"]

REASONS = ("loader-2", "loader-5", "compute", "slow-link", "wandering", "late-start", "nothing")
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
US, MS = 1_000.0, 1_000_000.0
Lanes = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Plan:
    """What a job does, and what is planted in it."""

    name: str
    seed: int
    reason: str
    num_ranks: int
    split: int  # ranks that share each layer; 1: none
    num_steps: int
    num_layers: int
    layer_ns: float  # of a layer's forward on the device
    host_ns: float  # of an operator
    num_buckets: int
    bucket_bytes: int
    bus_gbps: float
    loader_ns: float
    reads_loss: bool  # the host waits for the device at the end of each step
    noise: float  # of a kernel's length
    rank: int = 0  # the culprit
    members: tuple[int, ...] = ()  # of the slow group
    slow_by: float = 1.0  # its transfers
    pauses: tuple[int, ...] = ()  # rank by step
    pause_ns: float = 0.0
    pause_kind: str = "gc"  # or python
    late_ns: float = 0.0
    records_groups: bool = True
    records_numbers: bool = True
    clock_apart_ns: float = 0.0


@dataclass
class RankLog:
    """What one rank recorded; times ns on its own clock, before offsets."""

    host: list[tuple[str, str, float, float, dict[str, Any]]] = field(default_factory=list)  # category, name, …
    tasks: list[tuple[str, int, float, float, int, dict[str, Any]]] = field(default_factory=list)  # name, stream, …


@dataclass(frozen=True)
class JobRun:
    """A finished job."""

    plan: Plan
    logs: list[RankLog]
    step_ns: float  # of the steady steps
    planted_ns: float  # what the reason adds to the culprit's own step, or to a transfer
    costs_ns: float  # what it makes a steady step longer


def draw_plan(seed: int, number: int, reason: str | None = None) -> Plan:
    """Return a job; ``number`` counts within the seed."""
    rng = np.random.default_rng((seed, number))
    sizes = np.array(SIZES)
    kind = reason or REASONS[number % len(REASONS)]
    weights = 1 / np.sqrt(sizes) * (sizes >= (4 if kind == "slow-link" else 2))
    size = int(rng.choice(sizes, p=weights / weights.sum()))
    splits = [n for n in (2, 4, 8) if n <= size // 2]
    split = int(rng.choice(splits)) if splits and (kind == "slow-link" or rng.random() < 0.3) else 1
    steps, culprit = int(rng.integers(4, 9)), int(rng.integers(size))
    layer = float(rng.uniform(0.4, 1.2)) * MS
    group = int(rng.integers(max(size // split, 1)))
    plan = Plan(
        name=f"job-{seed}-{number}",
        seed=seed * 100_003 + number,
        reason=kind,
        num_ranks=size,
        split=split,
        num_steps=steps,
        num_layers=int(rng.integers(6, 13)),
        layer_ns=layer,
        host_ns=float(rng.uniform(15, 60)) * US,
        num_buckets=int(rng.integers(2, 6)),
        bucket_bytes=int(rng.integers(4, 26)) << 20,
        bus_gbps=float(rng.choice([10.0, 25.0, 90.0, 200.0])),
        loader_ns=float(rng.uniform(0.3, 2.0)) * MS,
        reads_loss=kind.startswith("loader") or kind == "wandering" or bool(rng.random() < 0.6),
        noise=float(rng.uniform(0.002, 0.015)),
        rank=culprit,
        members=tuple(range(group * split, (group + 1) * split)) if kind == "slow-link" else (),
        slow_by=float(rng.uniform(2.0, 5.0)),
        pauses=tuple(rng.permutation(max(size, steps))[:steps].astype(int).tolist()) if kind == "wandering" else (),
        pause_ns=float(rng.uniform(8, 30)) * MS,
        pause_kind=str(rng.choice(["gc", "python"])),
        late_ns=float(rng.uniform(8, 30)) * MS,
        records_groups=bool(split > 1 or rng.random() < 0.6),
        records_numbers=bool(rng.random() < 0.7),
        clock_apart_ns=float(rng.choice([0.0, 2.0, 400.0])) * MS,
    )
    return replace(plan, pauses=tuple(p % size for p in plan.pauses))


def run_job(plan: Plan) -> JobRun:
    """Return what the ranks of the job recorded, and what the planted reason adds."""
    job = _Job(plan)
    step = job.run()
    without = _Job(replace(plan, reason="nothing")).run()
    others = [rank for rank in range(plan.num_ranks) if rank != plan.rank]
    loaded = np.array(job.loaded)
    planted = {
        "loader-2": float((loaded[:, plan.rank] - np.median(loaded[:, others], axis=1)).mean()),
        "loader-5": float((loaded[:, plan.rank] - np.median(loaded[:, others], axis=1)).mean()),
        "compute": float(job.computed[plan.rank]) / plan.num_steps / 6,  # a sixth of what takes 1.2 times as long
        "slow-link": job.transferred_more / plan.num_steps,
        "wandering": plan.pause_ns,
        "late-start": plan.late_ns,
    }.get(plan.reason, 0.0)
    return JobRun(plan, job.logs, step, planted, step - without)


class _Job:
    """The lanes of all ranks, moved on by one instruction of the common program after the other."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rng = plan, np.random.default_rng(plan.seed)
        n = plan.num_ranks
        self.logs = [RankLog() for _ in range(n)]
        self.host, self.compute, self.comm = np.zeros(n), np.zeros(n), np.zeros(n)
        self.pace = self.rng.normal(1.0, 0.0015, n)
        if plan.reason == "compute":
            self.pace[plan.rank] *= 1.2
        self.computed = np.zeros(n)
        self.loaded: list[Lanes] = []
        self.transferred_more = 0.0
        self.correlation = 0
        self.numbers: dict[str, int] = {}
        self.works: list[Lanes] = []
        ranks = np.arange(n)
        self.split_of = ranks // plan.split
        self.across_of = ranks % plan.split

    def run(self) -> float:
        plan, n = self.plan, self.plan.num_ranks
        self.host += self.rng.uniform(0, 0.3, n) * MS
        if plan.reason == "late-start":
            self.host[plan.rank] += plan.late_ns
        ends = []
        for step in range(plan.num_steps):
            self._step(step)
            ends.append(float(self.compute.max()))
        return (ends[-1] - ends[0]) / max(plan.num_steps - 1, 1)

    def _step(self, step: int) -> None:
        plan, n = self.plan, self.plan.num_ranks
        begun = self.host.copy()
        self._pause(step)
        load = plan.loader_ns * self.rng.lognormal(0.0, 0.08, n)
        if plan.reason.startswith("loader"):
            load[plan.rank] += (2 if plan.reason == "loader-2" else 5) * MS
        self.loaded.append(load)
        self._host("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", load)
        self._copy("Memcpy HtoD (Pinned -> Device)", 60 * US)
        for layer in range(plan.num_layers):
            self._operator("aten::linear", "sgemm_128x64_nn", plan.layer_ns, layer)
            self._operator("aten::relu", "vectorized_elementwise_relu", plan.layer_ns * 0.08, layer)
            if plan.split > 1:
                self._collective("tp", 2 << 20, self.split_of, waits=True)
        self._operator("aten::nll_loss", "nll_loss_forward", 0.05 * MS, 0)
        full_at = {bucket * plan.num_layers // plan.num_buckets for bucket in range(plan.num_buckets)}
        for layer in reversed(range(plan.num_layers)):
            node = "autograd::engine::evaluate_function: "
            self._operator("aten::mm", "sgemm_128x64_nt", plan.layer_ns, layer, around=f"{node}AddmmBackward0")
            self._operator("aten::mul", "sgemm_128x64_tn", plan.layer_ns, layer, around=f"{node}MulBackward0")
            if plan.split > 1:
                self._collective("tp", 2 << 20, self.split_of, waits=True)
            if layer in full_at:
                self._collective("dp", plan.bucket_bytes + (layer << 16), self.across_of, waits=False)
        for work in self.works:
            self.compute = np.maximum(self.compute, work)
        self.works = []
        began = self.host.copy()
        for index in range(3):
            self._operator("aten::_foreach_add_", "multi_tensor_apply_kernel", plan.layer_ns * 0.15, index)
        self._host_from("user_annotation", "Optimizer.step#AdamW.step", began)
        if plan.reads_loss:
            self._read_loss()
        self._host("user_annotation", "log", self.rng.uniform(5, 20, n) * US)
        self._host_from("user_annotation", f"ProfilerStep#{10 + step}", begun)

    def _host(self, category: str, name: str, length: Lanes) -> None:
        begun = self.host
        self.host = begun + length
        for log, start, end in zip(self.logs, begun, self.host, strict=True):
            log.host.append((category, name, float(start), float(end), {}))

    def _host_from(self, category: str, name: str, begun: Lanes) -> None:
        for log, start, end in zip(self.logs, begun, self.host, strict=True):
            log.host.append((category, name, float(start), float(end), {}))

    def _operator(self, name: str, kernel: str, length: float, index: int, around: str = "") -> None:
        plan, n = self.plan, self.plan.num_ranks
        cost = plan.host_ns * self.rng.gamma(12.0, 1 / 12.0, n)
        hiccup = (self.rng.random(n) < 0.0005) * self.rng.uniform(0.2, 1.0, n) * MS
        begun = self.host.copy()
        launch = begun + cost * 0.5 + hiccup
        self.host = launch + cost * 0.5
        task = length * (1 + 0.2 * np.sin(index)) * self.pace * self.rng.lognormal(0.0, plan.noise, n)
        start = np.maximum(self.compute, launch + 8 * US)
        self.compute = start + task
        self.computed += task
        self._log_launch(name, begun, launch, kernel, 7, start, self.compute, {}, around)

    def _copy(self, name: str, length: float) -> None:
        n = self.plan.num_ranks
        begun = self.host.copy()
        launch = begun + 10 * US
        self.host = launch + 10 * US
        start = np.maximum(self.compute, launch + 8 * US)
        self.compute = start + length * self.rng.lognormal(0.0, 0.05, n)
        self._log_launch("aten::copy_", begun, launch, name, 7, start, self.compute, {}, "")

    def _log_launch(
        self,
        operator: str,
        begun: Lanes,
        launch: Lanes,
        kernel: str,
        stream: int,
        start: Lanes,
        end: Lanes,
        args: dict[str, Any] | Callable[[int], dict[str, Any]],
        around: str,
    ) -> None:
        self.correlation += 1
        call = "cudaMemcpyAsync" if kernel.startswith("Memcpy") else "cudaLaunchKernel"
        for rank, log in enumerate(self.logs):
            more = args(rank) if callable(args) else args
            if around:
                log.host.append(("cpu_op", around, begun[rank] - 2 * US, float(self.host[rank]), {}))
            log.host.append(("cpu_op", operator, float(begun[rank]), float(self.host[rank]) - 0.2 * US, {}))
            log.host.append(
                ("cuda_runtime", call, launch[rank], launch[rank] + 5 * US, {"correlation": self.correlation})
            )
            log.tasks.append((kernel, stream, float(start[rank]), float(end[rank]), self.correlation, more))

    def _collective(self, use: str, num_bytes: int, group_of: Any, *, waits: bool) -> None:
        plan, n = self.plan, self.plan.num_ranks
        num_groups = int(group_of.max()) + 1
        begun = self.host.copy()
        launch = begun + 20 * US
        self.host = launch + 15 * US
        start = np.maximum(np.maximum(self.comm, launch + 8 * US), self.compute)
        size = n // num_groups
        carried = num_bytes * 2 * (size - 1) / max(size, 1)
        transfer = (15 * US + carried / plan.bus_gbps) * self.rng.lognormal(0.0, 0.02, num_groups)
        if use == "tp" and plan.reason == "slow-link":
            slow = int(group_of[plan.members[0]])
            self.transferred_more += float(transfer[slow]) * (plan.slow_by - 1)
            transfer[slow] *= plan.slow_by
        came = np.full(num_groups, -np.inf)
        np.maximum.at(came, group_of, start)
        end = (came + transfer)[group_of] + self.rng.uniform(0, 12, n) * US
        self.comm = end
        if waits:
            self.compute = np.maximum(self.compute, end)
        else:
            self.works.append(end)
        number = self.numbers[use] = self.numbers.get(use, 0) + 1

        def described(rank: int) -> dict[str, Any]:
            members = np.flatnonzero(group_of == group_of[rank]).tolist()
            return self._described(use, num_bytes // 4, int(group_of[rank]), members, number)

        self._log_launch(
            "c10d::allreduce_",
            begun,
            launch,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            20 if use == "dp" else 24,
            start,
            end,
            described,
            "",
        )

    def _described(self, use: str, elements: int, group: int, members: list[int], number: int) -> dict[str, Any]:
        args: dict[str, Any] = {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(members),
            "dtype": "Float",
        }
        if self.plan.records_groups:
            listed = ", ".join(map(str, members[:30])) + (", ...]" if len(members) > 30 else "]")
            args |= {
                "Process Group Name": f"{use}{group}",
                "Process Group Description": f"mesh_{use}",
                "Process Group Ranks": f"[{listed}",
            }
        if self.plan.records_numbers and self.plan.records_groups:
            args["Seq"] = number
        return args

    def _pause(self, step: int) -> None:
        plan = self.plan
        if plan.reason != "wandering":
            return
        rank = plan.pauses[step]
        begun = float(self.host[rank])
        self.host[rank] += plan.pause_ns
        name = (
            ("python_function", "Python GC") if plan.pause_kind == "gc" else ("python_function", "train.py(31): save")
        )
        self.logs[rank].host.append((*name, begun + 1 * US, float(self.host[rank]) - 1 * US, {}))

    def _read_loss(self) -> None:
        begun = self.host.copy()
        done = np.maximum(begun + 5 * US, self.compute + 6 * US)
        self.host = done + 4 * US
        self.correlation += 1
        for rank, log in enumerate(self.logs):
            log.host.append(("cpu_op", "aten::item", float(begun[rank]), float(self.host[rank]), {}))
            call = ("cuda_runtime", "cudaStreamSynchronize", float(begun[rank]) + 2 * US, float(done[rank]))
            log.host.append((*call, {"correlation": self.correlation}))
