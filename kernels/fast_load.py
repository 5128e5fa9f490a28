"""Loads a checkpoint by mapping its file, without copies.

What it cures
    `python-stall` at the start of a run: minutes of initialising weights that are overwritten at once, and a peak of
    twice the model in host memory (`off-cpu` where that swaps). A distributed checkpoint is read by each process for
    its own shards alone.

When it does not help
    For models of a few megabytes, and where the first use reads every page anyway: then it saves the initialisation
    and the memory, not the reading. On a network file system without a page cache, use ``mapped=False``.

Cost
    The file must stay as it is while the model lives on the CPU: saving a new checkpoint *over* it ends the process.
    Write to another name and rename, or pass ``mapped=False``. Pages are read at the first forward pass.

Numerics
    The same numbers as ``build()`` followed by ``load_state_dict``: dtypes are those of the model unless ``dtype`` asks
    otherwise, weights that were tied stay tied, buffers that no checkpoint holds have the constructor's values.

Example::

    from diagnose.kernels.fast_load import fast_load

    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 16))

    torch.save(model.state_dict(), folder / "model.pt")  # an ordinary checkpoint
    # before: model = build(); model.load_state_dict(torch.load(folder / "model.pt"))
    model, report = fast_load(build, folder / "model.pt", device="cpu")
    log(f"{report.num_bytes / 1e6:.1f} MB in {report.seconds:.2f} s, peak {report.peak_bytes / 1e6:.1f} MB more")
"""

from __future__ import annotations

import contextlib
import inspect
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from diagnose.kernels._checkpoint_files import files_of, is_distributed, read_distributed, tensors_of
from diagnose.kernels._meta_build import built_on_meta, tied_names
from diagnose.kernels._on_demand import Pending

__all__ = ["LoadReport", "Pending", "fast_load", "fill", "load_on_demand"]

M = TypeVar("M", bound=nn.Module)
State: TypeAlias = dict[str, Tensor]
DType: TypeAlias = torch.dtype | Literal["model", "file"]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the tensors come from and what they become."""

    path: Path
    device: torch.device
    dtype: DType
    key: str | None
    prefix: str
    mapped: bool
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was loaded.

    ``num_bytes``: of the tensors that are the model's now. ``peak_bytes``: by how much the process's largest resident
    memory ever grew, 0 where it had been larger before. ``missing``: names that the checkpoint lacks and the
    constructor's initialisation filled; ``unexpected``: names that the model lacks.
    """

    num_bytes: int
    seconds: float
    peak_bytes: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def fast_load(  # all but two by name, each with a default
    build: Callable[[], M],
    source: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: DType = "model",
    key: str | None = None,
    prefix: str = "",
    strict: bool = True,
    mapped: bool = True,
    trusted: bool = False,
) -> tuple[M, LoadReport]:
    """Return the model that ``build()`` makes with the weights of ``source``, and what was loaded.

    ``source`` is a file of ``torch.save`` or safetensors, an index of several (``model.safetensors.index.json``), a
    folder with one of these, or the folder of a distributed checkpoint. ``key`` is the model's entry in a file that
    holds more; of the names only those under ``prefix`` are taken, without it (``"module."``, ``"backbone."``).
    ``dtype`` is the model's for each tensor, the file's (of files only), or one for all floating-point tensors.
    ``strict=False`` lets names be missing, which ``reset_parameters`` then fills.

    Nothing that a checkpoint holds is run. ``trusted=True`` lets torch read a distributed checkpoint in its own way,
    which runs what its ``.metadata`` names: for checkpoints of your own that hold more than tensors.

    Raises:
        FileNotFoundError: there is no checkpoint, or a part of it is missing.
        ValueError: the checkpoint cannot be read, would run code, or does not fit the model; the message names what.
        ModuleNotFoundError: a safetensors file without the package.
    """
    model = built_on_meta(build)
    report = fill(
        model, source, device=device, dtype=dtype, key=key, prefix=prefix, strict=strict, mapped=mapped, trusted=trusted
    )
    return model, report


