"""Keeps AdamW's moments in 8 bits, by bitsandbytes or torchao.

What it cures
    `memory-pressure`: AdamW's state is twice the model in float32; in 8 bits it is half of the model.

When it does not help
    Small models, models that are sharded over many devices already, and memory that activations fill. Gradients and
    what is sent between devices stay as they are: this is no gradient compression.

Cost
    Both moments are read and quantised again in each step. The first step of torchao's optimizer compiles, which takes
    seconds and needs a compiler.

Numerics
    Different: each block of 256 values keeps 8 bits of precision relative to its largest. Embeddings stay in 32 bits,
    since few of their rows have a gradient in a step; so do tensors below 4096 values. Compare with `parity`.

Example::

    from diagnose.kernels.eight_bit import eight_bit_adamw, estimate, is_available

    log(estimate(model))  # bytes before and after
    # before: optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if is_available():  # bitsandbytes, or else torchao
        optimizer = eight_bit_adamw(model, lr=3e-4)
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Backend", "StateEstimate", "eight_bit_adamw", "estimate", "is_available", "state_bytes", "take_over"]

Backend: TypeAlias = Literal["bitsandbytes", "torchao"]
BACKENDS: tuple[Backend, ...] = ("bitsandbytes", "torchao")

BLOCK = 256
"""Values that share one scale, in both packages."""

MIN_ELEMENTS = 4096
"""Values below which a tensor's state stays in 32 bits, in both packages."""

IN_32_BITS = (nn.Embedding, nn.EmbeddingBag)
"""Few rows have a gradient in a step, and rounding the others each time adds up."""


@dataclass(frozen=True, slots=True)
class StateEstimate:
    """Bytes of AdamW's two moments in 32 and in 8 bits; ``kept`` are the parameters that stay in 32."""

    bytes_before: int
    bytes_after: int
    kept: tuple[str, ...]

    def __str__(self) -> str:
        """Return one sentence for a log."""
        return f"AdamW's state takes {self.bytes_before / 1e6:.1f} MB, and {self.bytes_after / 1e6:.1f} MB in 8 bits"


def is_available(backend: Backend | None = None) -> bool:
    """Return whether the package is installed; without a name, whether any is."""
    return any(find_spec(name) is not None for name in ((backend,) if backend else BACKENDS))


