"""Finds the operator that computes what a module computes: by class for torch's own, else by comparing results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from diagnose.kernels import ops
from diagnose.kernels._state import random_state

__all__ = ["OperatorMatch", "is_one_kernel", "match_operator"]

EPSILONS = ("variance_epsilon", "eps", "epsilon")
GATES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))  # as Hugging Face and LLaMA's authors name them
SCALES = (1.0, 1e-3)  # of the numbers that are tried; among the small ones eps shows
SMALL = (6, 4)  # what matrices are tried as; a feed-forward layer of any size costs nothing then
ROUNDINGS = 8  # units in the last place by which results may differ: the class rounds between its operators
ONE_KERNEL = (nn.GELU, nn.Softmax, nn.LayerNorm, *([nn.RMSNorm] if hasattr(torch, "_fused_rms_norm") else []))


@dataclass(frozen=True)
class OperatorMatch:
    """An operator by its name, and the forward that runs it, called with the module and ``arguments`` first."""

    operator: str
    forward: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


MatchResult: TypeAlias = OperatorMatch | str | None
Formula: TypeAlias = Callable[[nn.Module, Tensor], Tensor]


def is_one_kernel(module: nn.Module) -> bool:
    """Return whether torch runs the module as one kernel already."""
    return type(module) in ONE_KERNEL


def match_operator(module: nn.Module) -> MatchResult:
    """Return the operator for ``module``, the reason where it looks like one and is not, or None."""
    if "forward" in module.__dict__:
        return "its forward has been replaced already" if _candidates(module) else None
    if isinstance(module, torch.jit.ScriptModule):
        return None
    if type(module) in BUILT_IN:
        return BUILT_IN[type(module)](module)
    candidates = _candidates(module)
    if not candidates:
        return None
    try:
        return next((c for c, formula in candidates if _agrees(module, formula)), _differs(candidates))
    except Exception as error:  # a forward of the user's may raise anything
        return f"it does not take one tensor as {candidates[0][0].operator} does ({type(error).__name__})"


def _differs(candidates: list[tuple[OperatorMatch, Formula]]) -> str:
    return f"its results are not those of {candidates[0][0].operator}"


def _candidates(module: nn.Module) -> list[tuple[OperatorMatch, Formula]]:
    """Return what a module of this name and these parameters may calculate."""
    if type(module) in BUILT_IN:
        return [(OperatorMatch("", _gelu), _gelu_formula("none"))]
    name = type(module).__name__.lower()
    gates = next((names for names in GATES if all(type(getattr(module, n, None)) is nn.Linear for n in names)), None)
    if gates is not None and sum(1 for _ in module.parameters()) in (3, 6):
        return [(OperatorMatch("swiglu", _swiglu, gates), _swiglu_formula(gates))]
    if any(True for _ in module.children()) or any(True for _ in module.buffers()):
        return []
    parameters = dict(module.named_parameters())
    if not parameters and "gelu" in name:
        return [(OperatorMatch("gelu", _gelu, (form,)), _gelu_formula(form)) for form in ("none", "tanh")]
    eps = next((getattr(module, n) for n in EPSILONS if isinstance(getattr(module, n, None), float)), None)
    if list(parameters) == ["weight"] and eps is not None and ("rmsnorm" in name or name.endswith("t5layernorm")):
        return [(OperatorMatch("rms_norm", _rms_norm, (eps,)), _rms_norm_formula(eps))]
    return []


def _agrees(module: nn.Module, formula: Formula) -> bool:
    """Run the module's class on small random numbers, in training and in evaluation, and compare."""
    undo = random_state(())
    try:
        small = _small_copy(module)
        weights = next(small.parameters(), torch.empty(0))
        width = SMALL[1] if weights.dim() == 2 else weights.numel() or 7
        with torch.no_grad(), torch.autocast(weights.device.type, enabled=False):
            for scale in SCALES:
                x = (torch.randn(3, 2, width, dtype=torch.float64) * scale).to(weights)
                wanted = formula(small, x)
                if not all(_close(small.train(mode)(x), wanted) for mode in (True, False)):
                    return False
    finally:
        undo()
    return True


