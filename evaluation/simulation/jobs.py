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

from simulation.job_plans import MS, US, Plan, full_at

__all__ = ["FIRST_STEP", "Event", "JobRun", "run_job"]

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NODE = "autograd::engine::evaluate_function: "
FIRST_STEP = 10  # the number of the first recorded step
PREEMPTED = 0.1  # of the operators, where other programs share the cores
Lanes = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Event:
    """One event of a rank, ns on a clock that all share."""

    category: str
    name: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)
    stream: int = -1  # of a device task


@dataclass(frozen=True)
class Launch:
    """What an operator puts on a stream."""

    operator: str
    kernel: str
    begun: Lanes
    called: Lanes
    start: Lanes
    end: Lanes
    stream: int = 7
    args: Callable[[int], dict[str, Any]] = lambda _rank: {}
    around: str = ""  # the node of the backward that the operator is called by


@dataclass(frozen=True)
class JobRun:
    """A finished job."""

    plan: Plan
    logs: list[list[Event]]  # by rank
    step_ns: float  # of the steady steps
    planted_ns: float  # what the reason adds to the culprit's own step, or to a transfer
    costs_ns: float  # what it makes a steady step longer
    by_step_ns: tuple[float, ...] = ()  # of what is planted on the host, which varies


def run_job(plan: Plan) -> JobRun:
    """Return what the ranks of the job recorded, and what the planted reason adds."""
    job = _Job(plan)
    step = job.run()
    calm = _Job(replace(plan, reason="nothing"))
    without = calm.run()
    others = [rank for rank in range(plan.num_ranks) if rank != plan.rank]
    loaded = np.array(job.loaded)
    starved = float(job.starved[plan.rank] - calm.starved[plan.rank]) / plan.num_steps
    by_step = _unlaunched_more(plan) if plan.reason in ("slow-host", "contention") else np.zeros(1)
    planted = {
        "loader-2": float((loaded[:, plan.rank] - np.median(loaded[:, others], axis=1)).mean()),
        "loader-5": float((loaded[:, plan.rank] - np.median(loaded[:, others], axis=1)).mean()),
        "compute": float(job.computed[plan.rank]) / plan.num_steps / 6,  # a sixth of what takes 1.2 times as long
        "slow-link": job.transferred_more / plan.num_steps,
        "wandering": plan.pause_ns,
        "late-start": plan.late_ns,
        "backward-pause": starved,
        "slow-host": float(by_step.mean()),
        "contention": float(by_step.mean()),
    }.get(plan.reason, 0.0)
    return JobRun(plan, job.logs, step, planted, step - without, tuple(by_step.tolist()) if by_step.any() else ())


def _unlaunched_more(plan: Plan) -> Lanes:
    """Return for how much longer the culprit's device has nothing launched than its equals' do, by step.

    Counted in a job whose ranks wait for nobody. Where they do, hosts get ahead of the devices that wait, for the
    culprit and for each other's variations alike: what they take is then not to be seen in what their devices do.
    """
    job = _Job(plan, waits=False)
    job.run()
    unlaunched = np.array(job.unlaunched)
    others = np.delete(unlaunched, plan.rank, axis=1)
    more: Lanes = unlaunched[:, plan.rank] - np.median(others, axis=1)
    return more


