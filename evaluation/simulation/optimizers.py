"""AdamW's step: fused, by lists of tensors, or parameter by parameter."""

from __future__ import annotations

from collections.abc import Mapping

from simulation import kernel_names
from simulation.instructions import Emitter
from simulation.machine import Machine
from simulation.wastes import Waste, planted

__all__ = ["optimizer_step"]

CHUNK = 64  # tensors that one kernel takes
# Operator of a list, of one tensor, functor, and how many tensors it reads and writes.
_STEPS = (
    ("_foreach_mul_", "mul_", "AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 2),
    ("_foreach_lerp_", "lerp_", "lerp_scalar_kernel", 3),
    ("_foreach_mul_", "mul_", "AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 2),
    ("_foreach_addcmul_", "addcmul_", "addcmul_cuda_kernel", 4),
    ("_foreach_sqrt", "sqrt", "sqrt_kernel_cuda", 2),
    ("_foreach_div_", "div", "BUnaryFunctor<float, float, float, at::native::binary_internal::DivFunctor<float> >", 2),
    ("_foreach_add_", "add_", "CUDAFunctorOnSelf_add<float>", 2),
    ("_foreach_addcdiv_", "addcdiv_", "addcdiv_cuda_kernel", 4),
)


def optimizer_step(
    emitter: Emitter, machine: Machine, parameters: tuple[int, ...], *, fused: bool, wastes: Mapping[str, Waste]
) -> None:
    """Emit ``zero_grad`` and ``step``."""
    rate = machine.gpu.memory_gbps * machine.memory_efficiency
    with emitter.annotation("Optimizer.step#AdamW.step"), emitter.frame("torch/optim/adamw.py(220): step"):
        if planted(wastes, "loop-optimizer"):
            with emitter.beside("loop"):
                _loop(emitter, machine, parameters, rate)
        elif fused or "loop-optimizer" in wastes:
            with emitter.beside("fused"):
                _fused(emitter, parameters, rate)
        else:
            with emitter.beside("foreach"):
                _foreach(emitter, parameters, rate)
    with emitter.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
        emitter.host("python", 400.0 * len(parameters) * machine.host)


def _chunks(parameters: tuple[int, ...]) -> list[int]:
    return [sum(parameters[at : at + CHUNK]) for at in range(0, len(parameters), CHUNK)]


def _fused(emitter: Emitter, parameters: tuple[int, ...], rate: float) -> None:
    with emitter.op("aten::_foreach_add_", 8_000):
        emitter.launch(kernel_names.LISTS.format("BinaryOpScalarFunctor"), "optimizer", 2_000)
    with emitter.op("aten::_fused_adamw_", 15_000 + 300 * len(parameters)):
        for elements in _chunks(parameters):
            emitter.launch(kernel_names.FUSED_ADAM, "optimizer", 3_000 + 28 * elements / rate)


def _foreach(emitter: Emitter, parameters: tuple[int, ...], rate: float) -> None:
    for name, _one, functor, tensors in _STEPS:
        emitter.host("glue", 4_000)
        with emitter.op(f"aten::{name}", 10_000 + 150 * len(parameters)):
            for elements in _chunks(parameters):
                emitter.launch(
                    kernel_names.LISTS.format(functor.split("<")[0]), "optimizer", 2_500 + 4 * tensors * elements / rate
                )


def _loop(emitter: Emitter, machine: Machine, parameters: tuple[int, ...], rate: float) -> None:
    for number, elements in enumerate(parameters):
        with emitter.section(f"parameter.{number}"):
            emitter.host("glue", 8_000 * machine.host)
            for _list, name, functor, tensors in _STEPS:
                emitter.host("glue", 1_500 * machine.host)
                with emitter.op(f"aten::{name}", 6_000, dims=((elements,),) * 2):
                    emitter.launch(
                        kernel_names.ONE_TENSOR.format(functor, functor),
                        "optimizer",
                        1_600 + 4 * tensors * elements / rate,
                    )
