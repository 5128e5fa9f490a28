"""Computes blocks again in the backward pass: less memory, more time.

What it cures
    `memory-pressure`: activations that do not fit. With the memory that it frees, a larger batch that keeps the device
    busy (`launch-bound`, `small-grid`).

When it does not help
    Where weights, gradients and optimizer state are what fills the memory (shard or offload those), and for blocks
    that keep little beyond their input, such as a single linear layer.

Cost
    One more forward pass of each chosen block, about a third more time where all of them are chosen; ``every``, a plan
    under a memory target, or ``save_ops`` for the costly operators bring it down. A block's inputs stay in memory.

Numerics
    The same numbers, bit by bit where the operators are deterministic: dropout draws the same mask again, autocast is
    as in the forward pass, and running statistics of batch norm are updated once, not twice. A block that changes other
    buffers in its forward pass is refused there.

Example::

    from diagnose.kernels.checkpointing import checkpoint_blocks, plan_checkpoints

    model = nn.Sequential(*[nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(4)])
    x = torch.randn(8, 16, 32)
    # before: every activation of every block is kept
    plan = plan_checkpoints(model, lambda: model(x).sum(), target_bytes=1_500_000)
    log(plan)  # which blocks, how many bytes at the peak, how much longer
    checkpoint_blocks(model, blocks=plan.names)  # before DDP, fully_shard and compile
    model(x).sum().backward()
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from diagnose.kernels._activations import measure
from diagnose.kernels._planner import BlockCost, cheapest, peak_bytes

__all__ = [
    "COSTLY_OPS",
    "Checkpointed",
    "Plan",
    "activation_budget",
    "blocks_of",
    "checkpoint_blocks",
    "plan_checkpoints",
]

Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_COSTLY = (
    "mm addmm bmm baddbmm linear convolution _scaled_mm _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu"
)
COSTLY_OPS = tuple(getattr(torch.ops.aten, name).default for name in _COSTLY.split() if hasattr(torch.ops.aten, name))
"""Matrix products, convolutions and attention: their results are worth keeping, everything between them is not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which blocks to compute again. Bytes are of activations at the peak, seconds those of one step."""

    names: tuple[str, ...]
    costs: tuple[BlockCost, ...]
    bytes_before: int
    bytes_after: int
    extra_seconds: float

    def __str__(self) -> str:
        """Return one sentence for a log."""
        return (
            f"Computing {len(self.names)} of {len(self.costs)} blocks again brings activations from "
            f"{self.bytes_before / 1e6:.1f} to {self.bytes_after / 1e6:.1f} MB, "
            f"for {self.extra_seconds * 1e3:.2f} ms more."
        )


class Checkpointed:
    """The blocks that are computed again, by ``names``; as a context manager it undoes the change on leaving."""

    def __init__(self, blocks: dict[str, nn.Module], run: Callable[[nn.Module], Callable[..., Any]]) -> None:
        self.names = tuple(blocks)
        self._before = [(block, block.__dict__.get("forward")) for block in blocks.values()]
        for block, _ in self._before:
            block.forward = run(block)

    def undo(self) -> None:
        """Let the blocks run once again only; calling it twice is harmless."""
        while self._before:
            block, before = self._before.pop()
            block.__dict__.pop("forward", None)
            if before is not None:
                block.forward = before

    def __enter__(self) -> Checkpointed:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo."""
        self.undo()


