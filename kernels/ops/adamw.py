"""AdamW over all parameters in one launch, the gradients' scale taken along.

What it cures
    `unfused-optimizer`, and the pass over all gradients that clipping makes before the step: the clip factor is applied
    as the gradients are read.

When it does not help
    Without clipping, ``torch.optim.AdamW(fused=True)`` is one launch as well; on a CPU it is the faster one, and here
    plain batched operators run. With one or two large parameters, where memory traffic limits every implementation.

Cost
    Reads and writes each parameter and its two states once, and reads its gradient. A table of addresses goes to the
    GPU whenever gradients have moved. The step's number and the learning rate are read on the host, so a step cannot be
    captured in a CUDA graph; take torch's with ``capturable=True`` for that.

Numerics
    AdamW's formula in float32, each result rounded once, also for 16-bit parameters; float64 parameters run in
    float64 through plain operators. Agrees with torch's to rounding (relative 1e-6 in float32 for one step).

Example::

    from diagnose.kernels.ops.adamw import FusedAdamW, clip_factor

    model = nn.Linear(8, 8)
    # before: torch.optim.AdamW(model.parameters(), lr=3e-4), clip_grad_norm_(model.parameters(), 1.0) in every step
    optimizer = FusedAdamW(model.parameters(), lr=3e-4)
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step(grad_scale=clip_factor(model.parameters(), 1.0))
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.ops._choice import chosen
from diagnose.kernels.ops.custom_op import FLOATING, checked
from diagnose.kernels.ops.custom_op import operator as made_operator

__all__ = ["FusedAdamW", "adamw_step", "clip_factor", "step_by_formula"]

MIN_NORM = 1e-6  # as torch's clip_grad_norm_ adds it, so that no gradient at all divides nothing by nothing


def clip_factor(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Return min(1, ``max_norm`` / norm of all gradients) on the device, for ``grad_scale``; nothing is waited for.

    Raises:
        ValueError: ``max_norm`` is not positive, or no parameter has a gradient.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not max_norm > 0:
        raise ValueError(f"clip_factor needs max_norm > 0, not {max_norm}.")
    if not grads:
        raise ValueError("clip_factor found no gradient; call it after backward.")
    norms = torch.stack([norm.to(grads[0].device) for norm in torch._foreach_norm(grads)])
    total = torch.linalg.vector_norm(norms.float())
    return (max_norm / (total + MIN_NORM)).clamp(max=1.0)  # type: ignore[no-any-return]  # a tensor


def adamw_step(  # AdamW's arguments
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    maximize: bool = False,
    grad_scale: Tensor | None = None,
) -> None:
    """Run step number ``step`` (the first is 1) of AdamW on every parameter, in place.

    The lists have one entry a parameter. Gradients are multiplied by ``grad_scale``, one number in a tensor.

    Raises:
        TypeError: a tensor is not floating; a gradient has another dtype than its parameter.
        ValueError: the lists differ in length or in shapes; tensors of a parameter are on several devices; a number is
            out of its range.
    """
    _adamw(
        list(params), list(grads), list(exp_avgs), list(exp_avg_sqs), grad_scale,
        step, float(lr), *map(float, betas), float(weight_decay), float(eps), maximize,
    )  # fmt: skip


class FusedAdamW(torch.optim.AdamW):
    """``torch.optim.AdamW`` whose step is ``adamw_step``; state dicts go both ways between the two.

    ``amsgrad``, also in a state dict, and sparse gradients are refused.
    """

    def __init__(  # AdamW's arguments
        self,
        params: Any,  # tensors, pairs with names, or groups
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad=False, maximize=maximize, foreach=False, fused=False
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as torch's optimizers do.

        Raises:
            ValueError: the group asks for amsgrad.
        """
        _refuse_amsgrad([param_group])
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of this optimizer or of ``torch.optim.AdamW``.

        Raises:
            ValueError: the state is one of amsgrad, whose maxima would be lost.
        """
        _refuse_amsgrad(state_dict["param_groups"])
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, grad_scale: Tensor | None = None) -> Any:
        """Step all parameters that have gradients; return the loss that ``closure`` gave, if any.

        ``grad_scale``, one number in a tensor, multiplies every gradient: a clip factor.

        Raises:
            TypeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [self._rows(group) for group in self.param_groups]  # all is looked at before any is changed
        for group, (rows, grads) in zip(self.param_groups, work, strict=True):
            if grads:
                rows.run(grads, grad_scale, group)
        return loss

    def _rows(self, group: dict[str, Any]) -> tuple[_Rows, list[Tensor]]:
        """Return a group's parameters that have gradients, as they were at the last step where all is in its place."""
        params = [param for param in group["params"] if param.grad is not None]
        grads = [param.grad for param in params]
        if any(grad.is_sparse for grad in grads):
            raise TypeError("FusedAdamW takes no sparse gradients; use torch.optim.SparseAdam for such parameters.")
        states = [self.state[param] for param in params]
        kept: dict[int, _Rows] = self.__dict__.setdefault("_kept", {})
        rows = kept.get(id(group))
        if rows is None or not rows.are(params, states):
            rows = kept[id(group)] = _Rows(params, states)
        return rows, grads


