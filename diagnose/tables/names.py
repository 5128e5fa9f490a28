"""Which names mean what: runtime calls, collectives, marks. Matched once per distinct name, never per event."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind, Trace

__all__ = [
    "ALLOCATION",
    "BACKWARD",
    "BLOCKING",
    "CAPTURE_BEGIN",
    "CAPTURE_END",
    "GRAPH_CAPTURE",
    "GRAPH_LAUNCH",
    "HOST_BACKEND",
    "HOST_COLLECTIVE",
    "KERNEL_LAUNCH",
    "LAUNCH",
    "LOADER_NEXT",
    "MODULE_LOAD",
    "NAME_PART",
    "OPTIMIZER_STEP",
    "REDUCTION",
    "STEP_MARK",
    "ZERO_GRAD",
    "Pattern",
    "is_collective",
    "is_expert_exchange",
    "matching",
    "rows_named",
    "rows_of",
]

Pattern: TypeAlias = "re.Pattern[str]"

NAME_PART = 600  # characters: what a kernel does stands at the start of its name; templates may take thousands

STEP_MARK = re.compile(r"^ProfilerStep#\d+$")
LOADER_NEXT = re.compile(
    r"^enumerate\(DataLoader\)#.*__next__|DataPipe.*__next__|^dataloader_iter|_BaseDataLoaderIter\.__next__"
)
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
REDUCTION = re.compile(r"all_?reduce", re.IGNORECASE)
BACKWARD = re.compile(r"^autograd::engine::evaluate_function: ")

# Calls that put work on a stream. Graph launches count once however many kernels they carry.
LAUNCH = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Launch(Cooperative)?Kernel|GraphLaunch|ModuleLaunch|Memcpy|Memset|LaunchCooperative)"
)
# The same without copies and fills: those of zero bytes leave no task, and libraries make them all the time.
KERNEL_LAUNCH = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Launch(Cooperative)?Kernel|GraphLaunch|ModuleLaunch|LaunchCooperative)"
)
GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
CAPTURE_BEGIN = re.compile(r"^(cuda|hip|cu)StreamBeginCapture")
CAPTURE_END = re.compile(r"^(cuda|hip|cu)StreamEndCapture")
GRAPH_CAPTURE = re.compile(r"^(cuda|hip|cu)(StreamBeginCapture|StreamEndCapture|GraphInstantiate)")
# Calls that return only once the device has caught up.
BLOCKING = re.compile(
    r"^(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(?!.*Async)|^(cu)Memcpy(DtoH|HtoD|DtoD)_v2$"
)
# Calls by which memory is taken from or given back to the driver.
ALLOCATION = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|HostMalloc|HostFree|ExtMalloc)"
    r"|^(cu|hip)Mem(Create|Map|Unmap|Release|AddressReserve|AddressFree|SetAccess|Alloc|Free|HostAlloc)"
)
# Calls by which device code is loaded or the runtime sets itself up.
MODULE_LOAD = re.compile(
    r"^(cu|hip)(ModuleLoad|LibraryLoad|ModuleGetFunction|LibraryGetKernel|LinkAddData|LinkComplete|Init$|CtxCreate|DevicePrimaryCtxRetain)"
    r"|^(cuda|hip)(FuncGetAttributes|FuncSetAttribute|StreamCreate|EventCreate|GetDeviceProperties|GraphInstantiate"
    r"|DeviceGetStreamPriorityRange|SetDevice|DeviceSetLimit|OccupancyMaxActiveBlocks|DeviceCanAccessPeer|DeviceEnablePeerAccess)"
)
# Collectives that the host's own threads carry out.
HOST_BACKEND = re.compile(r"^gloo:(?!barrier)")
# Operators in which the host itself waits for other ranks. NCCL's own collectives only queue.
HOST_COLLECTIVE = re.compile(
    r"^c10d::(barrier|monitored_barrier)|^gloo:barrier|^nccl:barrier|_object_list$"
    r"|torch/distributed/distributed_c10d\.py\(\d+\): (barrier|monitored_barrier|\w*_object\w*)"
    r"|^<built-in method (wait|get|wait_for_key) of .*(Store|Work)"
)
# Kernels of a library of collectives, and those that libraries of experts, of inference and of symmetric memory bring
# along. `dispatch` and `combine` alone are words of computing (CUB dispatches, a softmax's parts are combined): they
# count beside a word for ranks. A fused kernel may name a collective beside which it computes, and computes.
# Searched in small letters, and only where one of the words stands that each of their alternatives holds.
_EXCHANGE = (
    r"(inter|intra)_?node(?!s)|\bep_?(dispatch|combine)|moe_?a2a"
    r"|^(?!triton_\w*fused|.*(gemm|matmul|[_:]mm_)).*(all_?to_?all|a2a_?(dispatch|combine))"
)
_EXPERT_EXCHANGE = re.compile(_EXCHANGE)
_COLLECTIVE = re.compile(
    r"nccl(?!.*init)|rccl|msccl|cross_device_reduce|(one|two)_?shot_?all_?reduce|all_?reduce_(one|two)_?shot"
    r"|multimem_(all|one|reduce)|quick_?reduce|nvshmem|rocshmem|deep_?ep(?!.*layout)"
    r"|^(?!triton_\w*fused|.*(gemm|matmul|[_:]mm_)).*(?<![a-z])(all_?gather|reduce_?scatter|all_?reduce)_?\w*kernel"
    rf"|{_EXCHANGE}"
)
_EXCHANGE_WORDS = ("node", "dispatch", "combine", "a2a", "all")
_COLLECTIVE_WORDS = ("ccl", "reduce", "shot", "multimem", "shmem", "deep", "gather", *_EXCHANGE_WORDS)


@lru_cache(maxsize=4096)  # the ranks of a job share most names
def is_collective(name: str) -> bool:
    """Return whether a kernel of this name exchanges data with other ranks."""
    return _finds(_COLLECTIVE, _COLLECTIVE_WORDS, name.lower())


@lru_cache(maxsize=4096)
def is_expert_exchange(name: str) -> bool:
    """Return whether a kernel of this name exchanges tokens between experts."""
    return _finds(_EXPERT_EXCHANGE, _EXCHANGE_WORDS, name.lower())


def _finds(pattern: Pattern, words: Iterable[str], name: str) -> bool:
    return any(word in name for word in words) and pattern.search(name) is not None


def matching(trace: Trace, kinds: tuple[Kind, ...], pattern: Pattern) -> Rows:
    """Return the rows of the given kinds whose name the pattern finds, in time order."""
    return rows_named(trace, kinds, pattern.search)


def rows_named(trace: Trace, kinds: tuple[Kind, ...], is_meant: Callable[[str], object]) -> Rows:
    """Return the rows of the given kinds of whose name this is true, in time order; each name is looked at once."""
    rows = rows_of(trace, *kinds)
    names = trace.events.name[rows]
    hit = np.zeros(len(trace.names) + 1, bool)
    for name in np.flatnonzero(np.bincount(names)).tolist():
        hit[name] = bool(is_meant(trace.names[name]))
    return rows[hit[names]]


def rows_of(trace: Trace, *kinds: Kind) -> Rows:
    """Return the rows of the given kinds, in time order."""
    column = trace.events.kind
    mask = column == kinds[0]
    for kind in kinds[1:]:
        mask |= column == kind
    return np.flatnonzero(mask)