def _small_copy(module: nn.Module) -> nn.Module:
    """Return a copy without hooks, of random parameters in float32, where 16 bits would hide what differs."""
    known = {}
    for name, parameter in module.named_parameters():
        matrix = SMALL[::-1] if name.startswith(("down_proj.", "w2.")) else SMALL
        shape = matrix[: parameter.dim()] if "." in name else parameter.shape
        values = torch.randn(shape).to(parameter.device)
        known[id(parameter)] = nn.Parameter(values, requires_grad=False)
    small = copy.deepcopy(module, known)
    for part in small.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return small


def _close(got: Any, wanted: Tensor) -> bool:  # whatever the module returns
    if not isinstance(got, Tensor) or got.shape != wanted.shape:
        return False
    last = torch.finfo(got.dtype).eps
    near = ROUNDINGS * last * wanted.abs() + last * wanted.abs().max()
    return bool(((got.double() - wanted).abs() <= near).all())


def _gelu_formula(form: str) -> Formula:
    return lambda _, x: nn.functional.gelu(x.double(), approximate=form)


def _rms_norm_formula(eps: float) -> Formula:
    def formula(module: nn.Module, x: Tensor) -> Tensor:
        wide = x.double()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * module.weight.double()  # type: ignore[operator]

    return formula


def _swiglu_formula(gates: tuple[str, ...]) -> Formula:
    def formula(module: nn.Module, x: Tensor) -> Tensor:
        gate, up, down = (copy.deepcopy(getattr(module, name)).double() for name in gates)
        return down(nn.functional.silu(gate(x.double())) * up(x.double()))  # type: ignore[no-any-return]

    return formula


def _gelu(_: nn.Module, form: str, input: Tensor) -> Tensor:  # torch's name
    return ops.gelu(input, form)


def _rms_norm(module: nn.Module, eps: float | None, hidden_states: Tensor) -> Tensor:
    eps = torch.finfo(hidden_states.dtype).eps if eps is None else eps
    return ops.rms_norm(hidden_states, module.weight, eps)  # type: ignore[arg-type]  # a tensor or None


def _swiglu(module: nn.Module, gate: str, up: str, down: str, x: Tensor) -> Tensor:
    hidden = ops.swiglu(getattr(module, gate)(x), getattr(module, up)(x))
    return getattr(module, down)(hidden)  # type: ignore[no-any-return]


def _softmax(_: nn.Module, dim: int, input: Tensor) -> Tensor:
    return ops.softmax(input, dim)


def _layer_norm(module: nn.LayerNorm, input: Tensor) -> Tensor:
    num = len(module.normalized_shape)
    if module.weight is None and num > 1:
        return ops.layer_norm(input.flatten(-num), eps=module.eps).reshape(input.shape)
    return ops.layer_norm(input, module.weight, module.bias, module.eps)


def _builtin_rms_norm(module: nn.RMSNorm, input: Tensor) -> Tensor:
    num = len(module.normalized_shape)
    flat = input.flatten(-num) if module.weight is None else input
    return _rms_norm(module, module.eps, flat).reshape(input.shape)


def _cross_entropy(module: nn.CrossEntropyLoss, input: Tensor, target: Tensor) -> Tensor:
    if input.dim() != 2 or target.dtype != torch.int64 or target.dim() != 1:
        return type(module).forward(module, input, target)  # classes in the middle, or shares as targets
    return ops.cross_entropy(
        input,
        target,
        ignore_index=module.ignore_index,
        label_smoothing=module.label_smoothing,
        reduction=module.reduction,
    )


def _for_loss(module: Any) -> MatchResult:  # a CrossEntropyLoss
    return "it weighs its classes" if module.weight is not None else OperatorMatch("cross_entropy", _cross_entropy)


def _for_softmax(module: Any) -> MatchResult:
    return "it names no dimension" if module.dim is None else OperatorMatch("softmax", _softmax, (module.dim,))


BUILT_IN: dict[type[nn.Module], Callable[[Any], MatchResult]] = {
    nn.GELU: lambda module: OperatorMatch("gelu", _gelu, (module.approximate,)),
    nn.Softmax: _for_softmax,
    nn.LayerNorm: lambda _: OperatorMatch("layer_norm", _layer_norm),
    nn.RMSNorm: lambda _: OperatorMatch("rms_norm", _builtin_rms_norm),
    nn.CrossEntropyLoss: _for_loss,
}