class _Rows:
    """A group's parameters with gradients and their states, checked once for as long as they stay where they are."""

    def __init__(self, params: list[Tensor], states: list[dict[str, Any]]) -> None:
        for param, state in zip(params, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        # The numbers of steps lie side by side, so that one addition counts all of them. A state dict of torch's fused
        # optimizer has them on the GPU.
        self._steps = torch.tensor([float(state["step"]) for state in states])
        for state, step in zip(states, self._steps.unbind(), strict=True):
            state["step"] = step
        self._params, self._states = params, states
        self._columns = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")]
        self._addresses = [list(map(Tensor.data_ptr, column)) for column in (params, *self._columns[:2])]
        self._ordinary = all(type(param) in (Tensor, torch.nn.Parameter) for param in params)
        self._prepared: Any = None  # the Triton launcher's

    def are(self, params: list[Tensor], states: list[dict[str, Any]]) -> bool:
        """Return whether these are the tensors that were looked at, in the memory where they were."""
        return (
            len(params) == len(self._params)
            and all(map(operator.is_, params, self._params))
            and all(
                all(map(operator.is_, (state.get(name) for state in states), column))
                for name, column in zip(("exp_avg", "exp_avg_sq", "step"), self._columns, strict=True)
            )
            and all(
                list(map(Tensor.data_ptr, column)) == addresses
                for column, addresses in zip((params, *self._columns[:2]), self._addresses, strict=True)
            )
        )

    def run(self, grads: list[Tensor], grad_scale: Tensor | None, group: dict[str, Any]) -> None:
        numbers = self._steps.tolist()
        lr, betas, eps, decay = float(group["lr"]), group["betas"], group["eps"], group["weight_decay"]
        if self._may_launch(numbers, grads):
            if self._prepared is None:
                self._prepared = _program().Prepared(self._params, *self._columns[:2])
            self._prepared.run(
                grads, grad_scale, int(numbers[0]) + 1, lr, *map(float, betas), float(decay), float(eps),
                group["maximize"],
            )  # fmt: skip
            torch.autograd.graph.increment_version(self._params)
            self._steps += 1
            return
        by_step = defaultdict(list)
        for number, *row in zip(numbers, self._params, grads, *self._columns[:2], strict=True):
            by_step[int(number) + 1].append(row)
        for number, rows in by_step.items():
            adamw_step(
                *map(list, zip(*rows, strict=True)), step=number, lr=lr, betas=betas, eps=eps, weight_decay=decay,
                maximize=group["maximize"], grad_scale=grad_scale,
            )  # fmt: skip
        self._steps += 1

    def _may_launch(self, numbers: list[float], grads: list[Tensor]) -> bool:
        """Return whether the program can be launched without the operator around it, whose checks take milliseconds."""
        return (
            self._ordinary
            and len(set(numbers)) == 1
            and not torch.compiler.is_compiling()
            and chosen("diagnose::adamw", self._params) == "triton"
            and all(grad.dtype == param.dtype for grad, param in zip(grads, self._params, strict=True))
        )


@functools.cache
def _program() -> Any:
    return importlib.import_module("diagnose.kernels.ops.triton_kernels.adamw")


def _refuse_amsgrad(groups: Iterable[dict[str, Any]]) -> None:
    if any(group.get("amsgrad") for group in groups):
        raise ValueError(
            "FusedAdamW has no amsgrad, whose largest squares it would drop; use torch.optim.AdamW(amsgrad=True)."
        )


def step_by_formula(  # the schema's
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    grad_scale: Tensor | None,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Run the step in torch's batched operators, 16 bits widened first and rounded once at the end."""
    if not params:
        return
    values, firsts, seconds = (_widened(column) for column in (params, exp_avgs, exp_avg_sqs))
    slopes = _widened(grads)
    if grad_scale is not None:
        slopes = [slope * grad_scale.to(slope.device, slope.dtype) for slope in slopes]
    if maximize:
        slopes = list(torch._foreach_neg(slopes))
    torch._foreach_mul_(values, 1 - lr * weight_decay)
    torch._foreach_lerp_(firsts, slopes, 1 - beta1)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, slopes, slopes, 1 - beta2)
    roots = torch._foreach_sqrt(seconds)
    torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(values, firsts, roots, -lr / (1 - beta1**step))
    for column, results in ((params, values), (exp_avgs, firsts), (exp_avg_sqs, seconds)):
        for tensor, result in zip(column, results, strict=True):
            if tensor is not result:
                tensor.copy_(result)


def _widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor for tensor in tensors]