def fill(  # the same
    model: nn.Module,
    source: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: DType = "model",
    key: str | None = None,
    prefix: str = "",
    strict: bool = True,
    mapped: bool = True,
    trusted: bool = False,
) -> LoadReport:
    """Give a model that is on the meta device its weights, as ``fast_load`` does.

    This is the second half for models that were wrapped in between, such as by ``fully_shard``: each process then keeps
    only its shards. Call it before making the optimizer, since the parameters become new objects.
    """
    start, peak = time.perf_counter(), _peak_bytes()
    wish = _Source(Path(source), torch.device(device), dtype, key, prefix, mapped, trusted)
    tied = tied_names(model)
    if is_distributed(wish.path):
        missing, unexpected = _fill_distributed(model, wish), set[str]()
    else:
        missing, unexpected = _fill_from_files(model, wish)
    missing = _tie(model, tied, missing)
    if strict and (missing or unexpected):
        raise ValueError(_mismatch(wish.path, missing, unexpected))
    _initialise(model, missing, wish)
    _tie(model, tied, set())
    if left := [name for name, tensor in model.state_dict().items() if tensor.is_meta]:
        raise ValueError(
            f"{left[0]} and {len(left) - 1} more have no values after loading {wish.path}: their module copies "
            "instead of assigning; load this model with load_state_dict."
        )
    model.to(wish.device)  # buffers that no checkpoint holds
    return LoadReport(
        num_bytes=sum(t.numel() * t.element_size() for t in {*model.parameters(), *model.buffers()}),
        seconds=time.perf_counter() - start,
        peak_bytes=max(_peak_bytes() - peak, 0),
        missing=tuple(sorted(missing)),
        unexpected=tuple(sorted(unexpected)),
    )


def load_on_demand(  # as fast_load
    build: Callable[[], M],
    source: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: DType = "model",
    key: str | None = None,
    prefix: str = "",
) -> tuple[M, Pending]:
    """Return the model with its weights still on the meta device; each module loads its own when they are first used.

    For inference with models of which a part is used, such as some of many experts: what is never called takes no
    memory on the device. Names and shapes are checked now. Call ``load_rest`` before an optimizer is made.

    Raises:
        FileNotFoundError: there is no checkpoint, or a part of it is missing.
        ValueError: the checkpoint does not fit the model, or is a distributed one.
    """
    wish = _Source(Path(source), torch.device(device), dtype, key, prefix, mapped=True)
    if is_distributed(wish.path):
        raise ValueError(f"{source} is a distributed checkpoint, which is read at once; use fast_load.")
    model = built_on_meta(build)
    wanted, tied = model.state_dict(keep_vars=True), tied_names(model)
    state = _mapped_state(wish)
    for names in tied:
        given = [name for name in names if name in state]
        state |= {name: state[given[-1]] for name in names if given}
    missing, unexpected = wanted.keys() - state.keys(), state.keys() - wanted.keys()
    if missing or unexpected:
        raise ValueError(_mismatch(wish.path, set(missing), set(unexpected)))
    if wrong := [name for name, tensor in state.items() if tensor.shape != wanted[name].shape]:
        shapes = f"{tuple(state[wrong[0]].shape)}, not {tuple(wanted[wrong[0]].shape)}"
        raise ValueError(f"{source} does not fit the model: {wrong[0]} has the shape {shapes}.")
    for module in model.modules():  # those that no checkpoint holds
        module._buffers.update(
            {n: b.to(wish.device) for n, b in module._buffers.items() if b is not None and not b.is_meta}
        )
    return model, Pending(model, state, lambda tensor, like: _placed(tensor, like, wish))


def _mapped_state(source: _Source) -> State:
    """Return the tensors of all files by the names that the model has for them."""
    state = {
        name[len(source.prefix) :]: tensor
        for file in files_of(source.path)
        for name, tensor in tensors_of(file, key=source.key, mapped=source.mapped).items()
        if name.startswith(source.prefix)
    }
    if not state:
        raise ValueError(f"No name in {source.path} begins with {source.prefix!r}; leave prefix out or correct it.")
    return state


