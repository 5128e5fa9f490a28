"""Which names mean what: runtime calls, collectives, marks. Matched once per distinct name, never per event."""

from __future__ import annotations

import json
import re
from typing import TypeAlias

import numpy as np

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import distinct
from diagnose.model.shapes import Shape

# The shapes of operators' inputs, as a recording with shapes has them.


def shapes_of_each(trace: Trace, rows: Rows) -> list[tuple[Shape, ...]]:
    """Return the shapes of each operator's arguments, () for one that is no tensor; those of a list one by one."""
    texts = trace.events.shapes[rows]
    read = {text: shapes_in(trace.names[text]) if text >= 0 else () for text in distinct(texts).tolist()}
    return [read[text] for text in texts.tolist()]


def shapes_in(text: str) -> tuple[Shape, ...]:
    """Return the shapes in a text as a trace has it, "[[8, 3], []]"; () for what is no tensor."""
    try:
        given = json.loads(text)
    except ValueError:
        return ()
    found: list[Shape] = []
    for each in given if isinstance(given, list) else []:
        if isinstance(each, list) and each and all(isinstance(part, list) for part in each):
            found += map(_shape, each)
        else:
            found.append(_shape(each))
    return tuple(found)


def _shape(given: object) -> Shape:
    return tuple(given) if isinstance(given, list) and all(isinstance(n, int) for n in given) else ()


JOINS = re.compile(r"^aten::(cat|concat|concatenate)$")
MODULE = re.compile(r"^nn\.Module: ")
FUSED = re.compile(r"[Ff]used")  # kernels of an optimizer
PAGEABLE = re.compile(r"Pageable", re.IGNORECASE)


class AnyCase:
    """A pattern that ignores case, written in lower case.

    To search the name in lower case takes a quarter of the time of ``re.IGNORECASE``, and names of kernels are long.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def search(self, name: str) -> re.Match[str] | None:
        """Return what the pattern finds in the name in lower case, None for nothing."""
        return self._pattern.search(name.lower())


Pattern: TypeAlias = "re.Pattern[str] | AnyCase"


NAME_PART = 600  # characters: what a kernel does stands at the start of its name; templates may take thousands

STEP_MARK = re.compile(r"^ProfilerStep#\d+$")
LOADER_NEXT = re.compile(
    r"^enumerate\(DataLoader\)#.*__next__|DataPipe.*__next__|^dataloader_iter|_BaseDataLoaderIter\.__next__"
)
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
REDUCTION = re.compile(r"all_?reduce", re.IGNORECASE)
DATA_SIZES = re.compile(r"^aten::(nonzero|masked_select|_?unique\w*)$")  # whose results are as large as data asks for
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
    r"^(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize|^(cuda|hip|cnrt)Memcpy(?!.*Async)|^(cu)Memcpy(DtoH|HtoD|DtoD)_v2$"
    r"|^cnrt(QueueSync|SyncDevice|WaitNotifier)$"  # of Cambricon's runtime
)
# Calls by which memory is taken from or given back to the driver.
ALLOCATION = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|HostMalloc|HostFree|ExtMalloc)"
    r"|^(cu|hip)Mem(Create|Map|Unmap|Release|AddressReserve|AddressFree|SetAccess|Alloc|Free|HostAlloc)"
)
# Of these, those that give memory back at once, and return only when the device has done all that was queued.
FREEING = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")
# Calls by which device code is loaded or the runtime sets itself up.
LOADS_CODE = AnyCase(r"(function|module) loading")  # records of the category `overhead` that are CUDA's first use
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
_COMPUTES = r"(?!triton_\w*fused|.*(gemm|matmul|[_:]mm_))"
_EXPERT_EXCHANGE = (
    r"int(er|ra)_?node(?!s)|\bep_?(dispatch|combine)|moe_?a2a"
    rf"|^(?=.*(all_?to_?all|a2a_?(dispatch|combine))){_COMPUTES}"
)
EXPERT_EXCHANGE = AnyCase(_EXPERT_EXCHANGE)
COLLECTIVE = AnyCase(
    r"nccl(?!.*init)|rccl|msccl|cross_device_reduce|one_?shot_?all_?reduce|two_?shot_?all_?reduce"
    r"|all_?reduce_(one|two)_?shot|multimem_(all|one|reduce)|quick_?reduce|nvshmem|rocshmem|deep_?ep(?!.*layout)"
    rf"|^(?=.*(?<![a-z])(all_?gather|reduce_?scatter|all_?reduce)_?\w*kernel){_COMPUTES}"
    rf"|{_EXPERT_EXCHANGE}",
)


TO_HOST = AnyCase(r"dtoh|devicetohost")
FROM_HOST = AnyCase(r"htod|hosttodevice")


def matching(trace: Trace, kinds: tuple[Kind, ...], pattern: Pattern) -> Rows:
    """Return the rows of the given kinds whose name the pattern finds, in time order."""
    found = [name for name in names_of(trace, *kinds) if pattern.search(trace.names[name])]
    if not found:
        return np.empty(0, np.intp)
    hit = np.zeros(len(trace.names) + 1, bool)
    hit[found] = True
    mask = hit.take(trace.events.name)  # in less than half of the time of indexing
    others = [kind for kind in Kind if kind not in kinds]
    if trace.has_name[others][:, found].any():
        mask &= is_of(trace, *kinds)
    return np.flatnonzero(mask)


def names_of(trace: Trace, *kinds: Kind) -> list[int]:
    """Return the distinct names of the events of the given kinds, rows of ``Trace.names`` in order."""
    found: list[int] = np.flatnonzero(trace.has_name[list(kinds)].any(axis=0)).tolist()
    return found


def rows_of(trace: Trace, *kinds: Kind) -> Rows:
    """Return the rows of the given kinds, in time order."""
    return np.flatnonzero(is_of(trace, *kinds))


def is_of(trace: Trace, *kinds: Kind) -> Mask:
    """Return which events are of the given kinds."""
    column = trace.events.kind
    mask: Mask = column == int(kinds[0])  # NumPy compares with a member of an enumeration eight times as slowly
    for kind in kinds[1:]:
        mask |= column == int(kind)
    return mask
