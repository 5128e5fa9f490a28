"""Gradients sent as products of two thin matrices (PowerSGD, Vogels et al. 2019, arXiv:1905.13727).

torch's own hook differs in ways that matter in long runs: its memory is tied to buckets, which DDP rebuilds after the
first step of a resumed run as well; one overflowed step makes it NaN for good; and on gloo it chains collectives by
callbacks of several threads, whose order may differ between ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from diagnose.kernels.distributed._compressing import Compressing
from diagnose.kernels.distributed._hook import Bucket, Rounds, num_bytes

__all__ = ["PowerSGD"]

WARM_UP_STEPS = 1000  # torch's default: early gradients decide where training goes, and are least like low rank
MIN_SAVING = 2.0  # times; below it the two products cost more than the bytes that they save


@dataclass(frozen=True)
class _Matrix:
    name: str
    gradient: Tensor  # of any shape and strides
    left: int  # rows of the first factor
    right: int
    rank: int

    def rows(self) -> Tensor:
        return _wide(self.gradient.reshape(self.left, self.right))


class _Product(NamedTuple):
    matrix: _Matrix
    basis: Tensor  # [left, rank], orthonormal, the same on all ranks
    own: Tensor  # [right, rank], of this rank's gradient
    mean: Tensor  # [right, rank], of all


class PowerSGD(Compressing):
    """Sends gradients of two or more dimensions as a product of rank ``rank``, from step ``warm_up`` on.

    ``min_saving`` is how many times smaller a matrix must get; others are sent as they are. ``dtype`` sends the factors
    in 16 bits. With ``error_feedback`` what a product lacks is added to the next step's gradients, in each rank.

    Raises:
        ValueError: ``rank`` is less than one, or ``warm_up`` or ``min_saving`` is negative.
    """

    name = "power_sgd"

    def __init__(
        self,
        *,
        rank: int = 1,
        warm_up: int = WARM_UP_STEPS,
        min_saving: float = MIN_SAVING,
        error_feedback: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(error_feedback=error_feedback, warm_up=warm_up)
        if rank < 1 or warm_up < 0 or min_saving < 0:
            raise ValueError(
                "The hook 'power_sgd' needs rank >= 1, warm_up >= 0 and min_saving >= 0, not "
                f"rank={rank}, warm_up={warm_up}, min_saving={min_saving}."
            )
        self.rank, self.min_saving, self.dtype = rank, min_saving, dtype
        self.factors: dict[str, Tensor] = {}  # the second ones, [right, rank], where the next step begins

    def rounds(self, bucket: Bucket) -> Rounds:
        """Reduce both factors of each matrix, and what is sent as it is with the first ones."""
        names = self.names_of(bucket)
        if self.error_feedback:
            self.residuals.add_to(bucket, names)
        matrices = [m for n, g in zip(names, bucket.gradients(), strict=True) if (m := self._matrix(n, g))]
        taken = {m.name for m in matrices}
        others = [g for n, g in zip(names, bucket.gradients(), strict=True) if n not in taken]

        thin = [m.rows() @ self._factor(m) for m in matrices]
        sent = self._packed([*thin, *others])
        yield lambda: dist.all_reduce(sent, group=self.group, async_op=True), (sent, *thin)
        means = _unpacked(sent, [*thin, *others])
        for gradient, mean in zip(others, means[len(thin) :], strict=True):
            gradient.copy_(mean)
        basis = [_orthonormal(mean) for mean in means[: len(thin)]]

        wide = [m.rows().T @ p for m, p in zip(matrices, basis, strict=True)]
        self.count(bucket, sent)
        products = []
        if wide:
            sent_wide = self._packed(wide)
            self.bytes["sent"] += num_bytes([sent_wide])
            yield lambda: dist.all_reduce(sent_wide, group=self.group, async_op=True), (sent_wide, *wide, *basis)
            products = list(map(_Product, matrices, basis, wide, _unpacked(sent_wide, wide)))
        if self.error_feedback:
            left = self.residuals.room(bucket, names).zero_()
            _keep_errors(left, bucket.buffer(), products)
            self.residuals.keep(bucket, names, left)
        for m, p, _, mean in products:
            _put(m.gradient, lambda out, p=p, q=mean: torch.mm(p, q.T, out=out))
            self.factors[m.name].copy_(_usable(mean))
        whole: Tensor = bucket.buffer()
        return whole

    def _matrix(self, name: str, gradient: Tensor) -> _Matrix | None:
        if gradient.dim() < 2 or gradient.numel() == 0:
            return None
        left, right = gradient.shape[0], gradient[0].numel()
        rank = min(self.rank, left, right)
        smaller = (left + right) * rank * self.min_saving < left * right
        return _Matrix(name, gradient, left, right, rank) if smaller else None

    def _factor(self, m: _Matrix) -> Tensor:
        known = self.factors.get(m.name)
        if known is None or known.shape != (m.right, m.rank):
            known = self.factors[m.name] = _first_factor(m)
        return known

    def _packed(self, tensors: list[Tensor]) -> Tensor:
        """Return the mean's share of this rank, all in one flat tensor."""
        flat = torch.cat([_wide(t.reshape(-1)) for t in tensors]).div_(self.group.size())
        return flat if self.dtype is None else flat.to(self.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the factors (alike on all ranks) and what this rank has not sent yet (its own)."""
        return {**super().state_dict(), "factors": {name: q.clone() for name, q in self.factors.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back; load each rank's own."""
        super().load_state_dict(state_dict)
        self.factors = {
            name: q.to(self.parameters[name].device, copy=True) for name, q in state_dict["factors"].items()
        }


def _keep_errors(left: Tensor, buffer: Tensor, products: list[_Product]) -> None:
    """Write what the products lack of this rank's gradients to ``left``, laid out as the bucket.

    Against this rank's own product, as in the paper; against the mean's, which has the same mean, the errors hold all
    that ranks differ in.
    """
    for m, p, own, _ in products:
        start = m.gradient.storage_offset() - buffer.storage_offset()
        place = left.as_strided(m.gradient.shape, m.gradient.stride(), start)
        _put(place, lambda out, m=m, p=p, q=own: torch.addmm(m.rows(), p, q.T, alpha=-1, out=out))


def _put(place: Tensor, compute: Callable[..., Tensor]) -> None:
    """Have ``compute(out)`` write a matrix to ``place``, at once where its memory is laid out as one."""
    if place.is_contiguous() and place.dtype not in (torch.float16, torch.bfloat16):
        compute(place.view(place.shape[0], -1))
    else:
        place.copy_(compute(None).view(place.shape))


def _unpacked(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = torch.split(_wide(flat), [t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def _orthonormal(p: Tensor) -> Tensor:
    """Return an orthonormal basis that spans the columns; of a zero matrix any basis, so that it recovers."""
    basis: Tensor = torch.linalg.qr(p)[0]
    return basis


def _usable(factor: Tensor) -> Tensor:
    """Return the factor, or a plain one where it is zero or not finite: either would stay so for ever.

    All ranks decide alike, since the factor is the mean of all.
    """
    sound = torch.isfinite(factor).all() & (factor != 0).any()
    return torch.where(sound, factor, torch.eye(*factor.shape, dtype=factor.dtype, device=factor.device))


def _first_factor(m: _Matrix) -> Tensor:
    """Return where to begin: the same random matrix on all ranks, whatever their generators have drawn."""
    generator = torch.Generator().manual_seed(m.right * 1_000_003 + m.left)
    drawn = torch.randn(m.right, m.rank, generator=generator, dtype=torch.float64)
    return drawn.to(m.gradient.device, _wide(m.gradient[:0]).dtype)


def _wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 at least: sums over a matrix's columns need it, and so does the decomposition."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
