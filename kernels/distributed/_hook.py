"""What a gradient hook is: a callable with a name, a state, and a count of the bytes it sends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Bucket", "CommHook", "Round", "Rounds", "all_gather", "done", "num_bytes", "reduce_scatter", "run_rounds"]

Round: TypeAlias = tuple[Callable[[], Any], tuple[Tensor, ...]]
"""Starts one collective; and the tensors that it and what follows use."""
Rounds: TypeAlias = Generator[Round, None, Tensor]

# the names before torch 2.13
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Bucket(Protocol):
    """What torch hands to a hook: ``dist.GradBucket``."""

    def index(self) -> int:
        """Return its number within the step."""

    def buffer(self) -> Tensor:
        """Return all its gradients, flat."""

    def gradients(self) -> list[Tensor]:
        """Return views into the buffer, one for each parameter."""

    def parameters(self) -> list[Tensor]:
        """Return the parameters."""

    def is_last(self) -> bool:
        """Return whether it is the last one of the backward."""


class CommHook(ABC):
    """Replaces the all-reduce of DistributedDataParallel's gradient buckets.

    ``raw_bytes`` counts the gradients that went through it, ``sent_bytes`` what this rank gave to collectives instead.
    """

    name = ""
    takes_sparse = False
    """Whether a bucket may be a sparse tensor, as those of ``nn.Embedding(sparse=True)`` are."""

    def __init__(self) -> None:
        self.bytes = {"raw": 0, "sent": 0}
        self.parameter_names: dict[int, str] = {}
        self._group: dist.ProcessGroup | None = None

    @property
    def raw_bytes(self) -> int:
        """Return the bytes of gradients so far."""
        return self.bytes["raw"]

    @property
    def sent_bytes(self) -> int:
        """Return the bytes sent so far."""
        return self.bytes["sent"]

    @property
    def group(self) -> dist.ProcessGroup:
        """Return the ranks that share gradients.

        Raises:
            RuntimeError: the hook was not installed yet.
        """
        if self._group is None:
            raise RuntimeError(f"The hook {self.name!r} is not installed; call install(ddp, hook) before the backward.")
        return self._group

    @property
    def is_bound(self) -> bool:
        """Return whether a model uses the hook."""
        return self._group is not None

    def bind(self, ddp: DistributedDataParallel) -> None:
        """Learn the ranks and the parameters' names.

        Raises:
            ValueError: the hook, whose state belongs to one model, is in use already; or a gradient is sparse, and the
                hook does not take such.
        """
        if self.is_bound:
            raise ValueError(
                f"The hook {self.name!r} is installed in a model already; make another one for this model."
            )
        if not self.takes_sparse:
            _refuse_sparse(self.name, ddp)
        self.check(ddp)
        self._group = ddp.process_group
        self.parameter_names = {id(p): name for name, p in ddp.module.named_parameters()}

    def check(self, ddp: DistributedDataParallel) -> None:  # noqa: B027  # most hooks serve every model
        """Raise where the hook cannot serve this model."""

    @abstractmethod
    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Return the future of the bucket's mean over the ranks."""

    def names_of(self, bucket: Bucket) -> list[str]:
        """Return the names of the bucket's parameters, in the order of its gradients."""
        return [self.parameter_names[id(p)] for p in bucket.parameters()]

    def count(self, bucket: Bucket, *sent: Tensor) -> None:
        """Add a bucket to the counts of bytes."""
        self.bytes["raw"] += num_bytes([bucket.buffer()])
        self.bytes["sent"] += num_bytes(sent)

    def state_dict(self) -> dict[str, Any]:
        """Return what the hook remembers from step to step, of this rank."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back.

        Raises:
            ValueError: it is the state of another kind of hook.
        """
        if state_dict:
            raise ValueError(f"The hook {self.name!r} keeps no state, and was handed one with {sorted(state_dict)}.")


def _refuse_sparse(hook: str, ddp: DistributedDataParallel) -> None:
    for path, module in ddp.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            name = f"{path}.weight" if path else "weight"
            raise ValueError(
                f"{name!r} has sparse gradients, which the hook {hook!r} does not take; build the embedding with "
                "sparse=False, or use plain DDP or 'bf16'."
            )


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that the tensors' elements take."""
    return sum(t.numel() * t.element_size() for t in tensors)


def done(value: Tensor) -> Future[Tensor]:
    """Return a future that holds its value."""
    devices: list[int | str | torch.device] | None = [value.device] if value.device.type != "cpu" else None
    future: Future[Tensor] = Future(devices=devices)
    future.set_result(value)
    return future


def run_rounds(rounds: Rounds, group: dist.ProcessGroup, device: torch.device) -> Future[Tensor]:
    """Run collectives that depend on each other, in the same order on all ranks.

    Collectives of a device are queued at once, on a stream of their own, and the backward goes on. Those of host
    backends (gloo) are waited for: chained by callbacks they would be issued by several threads, in an order that
    differs between ranks.
    """
    start, used = next(rounds)
    if not _is_queued(group, device):
        start().wait()
        return done(_finished(rounds))

    def rest(_: Future[Any]) -> Tensor:
        _hold(used)
        return _finished(rounds)

    future: Future[Tensor] = start().get_future().then(rest)
    return future


def _is_queued(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Return whether the backend queues collectives on the device, so that waiting for one does not stop the host."""
    return device.type != "cpu" and group._get_backend(device).name() != "gloo"


def _finished(rounds: Rounds) -> Tensor:
    while True:
        try:
            start, used = next(rounds)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returns
        start().wait()  # on a device only the stream waits
        _hold(used)


def _hold(tensors: tuple[Tensor, ...]) -> None:
    """Keep memory that another stream allocated until this one is done with it."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
