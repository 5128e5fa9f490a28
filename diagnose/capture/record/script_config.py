"""What a script runs with: the DataLoader's and the optimizer's real arguments, DDP, autocast."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from diagnose.capture.record.compiled import MAX_CALLS, compile_call
from diagnose.capture.record.constructions import Constructions
from diagnose.capture.record.loading import DrawnBatches, LoadingCounters, batch_choosers, batch_maker, comes_again
from diagnose.capture.steps.hooks import ANOMALY, nothing
from diagnose.capture.steps.step_source import MAX_BATCH_DEPTH
from diagnose.model.launched import cores_of_rank
from diagnose.model.records import CallRecord, CompileCallRecord

# What decides how fast a process computes: the settings of torch, the instructions of its CPU, its GPUs.


def process_flags(ranks_here: int) -> dict[str, object]:
    """Return what of this process decides how fast it computes; it is one of so many ranks on this machine."""
    import torch

    instructions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # of the CPU, for products in bfloat16
    return {
        "matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": torch.get_float32_matmul_precision() != "highest",
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "num_threads": torch.get_num_threads(),
        "bfloat16": torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it so
        and any(getattr(torch.cpu, name, bool)() for name in instructions),
        "mkl": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]  # torch leaves it so
        "cores": cores_of_rank(ranks_here),
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        "cuda_launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
    }


LOADER_ARGUMENTS = (
    "num_workers", "pin_memory", "persistent_workers", "prefetch_factor",
    "batch_size", "drop_last", "timeout", "in_order",
)  # fmt: skip
OPTIMIZER_FLAGS = ("fused", "foreach", "capturable", "differentiable", "maximize")
DDP_ARGUMENTS = ("find_unused_parameters", "broadcast_buffers", "gradient_as_bucket_view", "static_graph")


class _Loader:
    """What was seen of the DataLoaders of one dataset."""

    def __init__(self, dataset: int) -> None:
        self.dataset = dataset  # its id
        self.described: dict[str, object] = {}  # empty until one is opened
        self.sizes: dict[str, int] = {}  # of the first batch
        self.opened: Callable[[], Any] = nothing  # the loader itself
        self.opening: object = None  # the same, until its iterator is known
        self.iterator: Callable[[], Any] = nothing
        self.batches = 0
        self.updates = 0  # of the weights, before which it delivered batches
        self.since_update = False
        self.asked = self.ready = 0  # batches of workers, and those of them that were there already


class ScriptConfig:
    """Collects the arguments of DataLoaders, optimizers and DDP from the hooks."""

    def __init__(self) -> None:
        self._loaders: dict[int, _Loader] = {}  # by dataset
        self._kept_with: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()  # loaders, by iterator
        self._drawn = DrawnBatches()
        self._counters = LoadingCounters()
        self._optimizers: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()  # in their order
        self._optimizer: dict[str, object] = {}
        self.autocast: dict[str, object] = {}  # device and dtype, empty where autocast was not used
        self.anomaly: CallRecord | None = None  # the script's first call that turns anomaly detection on
        self.ddp: Mapping[str, object] = {}  # arguments of DistributedDataParallel
        self.compile_calls: list[CompileCallRecord] = []
        self._constructions = Constructions(Path.cwd())
        self._made: dict[tuple[str, int], tuple[weakref.ref[Any] | None, CallRecord]] = {}

    def constructed(self, name: str, made: object) -> None:
        """Take down the script's call that makes an object of torch, the first one for each dataset and optimizer.

        What frameworks make of a loader keeps its dataset, so the first call is the author's.
        """
        if name in ANOMALY and self.anomaly is not None:
            return
        of = getattr(made, "dataset", made) if name == "DataLoader" else made
        if self._call(name, of) is not None:
            return
        with contextlib.suppress(Exception):  # a script must not fail for what is only printed
            call = self._constructions.of(made, name=name)
            if call is not None and name in ANOMALY:
                self.anomaly = call
            elif call is not None:
                self._made[name, id(of)] = _reference(of), call
        if name == "DistributedDataParallel":
            self._describe_ddp(made)

    def compiles(self, target: object, backend: object) -> None:
        """Take down a call of torch.compile."""
        if len(self.compile_calls) < MAX_CALLS:
            with contextlib.suppress(Exception):  # a script must not fail for what is only printed
                call = compile_call(target, backend, self._constructions)
                if call is not None and call not in self.compile_calls:
                    self.compile_calls.append(call)

    @property
    def calls(self) -> list[CallRecord]:
        """Return every call that was taken down."""
        return [call for _, call in self._made.values()]

    def _call(self, name: str, of: object) -> CallRecord | None:
        """Return the call taken down for an object that is alive: another may have had its address before."""
        reference, call = self._made.get((name, id(of)), (None, None))
        return call if reference is None or reference() is of else None

    def _of(self, dataset: object) -> _Loader:
        return self._loaders.setdefault(id(dataset), _Loader(id(dataset)))

    def loader_opened(self, loader: object, dataset: object) -> None:
        """Take down a DataLoader that starts an epoch."""
        known = self._of(dataset)
        known.opened = _reference(loader) or nothing
        if not getattr(loader, "persistent_workers", False):  # such a one holds its iterator
            known.opening = loader
        if not known.described:
            known.described = {
                **_describe_loader(loader, dataset),
                "made": self._call("DataLoader", dataset),
                "comes_again": comes_again(sys._getframe()),
            }

    def first_batch(self, dataset: object, batch: object) -> None:
        """Take down how large a dataset's first batch is: workers hand each of its tensors over."""
        known = self._of(dataset)
        if not known.sizes:
            tensors = list(_tensors(batch))
            known.sizes = {"batch_bytes": sum(map(_bytes, tensors)), "batch_tensors": len(tensors)}

    def batch_asked(self, iterator: object) -> None:
        """Count whether a batch of workers was there when it was asked for; look at what one made here draws."""
        if getattr(iterator, "_num_workers", None) == 0:
            self._drawn.asked(iterator)
            return
        ready = _is_ready(iterator)
        if ready is not None:
            known = self._of(getattr(iterator, "_dataset", None))
            known.asked += 1
            known.ready += ready

    def batch_delivered(self, dataset: object, iterator: object) -> None:
        """Count a batch, to find the training loader among others."""
        known = self._of(dataset)
        known.batches += 1
        known.since_update = True
        self._drawn.delivered(dataset, iterator)
        if known.iterator() is not iterator:
            known.iterator = weakref.ref(iterator)
            self._kept_with[iterator] = known.opening  # `for batch in DataLoader(…)` lets go of the loader itself
            known.opening = None

    def optimizer_stepped(self, optimizer: object) -> None:
        """Take down an optimizer that steps, and which loaders it follows."""
        for known in self._loaders.values():
            known.updates += known.since_update
            known.since_update = False
        self._optimizers[optimizer] = None

    def settle(self) -> None:
        """Describe the optimizers that stepped so far, and read what loads; later they may be gone."""
        if self._optimizers and not self._optimizer:
            described = [
                {**describe_optimizer(optimizer), "made": self._call(type(optimizer).__name__, optimizer)}
                for optimizer in self._optimizers
            ]
            described.sort(key=lambda one: -int(one["num_params"]))  # the model's own before small helpers
            self._optimizer = {**described[0], "others": described[1:8]}
        self.count_loading()

    def autocast_entered(self, context: Any) -> None:
        """Take down the first autocast region that is switched on."""
        if getattr(context, "_enabled", True) and not self.autocast:
            dtype = str(getattr(context, "fast_dtype", "")).removeprefix("torch.")
            self.autocast = {"device": getattr(context, "device", ""), "dtype": dtype}

    def _describe_ddp(self, model: Any) -> None:
        cap = getattr(model, "bucket_bytes_cap", None)
        self.ddp = {
            **{name: getattr(model, name, None) for name in DDP_ARGUMENTS},
            "bucket_cap_mb": cap / 2**20 if cap else None,
            "made": self._call("DistributedDataParallel", model),
        }

    @property
    def _training(self) -> _Loader | None:
        """Return the loaders that training asks most often: an evaluation takes many batches between two updates."""
        opened = [each for each in self._loaders.values() if each.described]
        return max(opened, key=lambda each: (each.updates, each.batches), default=None)

    def count_loading(self) -> None:
        """Read what the processes that load have read and computed so far: at the ends of a window."""
        known = self._training
        if known is not None:
            pids = [worker.pid for worker in getattr(known.iterator(), "_workers", ()) if worker.pid]
            self._counters.read(pids, known.batches)

    def training_loader(self) -> object:
        """Return the DataLoader that training asks most often, None without one."""
        known = self._training
        return known.opened() if known is not None else None

    @property
    def loader(self) -> Mapping[str, object]:
        """Return the arguments of the DataLoader that trains, of several the busiest."""
        known = self._training
        if known is None:
            return {}
        counters = self._counters.summary(known.described.get("batch_size"))  # type: ignore[arg-type]  # an int or None
        return {
            **known.described,
            **known.sizes,
            "counters": counters,
            "workers_busy": counters.get("cpu_share") if known.described["num_workers"] else None,
            "batches_ready": round(known.ready / known.asked, 3) if known.asked else None,
            "batches_drew": self._drawn.of(known.dataset),
        }

    @property
    def optimizer(self) -> Mapping[str, object]:
        """Return the description of the main optimizer."""
        self.settle()
        return self._optimizer


