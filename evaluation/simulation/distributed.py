"""What DistributedDataParallel and collectives of the user's emit."""

from __future__ import annotations

from collections.abc import Mapping

from simulation import kernel_names
from simulation.instructions import COMM, COMPUTE, Emitter
from simulation.machine import Machine
from simulation.wastes import Waste, planted
from simulation.workloads import Workload

__all__ = ["Buckets", "broadcast_buffers", "host_barrier"]

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


class Buckets:
    """Gradients gathered until they are enough for one all-reduce."""

    def __init__(self, workload: Workload, wastes: Mapping[str, Waste]) -> None:
        self.element_bytes = workload.element_bytes
        self.limit = BUCKET_BYTES
        self.first = FIRST_BUCKET_BYTES
        if planted(wastes, "one-bucket"):
            self.limit = self.first = 1 << 60
        elif planted(wastes, "bucket-per-parameter"):
            self.limit = self.first = 1
        self.filled = 0
        self.works: list[int] = []

    def add(self, emitter: Emitter, elements: int, machine: Machine) -> None:
        """Copy one gradient into the bucket, and reduce the bucket when it is full."""
        num_bytes = elements * self.element_bytes
        with (
            emitter.op("torch::distributed::reducer::mul_out", 4_000),
            emitter.op("aten::mul", 5_000, dims=((elements,),)),
        ):
            emitter.launch(kernel_names.SCALE, "other", 1_600 + 2 * num_bytes / (machine.gpu.memory_gbps * 0.8))
        self.filled += num_bytes
        if self.filled >= (self.limit if self.works else self.first):
            self._reduce(emitter)

    def finish(self, emitter: Emitter) -> None:
        """Reduce what is left, and let the compute stream wait for all of it."""
        with emitter.section("finish"):
            if self.filled:
                self._reduce(emitter)
            for work in self.works:
                emitter.wait(work, COMPUTE)
            self.works = []

    def _reduce(self, emitter: Emitter) -> None:
        with emitter.section(f"bucket.{len(self.works)}"):
            self.works.append(collective(emitter, "allreduce", "all_reduce", self.filled))
        self.filled = 0


def collective(emitter: Emitter, operator: str, name: str, num_bytes: int) -> int:
    """Emit a collective that starts when the compute stream is there; return the key of its event."""
    with (
        emitter.op(f"c10d::{operator}_", 20_000, dims=((num_bytes // 4,),)),
        emitter.op("record_param_comms", 15_000),
    ):
        emitter.order(COMPUTE, COMM)
        with emitter.annotation(f"nccl:{name}"):
            emitter.collective(operator, num_bytes)
        return emitter.record(COMM)


def broadcast_buffers(emitter: Emitter, wastes: Mapping[str, Waste]) -> None:
    """Send rank 0's buffers before the forward pass, as batch-norm statistics are by default."""
    if not planted(wastes, "buffer-broadcast"):
        return
    count = int(wastes["buffer-broadcast"].size)
    with emitter.beside("broadcast"), emitter.annotation("DistributedDataParallel.forward"):
        with emitter.op("aten::flatten_dense_tensors", 4_000):
            for _ in range(count):
                with emitter.op("aten::view", 1_500):
                    pass
            with emitter.op("aten::cat", 8_000):
                emitter.launch(kernel_names.CONCATENATE, "other", 4_000)
        emitter.wait(collective(emitter, "broadcast", "broadcast", count * 2048), COMPUTE)
        for _ in range(count):
            with emitter.op("aten::copy_", 4_000, dims=((512,), (512,))):
                emitter.copy("DtoD", 2048, pinned=True, blocking=False)


def host_barrier(emitter: Emitter) -> None:
    """Meet the other ranks on the host."""
    with (
        emitter.beside("barrier"),
        emitter.frame("torch/distributed/distributed_c10d.py(4752): barrier"),
        emitter.op("c10d::barrier", 15_000),
        emitter.annotation("gloo:barrier"),
    ):
        emitter.barrier()