def _check(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    grad_scale: Tensor | None,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,  # any number
    eps: float,
    *_: Any,
) -> None:
    if not len(params) == len(grads) == len(exp_avgs) == len(exp_avg_sqs):
        raise ValueError(
            "adamw_step needs a gradient and two states for each parameter, not lists of "
            f"{len(params)}, {len(grads)}, {len(exp_avgs)} and {len(exp_avg_sqs)}."
        )
    for place, (param, grad, first, second) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        names = (f"params[{place}]", "its gradient", "its exp_avg", "its exp_avg_sq")
        named: dict[str, Any] = dict(zip(names, (param, grad, first, second), strict=True))
        checked("adamw_step", **named)
        if not param.shape == grad.shape == first.shape == second.shape:
            raise ValueError(
                f"adamw_step needs the gradient and the states of params[{place}] in its shape, {tuple(param.shape)}."
            )
        if grad.dtype != param.dtype:
            raise TypeError(f"adamw_step needs the gradient of params[{place}] in {param.dtype}, not {grad.dtype}.")
    if grad_scale is not None and (grad_scale.numel() != 1 or grad_scale.dtype not in FLOATING):
        raise ValueError("adamw_step needs one floating number as grad_scale.")
    if step < 1 or not lr >= 0 or not eps >= 0 or not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(
            f"adamw_step needs step >= 1, lr >= 0, eps >= 0 and betas within 0 and 1, not {step}, {lr}, {eps} and "
            f"({beta1}, {beta2})."
        )


_adamw = made_operator(
    "diagnose::adamw",
    "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, Tensor? grad_scale,"
    " int step, float lr, float beta1, float beta2, float weight_decay, float eps, bool maximize) -> ()",
    check=_check,
    eager=step_by_formula,
    fake=lambda *_: None,
    program="adamw:step",
    mutates=("params", "exp_avgs", "exp_avg_sqs"),
)