def checkpoint_blocks(
    model: nn.Module,
    *,
    blocks: Sequence[str | type[nn.Module]] | None = None,
    every: int = 1,
    save_ops: Sequence[Any] | None = None,
) -> Checkpointed:
    """Let blocks of the model compute their activations again in the backward pass; return what undoes it.

    ``blocks`` are names or classes; without them the repeated blocks that ``blocks_of`` finds. Of these every
    ``every``-th is changed. ``save_ops`` are operators (``torch.ops.aten.mm.default``) whose results are kept
    nevertheless, such as ``COSTLY_OPS``. No name or class of the model changes, so checkpoints fit, and a copy of the
    model (an average of the weights) has the change too. Call it before ``fully_shard``, DDP and compile.

    Raises:
        ValueError: a name is unknown, lies within another chosen block or is checkpointed already, no block was found,
            or ``every`` is less than one.
    """
    if every < 1:
        raise ValueError(f"checkpoint_blocks needs every >= 1, not {every}; 1 takes each block.")
    found = list(_chosen(model, blocks).items())[::every]
    for name, block in found:
        if _is_checkpointed(block):
            raise ValueError(f"The block {name!r} is checkpointed already; undo that first.")
    kept = None if save_ops is None else functools.partial(create_selective_checkpoint_contexts, list(save_ops))

    def run(block: nn.Module) -> Callable[..., Any]:
        norms = tuple(m for m in block.modules() if isinstance(m, _NormBase) and m.track_running_stats)
        others = tuple(m for m in block.modules() if m._buffers and m not in norms)
        return functools.partial(_again, block.forward, norms, others, kept)

    return Checkpointed(dict(found), run)


def plan_checkpoints(
    model: nn.Module,
    forward: Callable[[], object],
    *,
    target_bytes: int,
    blocks: Sequence[str | type[nn.Module]] | None = None,
    scale: float = 1.0,
) -> Plan:
    """Measure what each block keeps and takes, and choose those that bring activations below ``target_bytes``.

    ``forward`` runs the model once, with gradients, and returns the loss; it runs four times and no gradient or buffer
    changes. Where a full batch does not fit, run a smaller one and give ``scale``, by how much the real one is larger.

    Raises:
        ValueError: no choice of these blocks reaches the target; the message names what can be reached.
    """
    if scale <= 0:
        raise ValueError(f"plan_checkpoints needs scale > 0, not {scale}; 1.0 means the batch of the run itself.")
    found = _chosen(model, blocks)
    if done := [name for name, block in found.items() if _is_checkpointed(block)]:
        raise ValueError(f"The block {done[0]!r} is checkpointed already; undo that before measuring.")
    measured, total = measure(model, forward, found)
    costs = [
        BlockCost(c.name, int(c.num_bytes * scale), int(c.live_bytes * scale), c.seconds * scale) for c in measured
    ]
    total = int(total * scale)
    chosen = cheapest(costs, total, target_bytes)
    if chosen is None:
        least = min(
            peak_bytes([c for c in costs if c.live_bytes <= live], total) for live in {c.live_bytes for c in costs}
        )
        raise ValueError(
            f"Activations take {total / 1e6:.1f} MB, and computing blocks again brings them to {least / 1e6:.1f} MB at "
            f"best, not {target_bytes / 1e6:.1f}; choose smaller blocks or a smaller batch."
        )
    return Plan(
        names=tuple(cost.name for cost in chosen),
        costs=tuple(costs),
        bytes_before=total,
        bytes_after=peak_bytes(chosen, total),
        extra_seconds=sum(cost.seconds for cost in chosen),
    )


@contextmanager
def activation_budget(share: float) -> Iterator[None]:
    """Let models that are *compiled* within the block keep about ``share`` of what they would keep, from 0 to 1.

    The compiler chooses operator by operator what to compute again; eager code is not changed. A model compiles at its
    first call, so that call, and those that compile again for other shapes, belong into the block.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"activation_budget takes a share from 0 to 1, not {share}; 1 keeps everything worth keeping.")
    import torch._functorch.config as settings

    with settings.patch(activation_memory_budget=share):
        yield


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the repeated blocks: what the outermost lists and sequences of the model hold, by name.

    Single operators among them are left out unless there is nothing else.
    """
    found: dict[str, nn.Module] = {}
    _collect(model, "", found)
    composite = {name: block for name, block in found.items() if any(True for _ in block.children())}
    return composite or {n: b for n, b in found.items() if any(True for _ in b.parameters())}


