"""Shrinks a run so that a diagnosis takes minutes: fewer blocks or narrower layers of the model, few samples.

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
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

__all__ = ["TinyConfig", "TinyModel", "short_dataset", "tiny_config", "tiny_model"]

NUM_BLOCKS = 2  # the least that has a border between two blocks
MIN_RUN = 2  # equal blocks in a row; a single one is no stack

# The names that configurations of transformers and of single-file models have for the same thing.
DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers", "decoder_layers",
    "num_encoder_layers", "num_decoder_layers",
)  # fmt: skip
HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
SHARED_HEADS = ("num_key_value_heads", "n_kv_head", "n_kv_heads", "num_kv_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim")
INNER_WIDTHS = (
    "intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim",
    "moe_intermediate_size",
)  # fmt: skip

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
    for path, part in _parts(made):
        wanted = _smaller(part, num_layers, narrower)
        part_name = f"{path}." if path else ""
        changes += [f"{part_name}{name}: {_shown(value)} instead of {_shown(_get(part, name))}"
                    for name, value in wanted.items()]  # fmt: skip
        made = _with(made, path, part, wanted)
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
        raise TypeError(f"{type(dataset).__name__} has no length and is no IterableDataset; pass one of both.")
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
        runs = [run for run in _runs(module) if len(run) > max(num_blocks, MIN_RUN - 1)]
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
    for path, part in _parts(config):
        if any(_get(part, name) in lengths for name in _fields(part, DEPTHS)):
            wanted = {n: v for n, v in _smaller(part, num_blocks, 1).items() if _length(_get(part, n)) in lengths}
            changes += [f"config.{path + '.' if path else ''}{n}: {_shown(v)}" for n, v in wanted.items()]
            for name, value in wanted.items():
                _put(part, name, value)
    return changes


def _check(check: Callable[[M], object], made: M, changes: list[str]) -> None:
    try:
        check(made)
    except Exception as error:
        raise ValueError(
            f"The model does not run with fewer blocks ({'; '.join(changes)}): {type(error).__name__}: {error}. "
            "Make it from a smaller configuration instead."
        ) from error


def _parts(config: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return the configurations inside this one, and then itself, with where they are."""
    names = list(config) if isinstance(config, Mapping) else list(getattr(config, "__dict__", ()))
    parts: list[tuple[str, Any]] = []
    for name in names:
        value = _get(config, name)
        if hasattr(value, "to_dict") or (isinstance(value, Mapping) and name.endswith("config")):
            parts += _parts(value, f"{path}.{name}" if path else name)
    return [*parts, (path, config)]


def _smaller(config: Any, num_layers: int | None, narrower: int) -> dict[str, Any]:
    """Return the fields that change, with their new values."""
    wanted: dict[str, Any] = {}
    deepest = 0
    for name in _fields(config, DEPTHS) if num_layers is not None else ():
        depth = _get(config, name)
        if num_layers is not None and depth > num_layers:
            wanted[name] = num_layers
            deepest = max(deepest, depth)
    if deepest and num_layers is not None:
        wanted |= _cut_lists(config, deepest, num_layers)
    if narrower > 1:
        for name in _fields(config, (*HEADS, *WIDTHS, *INNER_WIDTHS)):
            wanted[name] = _divided(name, _get(config, name), narrower)
        for name in _fields(config, SHARED_HEADS):
            shared = max(_get(config, name) // narrower, 1)
            heads = [wanted[other] for other in _fields(config, HEADS)]
            wanted[name] = next((n for n in range(shared, 0, -1) if all(h % n == 0 for h in heads)), 1)
    return {name: value for name, value in wanted.items() if value != _get(config, name)}


def _cut_lists(config: Any, depth: int, num_layers: int) -> dict[str, Any]:
    """Return the lists that hold one entry for each layer, cut off."""
    names = config if isinstance(config, Mapping) else getattr(config, "__dict__", ())
    found = {name: _get(config, name) for name in names}
    return {n: v[:num_layers] for n, v in found.items() if isinstance(v, list | tuple) and len(v) == depth}


def _divided(name: str, value: int, by: int) -> int:
    if value % by:
        raise ValueError(f"{name} is {value}, which cannot be divided by narrower={by}; choose one of its divisors.")
    return value // by


def _fields(config: Any, names: tuple[str, ...]) -> list[str]:
    """Return which of the names the configuration has a number for, each once where one stands for another."""
    same: Mapping[str, str] = getattr(config, "attribute_map", None) or {}
    own = dict.fromkeys(same.get(name, name) for name in names)
    return [name for name in own if isinstance(value := _get(config, name), int) and not isinstance(value, bool)]


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _put(config: Any, name: str, value: Any) -> None:
    if isinstance(config, MutableMapping):
        config[name] = value
    else:
        setattr(config, name, value)


def _with(whole: Any, path: str, part: Any, wanted: Mapping[str, Any]) -> Any:
    """Return the whole configuration with a part's fields set; a frozen one is made anew."""
    if not path and dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(part, **wanted)
    for name, value in wanted.items():
        _put(part, name, value)
    return whole


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else value if isinstance(value, int) else 0


def _shown(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, list | tuple) else str(value)
