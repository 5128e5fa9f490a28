"""AdamW over all parameters in one launch, the gradients' scale taken along.

What it cures
    `unfused-optimizer`, and the pass over all gradients that clipping makes before the step: the clip factor is applied
    as the gradients are read.

When it does not help
    Without clipping, ``torch.optim.AdamW(fused=True)`` is one launch as well (on an H100 the step took 0.85 of its
    time, and 0.82 with clipping); on a CPU it is the faster one, and here plain batched operators run.

Cost
    Reads and writes each parameter and its two states once, and reads its gradient. Where its tensors are is written
    down at the first step, and checked at each; a table of addresses goes to the GPU whenever gradients have moved.
    ``step(max_norm=...)`` takes the norm itself, by the same table; not yet measured on a GPU. The step's number and
    the learning rate are read on the host, so a step cannot be captured in a CUDA graph; take torch's with
    ``capturable=True`` for that.

    Sharded parameters (DTensors) are stepped in each rank's part, complex ones as pairs of numbers.

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
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from diagnose.kernels._gradient_norm import MIN_NORM, local, norm_of, placement
from diagnose.kernels.ops._adamw_step import adamw_step, squares_by_formula
from diagnose.kernels.ops._choice import chosen

__all__ = ["FusedAdamW", "adamw_step", "clip_factor"]


def clip_factor(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Return min(1, ``max_norm`` / norm of all gradients) on the device, for ``grad_scale``; nothing is waited for.

    Of sharded gradients it is the norm of the whole; their ranks all call it.

    Raises:
        ValueError: ``max_norm`` is not positive, or no parameter has a gradient.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not max_norm > 0:
        raise ValueError(f"clip_factor needs max_norm > 0, not {max_norm}.")
    if not grads:
        raise ValueError("clip_factor found no gradient; call it after backward.")
    return (max_norm / (norm_of(grads).float() + MIN_NORM)).clamp(max=1.0)


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
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        max_norm: float | None = None,
        grad_scale: Tensor | None = None,
    ) -> Any:
        """Step all parameters that have gradients; return the loss that ``closure`` gave, if any.

        ``max_norm`` clips the gradients by the norm of all of them, as ``clip_grad_norm_`` does, but leaves them as
        they are in memory. ``grad_scale``, one number in a tensor, multiplies every gradient before that.

        Raises:
            TypeError: a gradient is sparse.
            ValueError: ``max_norm`` is not positive.
        """
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"FusedAdamW needs max_norm > 0, not {max_norm}.")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [self._rows(group) for group in self.param_groups]  # all is looked at before any is changed
        if max_norm is not None:
            grad_scale = _clipping(work, max_norm, grad_scale)
        for group, (rows, grads) in zip(self.param_groups, work, strict=True):
            if grads:
                rows.run(grads, grad_scale, group)
        return loss

    def _rows(self, group: dict[str, Any]) -> tuple[_Rows, list[Tensor]]:
        """Return a group's parameters that have gradients, as they were at the last step where all is in its place."""
        pairs = [(param, grad) for param in group["params"] if (grad := param.grad) is not None]
        params, grads = [param for param, _ in pairs], [grad for _, grad in pairs]
        if any(grad.is_sparse for grad in grads):
            raise TypeError("FusedAdamW takes no sparse gradients; use torch.optim.SparseAdam for such parameters.")
        states = [self.state[param] for param in params]
        kept: dict[int, _Rows] = self.__dict__.setdefault("_kept", {})
        rows = kept.get(id(group))
        if rows is None or not rows.are(params, states):
            rows = kept[id(group)] = _Rows(params, states)
        return rows, grads