def _collect(module: nn.Module, path: str, found: dict[str, nn.Module]) -> None:
    for name, child in module.named_children():
        full = f"{path}.{name}" if path else name
        is_list = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not is_list:
            found[full] = child
        else:
            _collect(child, full, found)


def _chosen(model: nn.Module, wanted: Sequence[str | type[nn.Module]] | None) -> dict[str, nn.Module]:
    if wanted is None:
        if not (found := blocks_of(model)):
            raise ValueError(f"{type(model).__name__} holds no list of blocks; name blocks or their classes.")
        return found
    modules = dict(model.named_modules())
    classes = tuple(entry for entry in wanted if isinstance(entry, type))
    names = [entry for entry in wanted if isinstance(entry, str)]
    for name in names:
        if name not in modules:
            close = difflib.get_close_matches(name, modules, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see model.named_modules()."
            raise ValueError(f"{type(model).__name__} has no block {name!r}; {hint}")
    found = {name: modules[name] for name in modules if name in names or isinstance(modules[name], classes)}
    inner = {
        name for name in found for other in found if name != other and name.startswith(f"{other}." if other else "")
    }
    if named := inner.intersection(names):
        raise ValueError(f"{min(named)!r} lies within another chosen block; name one of the two.")
    if not found and wanted:
        raise ValueError(f"{type(model).__name__} has no module of {', '.join(c.__name__ for c in classes)}.")
    return {name: block for name, block in found.items() if name not in inner}


def _is_checkpointed(block: nn.Module) -> bool:
    forward = block.__dict__.get("forward")
    return isinstance(forward, functools.partial) and forward.func is _again


def _again(
    forward: Callable[..., Any],
    norms: tuple[_NormBase, ...],
    others: tuple[nn.Module, ...],
    kept: Callable[[], Contexts] | None,
    *args: Any,  # whatever the block takes
    **kwargs: Any,
) -> Any:  # and returns
    """Run a block, to be run again in the backward pass.

    Raises:
        RuntimeError: one of ``others`` changes a buffer, so that running it again would not be the same.
    """
    if others and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        forward = functools.partial(_unchanging, forward, others)
    if norms and not torch.compiler.is_compiling():  # the compiler recomputes values, never what a module changes
        kept = functools.partial(_once, norms, kept)
    if kept is None:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=kept, **kwargs)


def _unchanging(forward: Callable[..., Any], modules: tuple[nn.Module, ...], *args: Any, **kwargs: Any) -> Any:
    before = [(m, name, b, b._version) for m in modules for name, b in m._buffers.items() if _has_version(b)]
    result = forward(*args, **kwargs)
    for module, name, buffer, version in before:
        if module._buffers.get(name) is not buffer or buffer._version != version:
            raise RuntimeError(
                f"{type(module).__name__} changes its buffer {name!r} in the forward pass, so computing its block "
                "again would change it twice and give other numbers; leave that block out of checkpoint_blocks."
            )
    return result


def _has_version(buffer: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    return buffer is not None and not buffer.is_inference()


def _once(norms: tuple[_NormBase, ...], kept: Callable[[], Contexts] | None) -> Contexts:
    first, again = (nullcontext(), nullcontext()) if kept is None else kept()
    return first, _both(again, norms)


@contextmanager
def _both(context: AbstractContextManager[Any], norms: tuple[_NormBase, ...]) -> Iterator[None]:
    with context, _frozen(norms):
        yield


@contextmanager
def _frozen(norms: tuple[_NormBase, ...]) -> Iterator[None]:
    """Keep the running statistics as they are: the forward pass has counted this batch already."""
    before = [(norm, norm.momentum, norm._buffers["num_batches_tracked"]) for norm in norms]
    for norm in norms:
        norm.momentum, norm._buffers["num_batches_tracked"] = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm._buffers["num_batches_tracked"] = momentum, count
