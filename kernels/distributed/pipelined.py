"""Spreads the layers of a model over ranks as a pipeline, and feeds it small batches so that ranks work at once.

What it cures
    `memory-pressure` of models too deep for a rank, over links too slow for `exposed-communication` of FSDP: only
    activations at the borders of stages are sent.

When it does not help
    With few micro batches: (ranks - 1) / (micro batches + ranks - 1) of the time ranks wait. Models that are no chain
    of layers; layers whose costs cannot be divided evenly.

Cost
    Waiting as above (`waiting_share`), and the activations of micro batches under way: of all with ``gpipe``, of as
    many as there are ranks with ``1f1b``.

Numerics
    Equal to rounding: gradients are means over micro batches. BatchNorm sees micro batches.

Example::

    from diagnose.kernels.distributed.pipelined import Pipeline

    pipeline = Pipeline(list(model), criterion, num_micro_batches=4)
    optimizer = torch.optim.AdamW(pipeline.parameters())  # those of this rank's layers
    for x, y in loader:  # the same batches on all ranks
        loss = pipeline.step(x, y)  # None but on the last rank
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from diagnose.kernels.distributed._agreement import whole_group
from diagnose.kernels.distributed._stages import balanced

__all__ = ["Pipeline", "Schedule", "balanced"]

Schedule: TypeAlias = Literal["gpipe", "1f1b", "interleaved"]
STAGES_A_RANK = 2  # of an interleaved pipeline: halves the waiting, doubles what is sent


class Pipeline:
    """Holds this rank's layers, and runs forward and backward of all ranks together.

    ``layers`` are those of the whole model, in order, the same on all ranks; only this rank's are moved to ``device``.
    ``criterion(output, target)`` is a mean over its samples. ``costs``, one for each layer, are what the division is by
    (default: their parameters' sizes).

    Raises:
        ValueError: there are fewer layers than stages, no such schedule, no micro batch, or a stage without
            parameters; interleaved, the number of micro batches is not a multiple of the ranks.
    """

    def __init__(  # what a pipeline consists of
        self,
        layers: Sequence[nn.Module],
        criterion: Callable[[Any, Any], Tensor],
        *,
        num_micro_batches: int,
        schedule: Schedule = "1f1b",
        costs: Sequence[float] | None = None,
        device: torch.device | str = "cpu",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        group = whole_group(group)
        rank, self.num_ranks = group.rank(), group.size()
        self.num_micro_batches, self.schedule = num_micro_batches, schedule
        per_rank = STAGES_A_RANK if schedule == "interleaved" else 1
        if schedule not in get_args(Schedule) or num_micro_batches < 1:
            raise ValueError(
                f"Pipeline takes one of {', '.join(get_args(Schedule))} and num_micro_batches >= 1, "
                f"not {schedule!r} and {num_micro_batches}."
            )
        if schedule == "interleaved" and num_micro_batches % self.num_ranks:
            raise ValueError(
                f"An interleaved pipeline needs a multiple of {self.num_ranks} micro batches, not {num_micro_batches}."
            )
        num_stages = self.num_ranks * per_rank
        self.cuts = balanced(costs or [_size(layer) for layer in layers], num_stages)
        idle = [n for n, (a, b) in enumerate(pairwise(self.cuts)) if not any(map(_size, layers[a:b]))]
        if idle:
            raise ValueError(
                f"Stage {idle[0]} of {num_stages} would hold no parameter; use fewer ranks, or finer layers."
            )
        self.stages = {
            number: nn.Sequential(*layers[self.cuts[number] : self.cuts[number + 1]]).to(device)
            for number in range(rank, num_stages, self.num_ranks)
        }
        device = torch.device(device)
        stages: list[Any] = [
            PipelineStage(m, number, num_stages, device, group=group) for number, m in self.stages.items()
        ]
        self.is_first, self.is_last = rank == 0, rank == self.num_ranks - 1
        if schedule == "interleaved":
            self._schedule: Any = ScheduleInterleaved1F1B(stages, num_micro_batches, loss_fn=criterion)
        else:
            kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
            self._schedule = kind(stages[0], num_micro_batches, loss_fn=criterion)

    @property
    def waiting_share(self) -> float:
        """Return the share of the step in which a rank waits, if all stages take equally long."""
        stages_a_rank = STAGES_A_RANK if self.schedule == "interleaved" else 1
        waiting = (self.num_ranks - 1) / stages_a_rank
        return waiting / (self.num_micro_batches + waiting)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of this rank's layers."""
        return (p for _, p in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield them with the names that they have in ``nn.Sequential(*layers)``."""
        for number, stage in self.stages.items():
            for name, p in stage.named_parameters():
                place, _, rest = name.partition(".")
                yield f"{self.cuts[number] + int(place)}.{rest}", p

    def step(self, x: Tensor, target: Tensor) -> Tensor | None:
        """Add the gradients of one batch, on all ranks with the same one; return its mean loss on the last rank.

        Raises:
            ValueError: the batch cannot be cut into micro batches of one size.
        """
        if len(x) % self.num_micro_batches or not len(x):
            raise ValueError(
                f"A batch of {len(x)} cannot be cut into {self.num_micro_batches} micro batches of one size; "
                "drop the last batch (drop_last=True), or choose a number that divides it."
            )
        losses: list[Tensor] = []
        inputs = (x,) if self.is_first else ()
        if self.is_last:
            self._schedule.step(*inputs, target=target, losses=losses)
            return torch.stack([loss.detach() for loss in losses]).mean()
        self._schedule.step(*inputs)
        return None


def _size(layer: nn.Module) -> float:
    return float(sum(p.numel() for p in layer.parameters()))
