"""Shrinks a model and its data for a quick diagnosis.

What it cures
    No bottleneck: it makes a script that is too large to try often, or for the machine at hand (`memory-pressure`),
    one that can be traced, changed and traced again. What costs the same for each block shows in a few blocks too:
    `host-sync`, `launch-bound`, `unfused-elementwise` and `data-stall` of the loader.

When it does not help
    Shares of the step: fewer blocks make loading, the loss and the head a larger part of it, so their savings look
    larger than they are. Fewer blocks keep the sizes of kernels, a narrower model does not: it turns a run that the
    GPU limits into one that the host limits. Memory, and how long ranks exchange gradients, shrink with the
    parameters. Find the cause here, and measure what its removal saves on the whole run.

Cost
    A copy of what is kept of the model. The samples that are kept may come from the page cache after the first pass.

Numerics
    Another model: losses are not those of the whole one. Weights that are kept are equal; ``tiny_config`` is for
    models that are made anew. The model that was given is not changed.

Example::

    from diagnose.kernels.tiny import short_dataset, tiny_model

    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), num_layers=6, enable_nested_tensor=False)
    small = tiny_model(model, num_blocks=2, check=lambda made: made(torch.zeros(3, 1, 4)))
    log(small)  # layers: 2 of 6 TransformerEncoderLayer; …
    model = small.model  # before the optimizer is made
    loader = DataLoader(short_dataset(dataset, 32), batch_size=16)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from diagnose.kernels._model_configs import DEPTHS, fields, get, length, parts, put, shown, smaller, with_part

__all__ = ["TinyConfig", "TinyModel", "short_dataset", "tiny_config", "tiny_model"]

NUM_BLOCKS = 2  # the least that has a border between two blocks

M = TypeVar("M", bound=nn.Module)
C = TypeVar("C")


@dataclass(frozen=True)
class TinyModel(Generic[M]):
    """A model with fewer blocks, and one line for each thing that differs."""

    model: M
    changes: tuple[str, ...]
    num_parameters: tuple[int, int]  # before and now

    def __str__(self) -> str:
        """Return what was changed, in one line."""
        before, now = self.num_parameters
        return "; ".join([*self.changes, f"{now:,} of {before:,} parameters"])


@dataclass(frozen=True)
class TinyConfig(Generic[C]):
    """A configuration of a smaller model, and one line for each value that differs."""

    config: C
    changes: tuple[str, ...]

    def __str__(self) -> str:
        """Return what was changed, in one line."""
        return "; ".join(self.changes)


def tiny_model(model: M, *, num_blocks: int = NUM_BLOCKS, check: Callable[[M], object] | None = None) -> TinyModel[M]:
    """Return a copy of the model with ``num_blocks`` of each stack of equal blocks.

    A stack is a ``ModuleList``, ``Sequential`` or ``ModuleDict`` in which modules with parts of their own, of one class
    and with parameters of the same shapes, follow each other; the first of them are kept, with their weights. What
    lies inside a kept block stays whole (experts, heads). A configuration that the model holds as ``config`` is given
    the new depth. ``check`` runs the copy once, such as ``lambda made: made(batch)``: a model that needs all of its
    blocks is found out here. Make the optimizer from the copy.

    Raises:
        ValueError: ``num_blocks`` is less than one; there is no stack of more blocks; ``check`` fails on the copy.
    """
    if num_blocks < 1:
        raise ValueError(f"tiny_model needs num_blocks >= 1, not {num_blocks}.")
    stacks = list(_stacks(model, num_blocks))
    if not stacks:
        raise ValueError(
            f"{type(model).__name__} has no stack of more than {num_blocks} equal blocks in a ModuleList, "
            "Sequential or ModuleDict; make it from a smaller configuration (tiny_config), or name its sizes yourself."
        )
    placeholder = nn.Identity()  # what is dropped is not copied first
    dropped: dict[int, Any] = {id(block): placeholder for stack in stacks for block in stack.dropped}
    before = sum(p.numel() for p in model.parameters())
    made: M = copy.deepcopy(model, dropped)
    changes = []
    for stack in stacks:
        container = made.get_submodule(stack.path)
        kept = {name: block for name, block in container._modules.items() if name not in stack.names}
        if not isinstance(container, nn.ModuleDict):  # numbered without holes
            kept = {str(i): block for i, block in enumerate(kept.values())}
        container._modules.clear()
        container._modules.update(kept)
        changes.append(f"{stack.path or type(model).__name__}: {stack.kept} of {stack.length} {stack.kind}")
    config = getattr(made, "config", None)
    if config is not None:
        changes += _set_depths(config, {stack.length for stack in stacks}, num_blocks)
    if check is not None:
        _check(check, made, changes)
    return TinyModel(made, tuple(changes), (before, sum(p.numel() for p in made.parameters())))


def tiny_config(config: C, *, num_layers: int | None = NUM_BLOCKS, narrower: int = 1) -> TinyConfig[C]:
    """Return a copy of a model's configuration with ``num_layers`` layers and widths divided by ``narrower``.

    It may be a configuration of transformers (those inside it are changed too), a dataclass, a mapping or any object
    with attributes; depths, widths and numbers of heads are known by their usual names. Heads keep their size: their
    number is divided as the width is. None keeps all layers.

    Raises:
        ValueError: ``num_layers`` or ``narrower`` is less than one; a width or a number of heads cannot be divided;
            nothing in the configuration would change.
    """
    if narrower < 1 or (num_layers is not None and num_layers < 1):
        raise ValueError(
            f"tiny_config needs num_layers and narrower >= 1, not num_layers={num_layers} and narrower={narrower}."
        )
    made = copy.deepcopy(config)
    changes: list[str] = []
    for path, part in parts(made):
        wanted = smaller(part, num_layers, narrower)
        part_name = f"{path}." if path else ""
        changes += [f"{part_name}{name}: {shown(value)} instead of {shown(get(part, name))}"
                    for name, value in wanted.items()]  # fmt: skip
        made = with_part(made, path, part, wanted)
    if not changes:
        raise ValueError(
            f"Nothing in {type(config).__name__} would change: none of its fields has a usual name of a depth or a "
            "width, or all are as small already."
        )
    return TinyConfig(made, tuple(changes))


def short_dataset(dataset: Dataset[Any], num_samples: int) -> Dataset[Any]:
    """Return the first ``num_samples`` samples, of a stream those of each epoch.

    A stream that workers share out (or repeat) ends after that many samples of all workers together.

    Raises:
        ValueError: ``num_samples`` is less than one.
        TypeError: the dataset has no length and is no stream.
    """
    if num_samples < 1:
        raise ValueError(f"short_dataset needs num_samples >= 1, not {num_samples}.")
    if isinstance(dataset, IterableDataset):
        return _ShortStream(dataset, num_samples)
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"{type(dataset).__name__} has no length and is not an IterableDataset; pass one of both.")
    return Subset(dataset, range(min(num_samples, len(dataset))))


class _ShortStream(IterableDataset[Any]):
    def __init__(self, stream: IterableDataset[Any], num_samples: int) -> None:
        self.stream, self.num_samples = stream, num_samples

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        place, num = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return islice(iter(self.stream), self.num_samples // num + (place < self.num_samples % num))


@dataclass(frozen=True)
class _Stack:
    path: str
    kind: str  # the blocks' class
    length: int
    kept: int
    names: frozenset[str]  # of the blocks that go
    dropped: tuple[nn.Module, ...]


def _stacks(module: nn.Module, num_blocks: int, path: str = "") -> Iterator[_Stack]:
    """Yield the outermost stacks of more blocks."""
    runs: list[list[tuple[str, nn.Module]]] = []
    if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
        runs = [run for run in _runs(module) if len(run) > num_blocks]  # so a single block is no stack
    for run in runs:
        gone = run[num_blocks:]
        yield _Stack(
            path,
            type(run[0][1]).__name__,
            len(run),
            num_blocks,
            frozenset(n for n, _ in gone),
            tuple(b for _, b in gone),
        )
    in_a_run = {name for run in runs for name, _ in run}
    for name, child in module.named_children():
        if name not in in_a_run:
            yield from _stacks(child, num_blocks, f"{path}.{name}" if path else name)


def _runs(container: nn.Module) -> list[list[tuple[str, nn.Module]]]:
    """Return the blocks that are alike and follow each other."""
    runs: list[list[tuple[str, nn.Module]]] = []
    last: object = None
    for name, block in container._modules.items():
        kind = _kind(block)
        if block is None or kind is None:
            last = None
        elif kind == last:
            runs[-1].append((name, block))
        else:
            runs.append([(name, block)])
            last = kind
    return runs


def _kind(block: nn.Module | None) -> object:
    """Return what equal blocks have in common, None for a module that is no block."""
    if block is None or not any(True for _ in block.children()):
        return None  # a single layer: one of several heads, or codebooks
    shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
    return (type(block), shapes) if shapes else None


def _set_depths(config: Any, lengths: set[int], num_blocks: int) -> list[str]:  # whatever a model calls its config
    """Give a model's configuration the depth that its stacks have now."""
    changes = []
    for path, part in parts(config):
        if any(get(part, name) in lengths for name in fields(part, DEPTHS)):
            wanted = {n: v for n, v in smaller(part, num_blocks, 1).items() if length(get(part, n)) in lengths}
            changes += [f"config.{path + '.' if path else ''}{n}: {shown(v)}" for n, v in wanted.items()]
            for name, value in wanted.items():
                put(part, name, value)
    return changes


def _check(check: Callable[[M], object], made: M, changes: list[str]) -> None:
    try:
        check(made)
    except Exception as error:
        raise ValueError(
            f"The model does not run with fewer blocks ({'; '.join(changes)}): {type(error).__name__}: {error}. "
            "Make it from a smaller configuration instead."
        ) from error
