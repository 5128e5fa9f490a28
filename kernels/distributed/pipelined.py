"""Splits the layers of a model over ranks as a pipeline.

What it cures
    `memory-pressure` of models too deep for a rank, over links too slow for `exposed-communication` of FSDP: only
    activations at the borders of stages are sent.

When it does not help
    With few micro batches: (ranks - 1) / (micro batches + ranks - 1) of the time ranks wait. Models that are no chain
    of layers; layers whose costs cannot be divided evenly.

Cost
    Waiting as above (`waiting_share`), and the activations of micro batches under way: of all with ``gpipe``, of as
    many as there are ranks with ``1f1b``. One all-reduce of two numbers per step, which compares the ranks' batches.

Numerics
    Equal to rounding: gradients are means over micro batches. BatchNorm sees micro batches.

Example::

    from diagnose.kernels.distributed.pipelined import Pipeline

    pipeline = Pipeline(list(model), criterion, num_micro_batches=4)
    optimizer = torch.optim.AdamW(pipeline.parameters())  # those of this rank's layers
    for x, y in loader:  # the same batches on all ranks
        loss = pipeline.step(x, y)  # None but on the last rank
        pipeline.clip_gradients(1.0)  # by the norm over all ranks, which clip_grad_norm_ does not know
        optimizer.step()
        optimizer.zero_grad()
    val_loss = pipeline.evaluate(x, y)  # of batches of any size, without gradients
    whole = pipeline.whole_state_dict()  # as nn.Sequential(*layers) has it, on rank 0
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from diagnose.kernels._gradient_norm import clip_gradients
from diagnose.kernels.distributed._agreement import whole_group
from diagnose.kernels.distributed._same_batches import SameOnRanks
from diagnose.kernels.distributed._stages import balanced

__all__ = ["Pipeline", "Schedule", "balanced"]

Schedule: TypeAlias = Literal["gpipe", "1f1b", "interleaved"]
BATCHES = (
    "The ranks of a pipeline were given different batches, so that the targets are not those of the inputs; leave "
    "DistributedSampler out, and draw the same order on all ranks."
)
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
        self._group, self._device = group, torch.device(device)
        self._criterion, self._num_layers = criterion, len(layers)
        self._same = SameOnRanks(group, self._device, (BATCHES,))
        self._initialized = False
        self.stages = {
            number: nn.Sequential(*layers[self.cuts[number] : self.cuts[number + 1]]).to(device)
            for number in range(rank, num_stages, self.num_ranks)
        }
        stages: list[Any] = [
            PipelineStage(m, number, num_stages, self._device, group=group) for number, m in self.stages.items()
        ]
        self.is_first, self.is_last = rank == 0, rank == self.num_ranks - 1
        if schedule == "interleaved":
            self._schedule: Any = ScheduleInterleaved1F1B(stages, num_micro_batches, loss_fn=criterion)
        else:
            kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
            self._schedule = kind(stages[0], num_micro_batches, loss_fn=criterion)
        for name in ("_initialize_stage", "_initialize_stages"):
            if hasattr(self._schedule, name):
                setattr(self._schedule, name, self._without_traces(getattr(self._schedule, name)))

    def _without_traces(self, initialize: Callable[..., Any]) -> Callable[..., Any]:
        """Return what lets torch run the stages once to learn shapes, without a change of buffers or random states.

        Otherwise BatchNorm would count a batch that no step trained on.
        """

        @functools.wraps(initialize)
        def initialized(*args: Any, **kwargs: Any) -> Any:  # whatever this torch's schedules hand over
            if self._initialized:
                return initialize(*args, **kwargs)
            self._initialized = True
            buffers = [(b, b.clone()) for stage in self.stages.values() for b in stage.buffers()]
            with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
                result = initialize(*args, **kwargs)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            return result

        return initialized

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
                yield _renumbered(name, self.cuts[number]), p

    def clip_gradients(self, max_norm: float) -> Tensor | None:
        """Scale gradients so that the norm over all stages is ``max_norm`` at most; return the norm before, a scalar.

        All ranks call it. ``torch.nn.utils.clip_grad_norm_`` would take each rank's norm for the whole.
        """
        return clip_gradients(self.parameters(), max_norm, group=self._group)

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and buffers of this rank's layers, with the names that they have in the whole model."""
        return {
            _renumbered(name, self.cuts[number]): value
            for number, stage in self.stages.items()
            for name, value in stage.state_dict().items()
        }

    def whole_state_dict(self, to: int = 0) -> dict[str, Any] | None:
        """Gather the state of all layers on the CPU of rank ``to``, None elsewhere; all ranks call it.

        ``nn.Sequential(*layers)`` loads it, and so does a pipeline of any number of ranks.
        """
        mine = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in self.state_dict().items()}
        parts: list[Any] | None = [None] * self.num_ranks if self._group.rank() == to else None
        dist.gather_object(mine, parts, dst=dist.get_global_rank(self._group, to), group=self._group)
        if parts is None:
            return None
        whole = {name: value for part in parts for name, value in part.items()}
        return {name: whole[name] for name in sorted(whole, key=_layer)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's layers from the state of the whole model, or from what ``state_dict`` returned here.

        Raises:
            ValueError: something of this rank's layers is missing or has another shape, or a name is of no layer.
        """
        wanted = self.state_dict()
        unknown = [name for name in state if name not in wanted and self._is_mine(name)]
        missing = [name for name in wanted if name not in state]
        if missing or unknown:
            raise ValueError(
                f"The state lacks {missing[:5] or 'nothing'} of rank {self._group.rank()}'s layers, and has "
                f"{unknown[:5] or 'nothing'} that they lack; it must be one of nn.Sequential(*layers)."
            )
        shapes = [n for n, v in wanted.items() if isinstance(v, Tensor) and v.shape != state[n].shape]
        if shapes:
            raise ValueError(f"The state's {shapes[0]!r} has another shape than the layer's.")
        for number, stage in self.stages.items():
            names = stage.state_dict()
            stage.load_state_dict({name: state[_renumbered(name, self.cuts[number])] for name in names})

    def _is_mine(self, name: str) -> bool:
        """Return whether a name of a state is of this rank's layers, or of none at all."""
        layer = _layer(name)
        return not 0 <= layer < self._num_layers or any(
            self.cuts[number] <= layer < self.cuts[number + 1] for number in self.stages
        )

    def step(self, x: Tensor, target: Tensor) -> Tensor | None:
        """Add the gradients of one batch, on all ranks with the same one; return its mean loss on the last rank.

        Raises:
            ValueError: the batch cannot be cut into micro batches of one size, or ranks were given different ones.
        """
        if len(x) % self.num_micro_batches or not len(x):
            raise ValueError(
                f"A batch of {len(x)} cannot be cut into {self.num_micro_batches} micro batches of one size; "
                "drop the last batch (drop_last=True), or choose a number that divides it."
            )
        self._same.check((x, target))
        losses: list[Tensor] = []
        inputs = (x,) if self.is_first else ()
        if self.is_last:
            self._schedule.step(*inputs, target=target, losses=losses)
            return torch.stack([loss.detach() for loss in losses]).mean()
        self._schedule.step(*inputs)
        return None

    def evaluate(self, x: Tensor, target: Tensor) -> Tensor | None:
        """Return the loss of one batch of any size on the last rank, in evaluation mode and without gradients.

        All ranks call it with the same batch.

        Raises:
            ValueError: the batch is empty.
        """
        outputs = self.predict(x)
        if outputs is None:
            return None
        with torch.no_grad():
            return self._criterion(outputs, target.to(outputs.device))

    def predict(self, x: Tensor) -> Tensor | None:
        """Return the outputs of one batch of any size on the last rank, in evaluation mode and without gradients.

        Ranks work at once on parts of the batch, at most as many as in training. All ranks call it with the same batch.

        Raises:
            ValueError: the batch is empty.
            TypeError: a stage hands on something else than a tensor.
        """
        if not len(x):
            raise ValueError("A pipeline cannot evaluate an empty batch.")
        modes = {stage: stage.training for stage in self.stages.values()}
        found = []
        try:
            for stage in modes:
                stage.eval()
            with torch.no_grad():
                for part in torch.chunk(x, self.num_micro_batches):
                    found += self._forward(part)
        finally:
            for stage, mode in modes.items():
                stage.train(mode)
        return torch.cat(found) if self.is_last else None

    def _forward(self, part: Tensor) -> list[Tensor]:
        """Take one part through this rank's stages; return the output of the last one of all."""
        last = self.num_ranks * len(self.stages) - 1
        for number, stage in self.stages.items():
            y = stage(part.to(self._device) if number == 0 else self._received(number))
            if not isinstance(y, Tensor):
                raise TypeError(f"Stage {number} returns {type(y).__name__}; evaluation passes on single tensors.")
            if number == last:
                return [y]
            self._send(y, number)
        return []

    def _send(self, y: Tensor, number: int) -> None:
        to = dist.get_global_rank(self._group, (number + 1) % self.num_ranks)
        dist.send_object_list([(tuple(y.shape), y.dtype)], to, group=self._group, device=self._device)
        dist.send(y.contiguous(), to, group=self._group)

    def _received(self, number: int) -> Tensor:
        source = dist.get_global_rank(self._group, (number - 1) % self.num_ranks)
        form: list[Any] = [None]
        dist.recv_object_list(form, source, group=self._group, device=self._device)
        shape, dtype = form[0]
        y = torch.empty(shape, dtype=dtype, device=self._device)
        dist.recv(y, source, group=self._group)
        return y


def _renumbered(name: str, first: int) -> str:
    """Return the whole model's name for one of a stage that begins with layer ``first``."""
    place, _, rest = name.partition(".")
    return f"{first + int(place)}.{rest}"


def _layer(name: str) -> int:
    """Return the layer that a name begins with, -1 where it begins with none."""
    place = name.partition(".")[0]
    return int(place) if place.isdecimal() else -1


def _size(layer: nn.Module) -> float:
    return float(sum(p.numel() for p in layer.parameters()))
