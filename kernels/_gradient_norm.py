"""The norm of gradients of which some are sharded or on other ranks, and clipping by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["clip_gradients", "local", "norm_of", "placement"]

MIN_NORM = 1e-6  # as torch's clip_grad_norm_ adds it, so that no gradient at all divides nothing by nothing


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, and any other tensor as it is; both share memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def placement(tensor: Tensor) -> tuple[object, object]:
    """Return what tensors must have in common for torch's batched operators: a DTensor's mesh and placements."""
    return (getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None))


def norm_of(gradients: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the norm of all gradients, a scalar on the first one's device; sharded ones count as a whole.

    With ``group``, whose ranks all call it, it is the norm over what all of them hold: each must hold other ones.

    Raises:
        ValueError: there is no gradient.
    """
    if not gradients:
        raise ValueError("norm_of needs a gradient.")
    alike: defaultdict[object, list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        alike[placement(gradient)].append(gradient)
    norms = [torch.nn.utils.get_total_norm(part) for part in alike.values()]
    norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    if len(norms) == 1 and group is None:
        return norms[0]
    dtype = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    total = torch.stack([norm.to(norms[0].device, dtype) for norm in norms]).square().sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    return total.sqrt()


def clip_gradients(
    parameters: Iterable[Tensor], max_norm: float, *, group: dist.ProcessGroup | None = None
) -> Tensor | None:
    """Do what ``torch.nn.utils.clip_grad_norm_`` does, for any mixture of plain and sharded parameters.

    Gradients are scaled in place so that the norm of all of them is ``max_norm`` at most. Returns the norm before that,
    a scalar; None if nothing has a gradient. ``group``: see ``norm_of``; a rank of it may be without gradients.
    """
    held = list(parameters)
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    if not gradients and (group is None or not held):
        return None
    norm = norm_of(gradients or [torch.zeros((), device=held[0].device)], group)
    factor = (max_norm / (norm + MIN_NORM)).clamp(max=1.0)
    parts: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for gradient in map(local, gradients):
        parts[gradient.device, gradient.dtype].append(gradient)
    for (device, _), part in parts.items():
        torch._foreach_mul_(part, factor.to(device))
    return norm