def _describe_loader(loader: Any, dataset: object) -> dict[str, object]:
    described: dict[str, object] = {name: getattr(loader, name, None) for name in LOADER_ARGUMENTS}
    context = getattr(loader, "multiprocessing_context", None)
    described["start_method"] = context.get_start_method() if context is not None else None
    described["dataset"] = type(dataset).__qualname__
    own = (base for base in type(dataset).__mro__ if not base.__module__.startswith(("torch.", "typing", "builtins")))
    codes = (getattr(method, "__code__", None) for base in own for method in vars(base).values())
    described["shares_out"] = any("get_worker_info" in getattr(code, "co_names", ()) for code in codes)
    described["sampler"] = type(getattr(loader, "sampler", None)).__name__
    described["collate_fn"] = getattr(getattr(loader, "collate_fn", None), "__name__", None)
    described["batches_by"] = batch_maker(loader, dataset)
    described["chosen_by"] = batch_choosers(loader)
    try:
        described["num_batches"] = len(loader)
    except (TypeError, NotImplementedError):  # streams have no length
        described["num_batches"] = None
    return described


def _reference(of: object) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(of)
    except TypeError:  # a list, say
        return None


def _tensors(batch: Any, depth: int = 0) -> Iterable[object]:
    """Yield what a batch holds that has bytes, in lists, tuples and mappings three deep."""
    if isinstance(getattr(batch, "nbytes", None), int):
        yield batch
    elif depth < MAX_BATCH_DEPTH and type(batch) in (list, tuple, dict):
        for part in batch.values() if type(batch) is dict else batch:
            yield from _tensors(part, depth + 1)


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """Return class, flags and size of an optimizer."""
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    states = [held for held in optimizer.state.values() if isinstance(held, Mapping)]  # optimizers keep what they like
    group: Mapping[str, object] = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {
        "class": type(optimizer).__name__,
        "module": type(optimizer).__module__,
        **{flag: group.get(flag) for flag in OPTIMIZER_FLAGS if flag in group},
        "num_tensors": len(tensors),
        "num_params": sum(int(p.numel()) for p in tensors),
        "param_bytes": sum(map(_bytes, tensors)),
        "state_bytes": sum(_bytes(value) for held in states for value in held.values()),
        "num_groups": len(optimizer.param_groups),
        "devices": sorted({str(p.device) for p in tensors}),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in tensors}),
    }


def _bytes(value: Any) -> int:
    """Return what a tensor holds on this rank, 0 for anything else."""
    part = getattr(value, "_local_tensor", value)  # a distributed tensor is as large as all its shards
    size = getattr(part, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _is_ready(iterator: Any) -> bool | None:  # torch's iterator, whose type is private
    """Return whether the workers have made the next batch, None for an iterator without workers."""
    queue = getattr(iterator, "_data_queue", None)
    if queue is None:
        return None
    with contextlib.suppress(Exception):  # a queue that is closed, or one of another release
        if len(iterator._task_info.get(iterator._rcvd_idx, ())) == 2:
            return True
        if not hasattr(queue, "_reader"):  # where a thread pins memory it is a queue of that thread, else a pipe
            return not queue.empty()
        poll = select.poll()  # in a quarter of the time that the pipe's own poll takes
        poll.register(queue._reader, select.POLLIN)
        return bool(poll.poll(0))
    return None