def estimate(model: nn.Module, *, keep: Sequence[type[nn.Module]] = IN_32_BITS) -> StateEstimate:
    """Return what the state takes before and after, without building an optimizer."""
    kept = _kept(model, keep)
    before = after = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            before += 8 * parameter.numel()
            small = parameter.numel() < MIN_ELEMENTS or id(parameter) in kept
            scales = -(-parameter.numel() // BLOCK) * 4
            after += 8 * parameter.numel() if small else 2 * (parameter.numel() + scales)
    return StateEstimate(before, after, tuple(kept.values()))


def eight_bit_adamw(
    model: nn.Module,
    parameters: Iterable[Any] | None = None,
    *,
    backend: Backend | None = None,
    keep: Sequence[type[nn.Module]] = IN_32_BITS,
    **arguments: Any,  # AdamW's own
) -> Optimizer:
    """Return an AdamW over ``parameters``, or all that the model trains, with its state in 8 bits.

    ``backend`` is the first that is installed. ``keep`` are classes of modules whose parameters keep 32 bits.
    ``arguments`` are AdamW's: lr, betas, eps, weight_decay.

    Raises:
        ModuleNotFoundError: the package is not installed.
        ValueError: the backend is unknown.
    """
    chosen = backend or next((name for name in BACKENDS if is_available(name)), BACKENDS[0])
    if chosen not in BACKENDS:
        raise ValueError(f"Invalid backend {backend!r}: use {' or '.join(BACKENDS)}.")
    if not is_available(chosen):
        raise ModuleNotFoundError(f"An 8-bit AdamW needs the package {chosen}; install it: pip install {chosen}.")
    trained = [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters
    kept = [p for p in model.parameters() if id(p) in _kept(model, keep)]
    build = _bitsandbytes if chosen == "bitsandbytes" else _torchao
    return build(trained, kept, arguments)


def take_over(optimizer: Optimizer, state: Mapping[Tensor, Mapping[str, Any]]) -> None:
    """Give an 8-bit optimizer that has not stepped yet the moments of a 32-bit Adam or AdamW: ``adamw.state``.

    Raises:
        ValueError: it has stepped already, or the state is no Adam's.
    """
    if optimizer.state:
        raise ValueError("The 8-bit optimizer already has its own state; take the other one over before stepping.")
    if any("exp_avg" not in held for held in state.values()):
        raise ValueError("The state holds no exp_avg, so it is not an Adam state; pass adamw.state.")
    for group_number, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            if parameter in state:
                fill = _fill_bitsandbytes if hasattr(optimizer, "init_state") else _fill_torchao
                fill(optimizer, (group_number, number), parameter, state[parameter])


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of the optimizer's state; tables that parameters share count once."""
    sizes: dict[int, int] = {}
    for held in optimizer.state.values():
        for value in held.values():
            for tensor in _inner(value) if isinstance(value, Tensor) else ():
                sizes[tensor.untyped_storage().data_ptr()] = tensor.nbytes
    return sum(sizes.values())


def _kept(model: nn.Module, keep: Sequence[type[nn.Module]]) -> dict[int, str]:
    """Return the names of the parameters that stay in 32 bits, by identity; a tied one stays for all its users."""
    classes: tuple[type[nn.Module], ...] = tuple(keep)
    return {
        id(parameter): f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, classes)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad
    }


def _bitsandbytes(parameters: Iterable[Any], kept: list[nn.Parameter], arguments: dict[str, Any]) -> Optimizer:
    package: Any = import_module("bitsandbytes.optim")
    for parameter in kept:
        package.GlobalOptimManager.get_instance().override_config(parameter, "optim_bits", 32)
    optimizer: Optimizer = package.AdamW8bit(parameters, **arguments)
    return optimizer


def _torchao(parameters: Iterable[Any], kept: list[nn.Parameter], arguments: dict[str, Any]) -> Optimizer:
    optimizer: Any = import_module("torchao.optim").AdamW8bit(parameters, **arguments)
    if kept:
        if not hasattr(optimizer, "_new_buffer"):
            raise ValueError("This torchao cannot keep embeddings in 32 bits; pass keep=(), or use bitsandbytes.")
        quantised, whole = optimizer._new_buffer, {id(parameter) for parameter in kept}

        def new_buffer(parameter: Tensor, signed: bool) -> Tensor:
            buffer: Tensor = torch.zeros_like(parameter) if id(parameter) in whole else quantised(parameter, signed)
            return buffer

        optimizer._new_buffer = new_buffer
    result: Optimizer = optimizer
    return result


def _fill_bitsandbytes(optimizer: Any, place: tuple[int, int], parameter: Tensor, given: Mapping[str, Any]) -> None:
    functional: Any = import_module("bitsandbytes.functional")
    optimizer.init_state(optimizer.param_groups[place[0]], parameter, *place)
    held = optimizer.state[parameter]
    held["step"] = int(given["step"])
    for number, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        value = given[name].float()
        if held[f"state{number}"].dtype == torch.uint8:
            codes, scales = functional.quantize_blockwise(value, code=held[f"qmap{number}"], blocksize=BLOCK)
            held[f"state{number}"].copy_(codes.view_as(value))
            held[f"absmax{number}"].copy_(scales.absmax)
        else:
            held[f"state{number}"].copy_(value)


def _fill_torchao(optimizer: Any, place: tuple[int, int], parameter: Tensor, given: Mapping[str, Any]) -> None:
    held = optimizer.state[parameter]
    held["step"] = torch.tensor(float(given["step"]))
    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        held[name] = optimizer._new_buffer(parameter, signed)
        held[name].copy_(given[name])


def _inner(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors that a quantised one consists of, or the tensor itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    return [inner for name in flatten()[0] for inner in _inner(getattr(tensor, name))]
