"""Jobs whose ranks are stages of a pipeline, replicas of which share their gradients, with one stage that is late.

Each step sends a few small batches through the stages and their gradients back, all forwards first; a stage computes
what has arrived, in that order. Then the replicas of each stage reduce their gradients. No two stages have a collective
in common but for sends and receives, so that only a few ranks wait for the late one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulation.job_plans import MS, US, draw_plan
from simulation.jobs import FIRST_STEP, Event, JobRun

__all__ = ["Pipeline", "run_pipeline"]

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Pipeline:
    """Ranks are numbered stage by stage: rank = stage × replicas + replica."""

    seed: int
    num_stages: int = 4
    num_replicas: int = 2
    num_batches: int = 4
    num_steps: int = 6
    forward_ns: float = 2 * MS  # of one small batch in one stage
    transfer_ns: float = 0.1 * MS
    reduce_ns: float = 1 * MS
    late: int = -1  # the rank that loads, or computes, longer; -1: none
    loads_more_ns: float = 0.0
    slower: float = 1.0


class _Ranks:
    """The lanes of all ranks; what they launch, they launch long before."""

    def __init__(self, plan: Pipeline) -> None:
        self.plan, self.rng = plan, np.random.default_rng(plan.seed)
        self.num = plan.num_stages * plan.num_replicas
        self.logs: list[list[Event]] = [[] for _ in range(self.num)]
        self.free = np.zeros(self.num)  # when the device has done all that came before
        self.host = np.zeros(self.num)
        self.correlation = 0
        self.numbers: dict[str, int] = {}

    def task(self, rank: int, name: str, length: float) -> None:
        start = float(self.free[rank])
        self._launch(rank, "aten::linear", Event("kernel", name, start, start + length, stream=7))
        self.free[rank] = start + length

    def compute(self, rank: int, name: str, length: float) -> None:
        factor = self.plan.slower if rank == self.plan.late else 1.0
        for part in ("qkv", "mlp", "norm"):
            self.task(rank, f"{name}_{part}", length / 3 * factor * self.rng.lognormal(0.0, 0.005))

    def exchange(self, name: str, group: str, ranks: list[int], length: float) -> None:
        """Let these ranks leave one collective together."""
        end = float(max(self.free[r] for r in ranks)) + length * self.rng.lognormal(0.0, 0.02)
        number = self.numbers[group] = self.numbers.get(group, 0) + 1
        args = {
            "Collective name": "allreduce" if name == REDUCE else "send",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "Group size": len(ranks),
            "dtype": "Float",
            "Process Group Name": group,
            "Process Group Description": "mesh_dp" if name == REDUCE else "mesh_pp",
            "Process Group Ranks": str(ranks),
            "Seq": number,
        }
        for n, rank in enumerate(ranks):
            known = args if name == REDUCE else {**args, "Collective name": ("send", "recv")[n]}
            self._launch(rank, "c10d::exchange", Event("kernel", name, float(self.free[rank]), end, known, 20))
            self.free[rank] = end

    def _launch(self, rank: int, operator: str, task: Event) -> None:
        self.correlation += 1
        begun = float(self.host[rank])
        self.host[rank] = begun + 10 * US
        log, call = self.logs[rank], {"correlation": self.correlation}
        log.append(Event("cpu_op", operator, begun, begun + 9.5 * US))
        log.append(Event("cuda_runtime", "cudaLaunchKernel", begun + 3 * US, begun + 8 * US, call))
        args = {"device": 0, "stream": task.stream, **call, **task.args}
        log.append(replace(task, start=max(task.start, begun + 16 * US), args=args))

    def begin(self, rank: int) -> float:
        """Load a batch, and return when the host began."""
        begun = float(self.host[rank])
        more = self.plan.loads_more_ns if rank == self.plan.late else 0.0
        length = 0.3 * MS * self.rng.lognormal(0.0, 0.05) + more
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.logs[rank].append(Event("user_annotation", name, begun, float(begun + length)))
        self.host[rank] = begun + length
        self.free[rank] = max(self.free[rank], begun + length + 16 * US)
        return begun

    def finish(self, rank: int, step: int, begun: float) -> None:
        """Wait for the device, as reading the loss does."""
        start, self.correlation = float(self.host[rank]), self.correlation + 1
        done = max(start + 5 * US, float(self.free[rank]) + 6 * US)
        log = self.logs[rank]
        log.append(Event("cpu_op", "aten::item", start, done + 4 * US))
        known = {"correlation": self.correlation}
        log.append(Event("cuda_runtime", "cudaStreamSynchronize", start + 2 * US, done, known))
        self.host[rank] = done + 10 * US
        log.append(Event("user_annotation", f"ProfilerStep#{FIRST_STEP + step}", begun, float(self.host[rank])))


def run_pipeline(plan: Pipeline) -> JobRun:
    """Return what the ranks recorded, and what the late one costs."""
    logs, step = _run(plan)
    _, without = _run(replace(plan, late=-1))
    job = replace(draw_plan(plan.seed, 0, "nothing"), num_ranks=len(logs), num_steps=plan.num_steps, clock_apart_ns=0.0)
    factor = (plan.slower - 1) * 3 * plan.forward_ns * plan.num_batches
    return JobRun(job, logs, step, plan.loads_more_ns + factor, step - without)


def _run(plan: Pipeline) -> tuple[list[list[Event]], float]:
    ranks, ends = _Ranks(plan), []
    for step in range(plan.num_steps):
        begun = [ranks.begin(rank) for rank in range(ranks.num)]
        for replica in range(plan.num_replicas):
            _through(ranks, replica)
        for stage in range(plan.num_stages):
            members = [stage * plan.num_replicas + replica for replica in range(plan.num_replicas)]
            ranks.exchange(REDUCE, f"dp{stage}", members, plan.reduce_ns)
            for rank in members:
                ranks.task(rank, "multi_tensor_apply_kernel", 0.3 * MS)
        for rank in range(ranks.num):
            ranks.finish(rank, step, begun[rank])
        ends.append(float(ranks.free.max()))
    return ranks.logs, (ends[-1] - ends[0]) / max(len(ends) - 1, 1)


def _through(ranks: _Ranks, replica: int) -> None:
    """Send the small batches of one replica through its stages, and their gradients back."""
    plan = ranks.plan
    members = [stage * plan.num_replicas + replica for stage in range(plan.num_stages)]
    for _ in range(plan.num_batches):
        for stage, rank in enumerate(members):
            ranks.compute(rank, "forward", plan.forward_ns)
            if stage + 1 < len(members):
                ranks.exchange(SEND, f"pp{replica}_{stage}", [rank, members[stage + 1]], plan.transfer_ns)
    for _ in range(plan.num_batches):
        for stage, rank in reversed(list(enumerate(members))):
            ranks.compute(rank, "backward", 2 * plan.forward_ns)
            if stage:
                ranks.exchange(SEND, f"pg{replica}_{stage}", [rank, members[stage - 1]], plan.transfer_ns)