class _Job:
    """The lanes of all ranks, moved on by one instruction of the common program after the other."""

    def __init__(self, plan: Plan, *, waits: bool = True) -> None:
        self.plan, self.rng, self.waits = plan, np.random.default_rng(plan.seed), waits
        n = plan.num_ranks
        self.logs: list[list[Event]] = [[] for _ in range(n)]
        self.host, self.compute, self.comm = np.zeros(n), np.zeros(n), np.zeros(n)
        self.pace = self.rng.normal(1.0, 0.0015, n)
        if plan.reason == "compute":
            self.pace[plan.rank] *= 1.2
        self.host_pace = np.ones(n)
        if plan.reason == "slow-host":
            self.host_pace[plan.rank] = plan.host_slow_by
        self.others = np.random.default_rng((plan.seed, 1))  # programs beside it: random numbers of their own
        self.computed = np.zeros(n)
        self.starved = np.zeros(n)  # operators' kernels that wait for their own launch
        self.unlaunched: list[Lanes] = []  # by step: from the end of a rank's task to the launch of its next kernel
        self.own_end = np.zeros(n)
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
        self.unlaunched.append(np.zeros(n))
        if plan.reason == "wandering":
            self._pause(plan.pauses[step])
        load = plan.loader_ns * self.rng.lognormal(0.0, 0.08, n)
        if plan.reason.startswith("loader"):
            load[plan.rank] += (2 if plan.reason == "loader-2" else 5) * MS
        self.loaded.append(load)
        self._host("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", load)
        self._copy("Memcpy HtoD (Pinned -> Device)", 60 * US)
        forward = self.host.copy()
        for layer in range(plan.num_layers):
            self._operator("aten::linear", "sgemm_128x64_nn", plan.layer_ns, layer)
            self._operator("aten::relu", "vectorized_elementwise_relu", plan.layer_ns * 0.08, layer)
            if plan.split > 1:
                self._collective("tp", 2 << 20, self.split_of, waits=True)
        self._host_from("user_annotation", "DistributedDataParallel.forward", forward)
        self._operator("aten::nll_loss", "nll_loss_forward", 0.05 * MS, 0)
        self._backward()
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
        self._host_from("user_annotation", f"ProfilerStep#{FIRST_STEP + step}", begun)

    def _backward(self) -> None:
        plan = self.plan
        full = full_at(plan)
        for layer in reversed(range(plan.num_layers)):
            self._operator("aten::mm", "sgemm_128x64_nt", plan.layer_ns, layer, around=f"{NODE}AddmmBackward0")
            self._operator("aten::mul", "sgemm_128x64_tn", plan.layer_ns, layer, around=f"{NODE}MulBackward0")
            if plan.split > 1:
                self._collective("tp", 2 << 20, self.split_of, waits=True)
            if layer in full:
                self._collective("dp", plan.bucket_bytes + (layer << 16), self.across_of, waits=plan.waits_for_buckets)
            if plan.reason == "backward-pause" and layer == plan.pause_layer:
                self._pause(plan.rank)

    def _host(self, category: str, name: str, length: Lanes) -> None:
        begun = self.host
        self.host = begun + length
        for log, start, end in zip(self.logs, begun, self.host, strict=True):
            log.append(Event(category, name, float(start), float(end)))

    def _host_from(self, category: str, name: str, begun: Lanes) -> None:
        for log, start, end in zip(self.logs, begun, self.host, strict=True):
            log.append(Event(category, name, float(start), float(end)))

    def _operator(self, name: str, kernel: str, length: float, index: int, around: str = "") -> None:
        plan, n = self.plan, self.plan.num_ranks
        cost = plan.host_ns * self.rng.gamma(12.0, 1 / 12.0, n) * self.host_pace
        hiccup = (self.rng.random(n) < 0.0005) * self.rng.uniform(0.2, 1.0, n) * MS
        if plan.reason == "contention" and self.others.random() < PREEMPTED:
            hiccup[plan.rank] += self.others.uniform(0.2, 1.0) * MS
        begun = self.host.copy()
        launch = begun + cost * 0.5 + hiccup
        self.host = launch + cost * 0.5
        task = length * (1 + 0.2 * np.sin(index)) * self.pace * self.rng.lognormal(0.0, plan.noise, n)
        start = np.maximum(self.compute, launch + 8 * US)
        self.starved += start - self.compute
        self.unlaunched[-1] += np.maximum(launch + 8 * US - self.own_end, 0.0)
        self.compute = self.own_end = start + task
        self.computed += task
        self._launch(Launch(name, kernel, begun, launch, start, self.compute, around=around))

    def _copy(self, name: str, length: float) -> None:
        n = self.plan.num_ranks
        begun = self.host.copy()
        launch = begun + 10 * US * self.host_pace
        self.host = launch + 10 * US * self.host_pace
        start = np.maximum(self.compute, launch + 8 * US)
        self.compute = self.own_end = start + length * self.rng.lognormal(0.0, 0.05, n)
        self._launch(Launch("aten::copy_", name, begun, launch, start, self.compute))

    def _launch(self, done: Launch) -> None:
        self.correlation += 1
        is_copy = done.kernel.startswith("Memcpy")
        call, category = ("cudaMemcpyAsync", "gpu_memcpy") if is_copy else ("cudaLaunchKernel", "kernel")
        known = {"correlation": self.correlation}
        for rank, log in enumerate(self.logs):
            begun, end, called = float(done.begun[rank]), float(self.host[rank]), float(done.called[rank])
            if done.around:
                log.append(Event("cpu_op", done.around, begun - 2 * US, end))
            log.append(Event("cpu_op", done.operator, begun, end - 0.2 * US))
            log.append(Event("cuda_runtime", call, called, called + 5 * US, known))
            args = {"device": 0, "stream": done.stream, **known, **done.args(rank)}
            log.append(Event(category, done.kernel, float(done.start[rank]), float(done.end[rank]), args, done.stream))

    def _collective(self, use: str, num_bytes: int, group_of: Any, *, waits: bool) -> None:
        plan, n = self.plan, self.plan.num_ranks
        num_groups = int(group_of.max()) + 1
        begun = self.host.copy()
        launch = begun + 20 * US * self.host_pace
        self.host = launch + 15 * US * self.host_pace
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
        begins = came[group_of] if self.waits else start
        end = begins + transfer[group_of] + self.rng.uniform(0, 12, n) * US
        self.comm = end
        if waits:
            self.compute = np.maximum(self.compute, end)
        else:
            self.works.append(end)
        number = self.numbers[use] = self.numbers.get(use, 0) + 1

        def described(rank: int) -> dict[str, Any]:
            members = np.flatnonzero(group_of == group_of[rank]).tolist()
            return self._described(use, num_bytes // 4, int(group_of[rank]), members, number)

        stream = 20 if use == "dp" else 24
        around = f"{NODE}torch::autograd::AccumulateGrad" if use == "dp" else ""  # whose hook reduces a full bucket
        self._launch(Launch("c10d::allreduce_", NCCL, begun, launch, start, end, stream, described, around))

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

    def _pause(self, rank: int) -> None:
        plan = self.plan
        begun = float(self.host[rank])
        self.host[rank] += plan.pause_ns
        name = (
            ("python_function", "Python GC") if plan.pause_kind == "gc" else ("python_function", "train.py(31): save")
        )
        self.logs[rank].append(Event(*name, begun + 1 * US, float(self.host[rank]) - 1 * US))

    def _read_loss(self) -> None:
        begun = self.host.copy()
        done = np.maximum(begun + 5 * US, self.compute + 6 * US)
        self.host = done + 4 * US
        self.correlation += 1
        for rank, log in enumerate(self.logs):
            log.append(Event("cpu_op", "aten::item", float(begun[rank]), float(self.host[rank])))
            call = ("cuda_runtime", "cudaStreamSynchronize", float(begun[rank]) + 2 * US, float(done[rank]))
            log.append(Event(*call, {"correlation": self.correlation}))