def _clipping(work: list[tuple[_Rows, list[Tensor]]], max_norm: float, grad_scale: Tensor | None) -> Tensor | None:
    """Return by what the gradients are multiplied, so that the norm of all of them is ``max_norm`` at most."""
    everything = [grad for _, grads in work for grad in grads]
    if not everything:
        return grad_scale
    device = local(everything[0]).device
    if not all(rows.is_ordinary for rows, _ in work):
        norm = norm_of(everything)
    else:
        parts = [part for rows, grads in work if grads for part in rows.squares(grads)]
        total = parts[0].sum() if len(parts) == 1 else torch.stack([part.sum().to(device) for part in parts]).sum()
        norm = total.sqrt()
    if grad_scale is None:
        return (max_norm / (norm + MIN_NORM)).clamp(max=1.0)
    scale = grad_scale.to(device)
    return (max_norm / (norm * scale.abs() + MIN_NORM)).clamp(max=1.0) * scale


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
        self.is_ordinary = all(type(p) in (Tensor, torch.nn.Parameter) and not p.is_complex() for p in params)
        self._address = Tensor.data_ptr if self.is_ordinary else _local_address
        self._addresses = [list(map(self._address, column)) for column in (params, *self._columns[:2])]
        self._stepped = [self._parts(column) for column in (params, *self._columns[:2])]
        self._dtypes = list(map(_dtype, params))
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
                list(map(self._address, column)) == addresses
                for column, addresses in zip((params, *self._columns[:2]), self._addresses, strict=True)
            )
        )

    def run(self, grads: list[Tensor], grad_scale: Tensor | None, group: dict[str, Any]) -> None:
        """Step these parameters, and count their steps."""
        if not self.is_ordinary:
            grads = self._parts(list(map(_placed, self._params, grads)))
        numbers = self._steps.tolist()
        lr, betas, eps, decay = float(group["lr"]), group["betas"], group["eps"], group["weight_decay"]
        if len(set(numbers)) == 1 and (prepared := self._launcher(grads)) is not None:
            prepared.run(
                grads, grad_scale, int(numbers[0]) + 1, lr, *map(float, betas), float(decay), float(eps),
                group["maximize"],
            )  # fmt: skip
            torch.autograd.graph.increment_version(self._params)
        else:
            by_step = defaultdict(list)
            for number, grad, param, *row in zip(numbers, grads, *self._stepped, strict=True):
                by_step[int(number) + 1].append([param, grad, *row])
            for number, rows in by_step.items():
                adamw_step(
                    *map(list, zip(*rows, strict=True)), step=number, lr=lr, betas=betas, eps=eps, weight_decay=decay,
                    maximize=group["maximize"], grad_scale=grad_scale,
                )  # fmt: skip
            if not self.is_ordinary:
                torch.autograd.graph.increment_version(self._params)
        self._steps += 1

    def squares(self, grads: list[Tensor]) -> list[Tensor]:
        """Return tensors whose elements add up to the sum of all squared gradients."""
        prepared = self._launcher(grads)
        return [squares_by_formula(grads)] if prepared is None else prepared.squares(grads)

    def _parts(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return what AdamW's formula steps: of DTensors this rank's part, of complex numbers both parts."""
        if self.is_ordinary:
            return tensors
        parts = map(local, tensors)
        return [torch.view_as_real(part) if part.is_complex() else part for part in parts]

    def _launcher(self, grads: list[Tensor]) -> Any:
        """Return the Triton launcher where it may run without the operator, whose checks take milliseconds."""
        if not self.is_ordinary or torch.compiler.is_compiling():
            return None
        if chosen("diagnose::adamw", self._params) != "triton" or list(map(_dtype, grads)) != self._dtypes:
            return None
        if self._prepared is None:
            self._prepared = _program().Prepared(self._params, *self._columns[:2])
        return self._prepared


def _local_address(tensor: Tensor) -> int:
    return local(tensor).data_ptr()


def _placed(param: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient cut as its parameter is."""
    return grad if placement(grad) == placement(param) else grad.redistribute(param.device_mesh, param.placements)  # type: ignore[attr-defined]  # a DTensor's


_dtype = operator.attrgetter("dtype")


@functools.cache
def _program() -> Any:
    return importlib.import_module("diagnose.kernels.ops.triton_kernels.adamw")


def _refuse_amsgrad(groups: Iterable[dict[str, Any]]) -> None:
    if any(group.get("amsgrad") for group in groups):
        raise ValueError(
            "FusedAdamW has no amsgrad, whose largest squares it would drop; use torch.optim.AdamW(amsgrad=True)."
        )