def _fill_from_files(model: nn.Module, source: _Source) -> tuple[set[str], set[str]]:
    wanted = dict(model.state_dict(keep_vars=True))
    state = {name: _placed(tensor, wanted.get(name), source) for name, tensor in _mapped_state(source).items()}
    try:
        keys = model.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:  # shapes
        raise ValueError(f"{source.path} does not fit the model: {error}") from error
    return set(keys.missing_keys), set(keys.unexpected_keys)


def _fill_distributed(model: nn.Module, source: _Source) -> set[str]:
    """Allocate what the model keeps on this process and read into it; only values that are needed are read."""
    if isinstance(source.dtype, torch.dtype):
        model.to(source.dtype)  # on meta: no memory
    empty = {
        name: torch.empty_like(tensor, device=source.device) if tensor.is_meta else tensor
        for name, tensor in model.state_dict().items()
    }
    missing = read_distributed(source.path, empty, prefix=source.prefix, trusted=source.trusted)
    model.load_state_dict({k: v for k, v in empty.items() if k not in missing}, strict=False, assign=True)
    return missing


def _placed(tensor: Tensor, wanted: Tensor | None, source: _Source) -> Tensor:
    """Return the tensor where and as the model wants it, or this process's shard of it."""
    if isinstance(source.dtype, torch.dtype) and tensor.is_floating_point():
        tensor = tensor.to(source.dtype)
    elif source.dtype == "model" and wanted is not None:
        tensor = tensor.to(wanted.dtype)
    mesh = getattr(wanted, "device_mesh", None)
    if wanted is None or mesh is None or wanted.shape != tensor.shape:
        return tensor.to(source.device)
    from torch.distributed.tensor import distribute_tensor

    placements: Any = getattr(wanted, "placements", None)
    takes_rank = "src_data_rank" in inspect.signature(distribute_tensor).parameters
    own: dict[str, Any] = {"src_data_rank": None} if takes_rank else {}  # each process reads the file itself
    return distribute_tensor(tensor, mesh, placements, **own)


def _tie(model: nn.Module, groups: list[list[str]], missing: set[str]) -> set[str]:
    """Make each group one parameter again, the last that was loaded; return the names that no tie provides."""
    for names in groups:
        loaded = [name for name in names if name not in missing] or names[:1]
        parameter = model.get_parameter(loaded[-1])
        for name in names:
            path, _, own = name.rpartition(".")
            model.get_submodule(path)._parameters[own] = parameter
        if loaded[0] not in missing:
            missing = missing.difference(names)
    return missing


def _initialise(model: nn.Module, missing: set[str], source: _Source) -> None:
    """Let the modules that own missing tensors initialise them; tensors that were loaded stay."""
    for path in sorted({name.rpartition(".")[0] for name in missing}):
        module = model.get_submodule(path)
        reset = getattr(module, "reset_parameters", None)
        if not callable(reset):
            raise ValueError(
                f"{type(module).__name__} {path!r} lacks values and has no reset_parameters to make them; give it the "
                "method, or a checkpoint that holds them."
            )
        own = [*module._parameters.items(), *module._buffers.items()]
        loaded = {name: tensor for name, tensor in own if tensor is not None and not tensor.is_meta}
        for name, tensor in own:
            if tensor is not None:
                _set(module, name, _empty(tensor, source))
        reset()
        for name, tensor in loaded.items():
            _set(module, name, tensor)


def _empty(tensor: Tensor, source: _Source) -> Tensor:
    wanted = source.dtype if isinstance(source.dtype, torch.dtype) and tensor.is_floating_point() else tensor.dtype
    empty = torch.empty_like(tensor, device=source.device, dtype=wanted)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _set(module: nn.Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, nn.Parameter):
        module._parameters[name] = tensor
    else:
        module._buffers[name] = tensor


def _mismatch(source: Path, missing: set[str], unexpected: set[str]) -> str:
    parts = [
        f"{what} {', '.join(sorted(names)[:5])}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        for what, names in (("lacks", missing), ("holds besides", unexpected))
        if names
    ]
    return f"{source} {' and '.join(parts)}; name the right prefix or key, or pass strict=False."


def _peak_bytes() -> int:
    """Return the largest resident memory of the process so far, in bytes."""
    with contextlib.suppress(OSError), Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux it begins with that of the parent process
    return peak if sys.platform == "darwin" else peak * 1024
