"""A workload with its wastes as one step's instructions for each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation import kernel_names
from simulation.distributed import Buckets, broadcast_buffers, host_barrier
from simulation.instructions import COMPUTE, COPIES, SIDE, Emitter, Instruction
from simulation.layers import Kernel, Layer, Op, op_ns
from simulation.machine import Machine
from simulation.optimizers import optimizer_step
from simulation.planting import plant_at
from simulation.timeline import Loader
from simulation.wastes import Waste, planted
from simulation.workloads import Block, Workload

__all__ = ["Plan", "loader_of", "step_of"]

NUM_WORKERS = 16
QUICK_BATCH_NS = 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    """What is emitted: a workload on a machine, with wastes by kind."""

    workload: Workload
    machine: Machine
    wastes: Mapping[str, Waste] = field(default_factory=dict)
    fused_optimizer: bool = False  # whatever the workload has
    copy_ahead: bool = False  # batches go to the device while the step before runs


def loader_of(plan: Plan) -> Loader | None:
    """Return the loader of a plan; reinforcement learning has none."""
    if plan.workload.family == "reinforcement":
        return None
    if planted(plan.wastes, "loader-in-process"):
        return Loader(0, plan.wastes["loader-in-process"].size)
    if planted(plan.wastes, "few-workers"):
        return Loader(plan.wastes["few-workers"].count, plan.wastes["few-workers"].size)
    return Loader(NUM_WORKERS, QUICK_BATCH_NS)


def step_of(plan: Plan, rank: int) -> tuple[Instruction, ...]:
    """Return the instructions of one step of a rank."""
    emitter = Emitter()
    with emitter.section("step"), emitter.annotation("ProfilerStep#"), emitter.frame("train.py(88): train_step"):
        _Step(plan, rank, emitter).emit()
    return tuple(emitter.instructions)


class _Step:
    """Emits one step."""

    def __init__(self, plan: Plan, rank: int, emitter: Emitter) -> None:
        self.plan, self.rank, self.emitter = plan, rank, emitter
        self.workload, self.wastes = plan.workload, plan.wastes
        late = self.wastes.get("late-rank")
        self.slower = 1.0
        if late:  # repaired: the same work, shared evenly
            self.slower = (1 + late.size) / 2 if late.repaired else late.size if rank else 1.0
        self.sequence = 0
        self.buckets = Buckets(plan.workload, plan.wastes) if plan.workload.ranks > 1 else None

    def emit(self) -> None:
        """Emit the whole step."""
        emitter, workload = self.emitter, self.workload
        for round_ in range(workload.accumulate):
            last = round_ == workload.accumulate - 1
            with emitter.section(f"batch.{round_}"):
                self._batch()
            with emitter.section(f"forward.{round_}"):
                plant_at("forward", emitter, self.wastes, self.plan.machine)
                self._forward(round_)
            if workload.training:
                with emitter.section(f"backward.{round_}"):
                    self._backward(round_, last=last)
        with emitter.section("optimizer"):
            if workload.training:
                fused = self.plan.fused_optimizer or workload.optimizer == "fused"
                optimizer_step(emitter, self.plan.machine, workload.parameters, fused=fused, wastes=self.wastes)
        with emitter.section("end"):
            self._end()

    def _glue(self) -> None:
        """Emit the Python between two operators."""
        self.emitter.host("glue", self.workload.glue_ns * self.plan.machine.host)
        if (waste := self.wastes.get("python-between-operators")) and not waste.repaired:
            with self.emitter.beside("between"):
                self.emitter.host("python", waste.size)

    def _batch(self) -> None:
        emitter, workload = self.emitter, self.workload
        if workload.environment_ns:
            with emitter.frame("environment.py(52): step"):
                emitter.host("environment", workload.environment_ns)
        else:
            emitter.load()
        copy = self.wastes.get("pageable-copy") or self.wastes.get("copy-same-stream")
        num_bytes = int(copy.size) if copy else workload.batch_bytes
        same = self.wastes.get("copy-same-stream")
        if self.plan.copy_ahead or (same and same.repaired):
            self._copy_ahead(num_bytes)
        else:
            pinned = not planted(self.wastes, "pageable-copy")
            self._to_device(num_bytes, pinned=pinned, stream=COMPUTE)

    def _to_device(self, num_bytes: int, *, pinned: bool, stream: int) -> None:
        emitter, dims = self.emitter, ((num_bytes // 4,),)
        with emitter.op("aten::to", 3_000, dims=dims), emitter.op("aten::_to_copy", 6_000, dims=dims):
            with emitter.op("aten::empty_strided", 3_000):
                pass
            with emitter.op("aten::copy_", 4_000, dims=dims * 2):
                emitter.copy("HtoD", num_bytes, pinned=pinned, stream=stream, blocking=not pinned)

    def _copy_ahead(self, num_bytes: int) -> None:
        """Use the batch that was copied during the last step, and copy the next one on a stream of its own."""
        key = self.emitter.key()
        self.emitter.wait(key, COMPUTE)
        self._to_device(num_bytes, pinned=True, stream=COPIES)
        self.emitter.record(COPIES, key)

    def _forward(self, round_: int) -> None:
        emitter, workload = self.emitter, self.workload
        if self.buckets:
            broadcast_buffers(emitter, self.wastes)
        with emitter.frame("nn.Module: Model_0"):
            if workload.graph and not planted(self.wastes, "no-graph"):
                kernels = tuple(
                    (k.name, k.device_class, k.ns)
                    for layer in workload.layers
                    for op in layer.forward
                    for k in op.kernels
                )
                emitter.host("glue", 20_000)
                emitter.graph(kernels)
            else:
                for block in workload.blocks:
                    self._block(block, f"{round_}.{block.name}")
        if workload.training:
            with emitter.section("loss"):
                self._op(Op("aten::mse_loss", (Kernel(kernel_names.MEAN, "other", 3_000),), dims=((64,), (64,))))
        plant_at("loss", emitter, self.wastes, self.plan.machine)

    def _block(self, block: Block, tag: str) -> None:
        emitter = self.emitter
        with emitter.section(f"block.{tag}"), emitter.frame(f"nn.Module: {block.name}"):
            self._layers(block.layers, tag)
            plant_at("block", emitter, self.wastes, self.plan.machine, share=1 / len(self.workload.blocks))

    def _layers(self, layers: tuple[Layer, ...], tag: str) -> None:
        emitter = self.emitter
        for layer in layers:
            with emitter.section(f"layer.{tag}.{layer.name}"), emitter.frame(f"nn.Module: {layer.name}"):
                self._cast(layer)
                for op in layer.forward:
                    self._op(op, with_sequence=self.workload.training and tag != "again")

    def _cast(self, layer: Layer) -> None:
        """Emit autocast's cast of a layer's weight."""
        if self.workload.amp and layer.name.startswith(("Linear", "Conv")):
            elements = layer.parameters[0]
            gpu = self.plan.machine.gpu
            kernel = Kernel(kernel_names.CAST, "cast", 1_600 + 6 * elements / (gpu.memory_gbps * 0.8))
            self._op(Op("aten::to", (kernel,), "aten::_to_copy", 1, ((elements,),)))

    def _op(self, op: Op, *, with_sequence: bool = False, glue: bool = True) -> None:
        """Emit an operator: what it launches, inside the operator that launches it."""
        emitter = self.emitter
        args: dict[str, object] = {"dims": op.dims} if op.dims else {}
        if with_sequence:
            self.sequence += 1
            args["sequence"] = self.sequence
        with emitter.op(op.name, op_ns(op), **args):
            for _ in range(op.views):
                with emitter.op("aten::view", 1_500):
                    pass
            if op.inner:
                with emitter.op(op.inner, 3_500, **args):
                    self._launches(op)
            else:
                self._launches(op)
        if glue:
            self._glue()

    def _launches(self, op: Op) -> None:
        if op.kernels:
            with self.emitter.op("aten::empty", 1_800):
                pass
        for kernel in op.kernels:
            self.emitter.launch(kernel.name, kernel.device_class, kernel.ns * self.slower, api=kernel.api)

    def _backward(self, round_: int, *, last: bool) -> None:
        emitter = self.emitter
        with emitter.frame("torch/_tensor.py(581): backward"):
            emitter.thread("autograd")
            sequence = self.sequence
            for block in reversed(self.workload.blocks):
                again = _up_to_saved(block) if planted(self.wastes, "checkpoint-all") and len(block.layers) > 1 else ()
                for layer in reversed(block.layers):
                    with emitter.section(f"gradient.{round_}.{layer.name}"):
                        sequence -= len(layer.forward)
                        self._gradient(layer, sequence + 1, last=last, again=again if _saves(layer) else ())
                    again = () if _saves(layer) else again
            if self.buckets and last:
                self.buckets.finish(emitter)
            emitter.thread("main")

    def _gradient(self, layer: Layer, sequence: int, *, last: bool, again: tuple[Layer, ...]) -> None:
        """Emit a layer's nodes; the first one runs layers ``again`` to have what it saved no more."""
        emitter = self.emitter
        for name, ops in layer.backward:
            args = {"sequence": sequence, "backward": True}
            outer = f"autograd::engine::evaluate_function: {name}"
            with emitter.op(outer, 5_000, **args), emitter.op(name, 4_000, **args):
                if again:
                    with emitter.beside("again"), emitter.frame("torch/utils/checkpoint.py(1111): unpack_hook"):
                        self._layers(again, "again")
                    again = ()
                for op in ops:
                    self._op(op, glue=False)
        for elements in layer.parameters:
            accumulate = "torch::autograd::AccumulateGrad"
            with emitter.op(f"autograd::engine::evaluate_function: {accumulate}", 3_000):
                with emitter.op(accumulate, 2_500, dims=((elements,),)), emitter.op("aten::detach", 1_500):
                    pass
                if self.buckets and last:
                    self.buckets.add(emitter, elements, self.plan.machine)

    def _end(self) -> None:
        emitter = self.emitter
        if waste := self.wastes.get("early-wait"):
            self._offload(int(waste.size), early=not waste.repaired)
        if planted(self.wastes, "barrier"):
            host_barrier(emitter)
        plant_at("end", emitter, self.wastes, self.plan.machine)

    def _offload(self, num_bytes: int, *, early: bool) -> None:
        """Copy activations aside on a stream of their own; ``early`` lets the compute stream wait for it at once."""
        emitter = self.emitter
        emitter.order(0, SIDE)
        with emitter.op("aten::copy_", 5_000, dims=((num_bytes // 4,),) * 2):
            emitter.copy("DtoD", num_bytes, pinned=True, stream=SIDE, blocking=False)
        if early:
            emitter.order(SIDE, 0)


def _saves(layer: Layer) -> bool:
    """Return whether autograd keeps something of a layer for its gradients: of a sum it keeps nothing."""
    return any(ops for _, ops in layer.backward)


def _up_to_saved(block: Block) -> tuple[Layer, ...]:
    """Return what a checkpointed block runs again: torch stops behind the last operator that keeps something."""
    num = max((number for number, layer in enumerate(block.layers, 1) if _saves(layer)), default=0)
    return block.layers[:num]
