"""What is known of the program from its trace: what it runs, how, and on whose device. Advice must fit it.

A field is None, "" or empty where the trace does not show it: a change is left out for what is known only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.capture import CaptureInfo
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, distinct, grouped, intersect, span, total
from diagnose.model.limits import FEW, MIN_RECURRENCES
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables
from diagnose.tables.collectives import buffer_broadcasts
from diagnose.tables.names import (
    BACKWARD,
    GRAPH_CAPTURE,
    GRAPH_LAUNCH,
    JOINS,
    KERNEL_LAUNCH,
    LOADER_NEXT,
    OPTIMIZER_STEP,
    REDUCTION,
    matching,
    names_of,
    shapes_in,
    shapes_of_each,
)
from diagnose.tables.roofline import device_of

# Tensors that grow piece by piece, as a cache of keys and values does: no graph holds their length.

ATTENTION = re.compile(r"^aten::_?scaled_dot_product|^aten::_(flash|efficient|cudnn)_attention")


def grows(t: Tables, trace: Trace) -> bool:
    """Return whether a tensor grows by equal pieces: within a step, or from each step to the next."""
    # Whether the result of joining two tensors is joined with a piece of the same size, several times over.
    sizes: dict[tuple[Shape, int, Shape], set[int]] = {}
    for text in distinct(trace.events.shapes[_rows(trace, JOINS)]).tolist():
        given = shapes_in(trace.names[text])[:2]
        if len(given) < 2 or len(given[0]) != len(given[1]):
            continue
        grown, piece = given
        sides = [i for i, (a, b) in enumerate(zip(grown, piece, strict=True)) if a != b]
        if len(sides) == 1:
            at = sides[0]
            sizes.setdefault((piece, at, grown[:at] + grown[at + 1 :]), set()).add(grown[at])
    grows_by_cat = any(
        # Times that a piece is joined to what the time before gave.
        sum(size + piece[at] in known for size in known) >= MIN_RECURRENCES
        for (piece, at, _), known in sizes.items()
    )
    if grows_by_cat:
        return True
    # Whether the largest tensor that is concatenated, or attended to, grows by as much in each step.
    steps = t.steps if trace is t.trace else t.named.steps
    # Steps, of which each needs more than the one before.
    if steps.num < MIN_RECURRENCES:
        return False
    for pattern in (JOINS, ATTENTION):
        rows = _rows(trace, pattern)
        step = np.searchsorted(steps.start, trace.events.start[rows], side="right") - 1
        rows, step = rows[step >= 0], step[step >= 0]
        elements = np.zeros(len(trace.names), np.int64)
        for text in distinct(trace.events.shapes[rows]).tolist():
            elements[text] = max(map(num_elements, shapes_in(trace.names[text])), default=0)
        largest = np.zeros(steps.num, np.int64)
        np.maximum.at(largest, step, elements[trace.events.shapes[rows]])
        rises = np.diff(largest)
        if largest[0] and rises[0] > 0 and (rises == rises[0]).all():
            return True
    return False


def _rows(trace: Trace, pattern: re.Pattern[str]) -> Rows:
    """Return the operators of a name whose inputs' shapes are recorded."""
    events = trace.events
    wanted = np.array([pattern.match(name) is not None for name in trace.names], bool)
    return np.flatnonzero((events.kind == Kind.OP) & (events.shapes >= 0) & wanted[events.name])


Vendor: TypeAlias = Literal["NVIDIA", "AMD", ""]
Server: TypeAlias = Literal["vllm", "sglang", ""]

MIN_RECORDED_OPERATORS = 10  # from here on a backward would be among them
MIN_UNCACHED = 0.25  # blocks taken from the driver and given back for each launch: a cache makes hardly any
MIN_UNCACHED_PER_STEP = 10

_COMPILED_REGION = re.compile(r"^(Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction(Backward)?$)")
_COMPILED_KERNEL = re.compile(r"^triton_((poi|red|per|mix|tem|spl|for|unk)_|fused_|_\d)")
_GRADIENT = re.compile(r"Backward\d*$|^AccumulateGrad$|torch::autograd::AccumulateGrad")
_UPDATE = re.compile(r"Optimizer\.(step|zero_grad)#|^aten::_(fused|foreach)_(adam|sgd|adagrad)|Optimizer")
_GRADIENT_KERNEL = re.compile(r"backward|_bwd|bwd_|wgrad|fused_?adam|multi_tensor_apply(?!.*Copy<)", re.IGNORECASE)
_DDP = re.compile(r"DistributedDataParallel|^torch::distributed::reducer|nn/parallel/distributed\.py")
_SHARDED = re.compile(r"FullyShardedDataParallel|^FSDP::|fully_shard|DeepSpeed|deepspeed/runtime")
_AMD_NAMES = re.compile(r"^hip[A-Z]|rocm|^Cijk_|rccl|miopen|gfx9\d\d|AMD|Instinct|Radeon|\bMI\d{2,3}\b")
_NVIDIA_NAMES = re.compile(r"^cuda[A-Z]|^cu[A-Z][a-z]|cudnn|cutlass|NVIDIA|Tesla|GeForce|Quadro")
_DRIVER_ALLOCATION = re.compile(r"^(cuda|hip)Malloc$")
_DRIVER_RELEASE = re.compile(r"^(cuda|hip)Free$")
_ASYNC_ALLOCATION = re.compile(r"^(cuda|hip)Malloc(FromPool)?Async")
_CONVOLUTION = re.compile(r"^aten::(conv[123]d|convolution|cudnn_convolution|miopen_convolution)$")
_PRODUCT = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|_scaled_mm|linear|matmul)$")
_LINEAR = re.compile(r"^aten::(linear|addmm|embedding)$")
_BACKEND = re.compile(
    r"^aten::_(?:scaled_dot_product_)?(?P<name>flash|efficient|cudnn)_attention|_attention_(?P<math>math)\b"
)
# A gradient of a gradient: nodes of that kind, or a call of autograd.grad beside a backward pass.
_SECOND = re.compile(r"Backward\d*Backward\d*$")
_GRADIENT_CALL = re.compile(r"torch/autograd/__init__\.py\(\d+\): (grad|backward)$")
_SERVER = re.compile(r"(?:^|/)(?P<name>vllm|sglang)/(?:srt/)?(?:v1|worker|engine|executor|managers|model_executor)/")


@dataclass(frozen=True, slots=True)
class Program:
    """What is known of the program."""

    trains: bool | None = None
    is_compiled: bool = False
    has_graphs: bool = False  # launches of CUDA graphs, or their capture
    vendor: Vendor = ""
    dtypes: frozenset[str] = frozenset()  # of operators' inputs, as the profiler writes them
    batch_size: int | None = None
    is_ddp: bool | None = None
    exchanged: frozenset[str] = frozenset()  # dtypes of reductions, in lower case
    allocator: Literal["caching", "uncached", "async", ""] = ""
    layer_sizes: frozenset[int] = frozenset()  # of weights
    varying_sizes: frozenset[int] = frozenset()  # of products, in some steps only
    grows: bool = False  # a tensor grows piece by piece, as a cache of keys and values does
    has_torch_attention: bool | None = None
    attention_backends: frozenset[str] = frozenset()  # that ran: flash, efficient, cudnn, math
    heavy: frozenset[str] = frozenset()  # what it computes: convolution, product
    has_loader: bool | None = None  # a DataLoader of torch's hands out batches
    has_collectives: bool = False
    server: Server = ""  # the library whose options decide how the model runs
    has_cross_entropy: bool = False
    second_derivatives: bool = False  # gradients of gradients, which no compiled model has


UNKNOWN = Program()


def program_of(t: Tables) -> Program:
    """Return what the trace, its attribution window and the capture's description show of the program."""
    traces = [t.trace] if t.capture.attribution is None else [t.trace, t.capture.attribution]
    info = t.capture.info or CaptureInfo()
    kinds = (Kind.OP, Kind.ANNOTATION, Kind.PYTHON)
    names = frozenset(trace.names[i] for trace in traces for i in names_of(trace, *kinds))
    has_operators = max(int((trace.events.kind == Kind.OP).sum()) for trace in traces) >= MIN_RECORDED_OPERATORS
    servers = {match["name"] for match in map(_SERVER.search, names) if match}
    server: Server = "vllm" if servers == {"vllm"} else "sglang" if "sglang" in servers else ""
    has_loader = bool(info.loader.batch_size) or any(map(LOADER_NEXT.search, names))
    types = (trace.names[i] for trace in traces for i in distinct(trace.events.types).tolist() if i >= 0)
    # The first dimension of what convolutions take, where it is the same in all of them.
    convolved = (shapes for trace in traces for _, shapes in _inputs(trace, _asking(trace, _CONVOLUTION)))
    sizes = {shapes[0][0] for shapes in convolved if shapes and len(shapes[0]) >= 3}
    called = {match[1] for match in map(_GRADIENT_CALL.search, names) if match}
    has_second_derivatives = called == {"grad", "backward"} or any(map(_SECOND.search, names))
    return Program(
        trains=_trains(t, names, info, has_operators=has_operators),
        is_compiled=_is_compiled(t),
        has_graphs=bool(len(t.calls(GRAPH_LAUNCH, Kind.RUNTIME)) or len(t.calls(GRAPH_CAPTURE, Kind.RUNTIME))),
        vendor=_vendor(t),
        dtypes=frozenset(dtype for text in types for dtype in re.findall(r'"([\w:]+)"', text)),
        batch_size=info.loader.batch_size or (sizes.pop() if len(sizes) == 1 else None),
        is_ddp=_is_ddp(t, names, info, has_operators=has_operators),
        exchanged=_exchanged(t),
        allocator=_allocator(t, info),
        layer_sizes=frozenset(size for trace in traces for size in _layer_sizes(trace)),
        varying_sizes=_varying_sizes(t, traces),
        grows=any(grows(t, trace) for trace in traces),
        has_torch_attention=any(map(ATTENTION.match, names)) if has_operators else None,
        attention_backends=frozenset(m["name"] or m["math"] for m in map(_BACKEND.search, names) if m),
        heavy=frozenset(
            what for what, p in (("convolution", _CONVOLUTION), ("product", _PRODUCT)) if any(map(p.match, names))
        ),
        has_loader=True if has_loader else False if has_operators else None,
        has_collectives=bool(t.device_id >= 0 and t.tasks.is_collective.any()),
        server=server,
        has_cross_entropy="aten::cross_entropy_loss" in names,
        second_derivatives=has_second_derivatives,
    )


def _device_names(t: Tables) -> Iterator[str]:
    for name in distinct(t.trace.events.name[t.tasks.row]).tolist():
        yield t.trace.names[name]


def _trains(t: Tables, names: frozenset[str], info: CaptureInfo, *, has_operators: bool) -> bool | None:
    """Return None where kernels alone hint at a backward, as in a graph of whole steps; `dgrad` is no such hint.

    A transposed convolution of inference runs that kernel too.
    """
    if info.optimizer.num_params is not None:
        return True
    if any(p.search(n) for n in names for p in (BACKWARD, OPTIMIZER_STEP, _GRADIENT, _UPDATE)):
        return True
    if not has_operators or any(map(_GRADIENT_KERNEL.search, _device_names(t))):
        return None
    return False


def compiled_code(t: Tables) -> Intervals:
    """Return when what torch.compile has made runs on the host."""
    return t.covering(t.calls(_COMPILED_REGION, Kind.OP, Kind.ANNOTATION))


def _is_compiled(t: Tables) -> bool:
    if t.capture.known.compiled.versions:  # also where all of them were given up
        return True
    start, end = t.steps.window
    regions = intersect(compiled_code(t), span(start, end))
    # Of the steps, of the tasks or of their time: less is a helper of an eager model.
    if total(regions) >= FEW * (end - start):
        return True
    generated = t.tasks_matching(_COMPILED_KERNEL)
    length = t.tasks.end - t.tasks.start
    if not len(length):
        return False
    return bool(generated.mean() >= FEW or length[generated].sum() >= FEW * length.sum())


def _vendor(t: Tables) -> Vendor:
    device = device_of(t)
    calls = [t.trace.names[name] for name in names_of(t.trace, Kind.RUNTIME)]
    sources = ([device.name] if device else []), calls, list(_device_names(t))
    for known in sources:  # the surest first
        if any(map(_AMD_NAMES.search, known)):
            return "AMD"
        if any(map(_NVIDIA_NAMES.search, known)):
            return "NVIDIA"
    return ""


def _is_ddp(t: Tables, names: frozenset[str], info: CaptureInfo, *, has_operators: bool) -> bool | None:
    """Return False only where the operators are recorded and another cause of the exchange shows, or there is none."""
    if info.flags.ddp != type(info.flags.ddp)() or any(map(_DDP.search, names)) or len(buffer_broadcasts(t)):
        return True
    if not has_operators:
        return None
    if any(map(_SHARDED.search, names)):
        return False
    has_exchange = bool(t.tasks.is_collective.any()) or any(map(REDUCTION.search, names))
    return None if has_exchange else False


def _exchanged(t: Tables) -> frozenset[str]:
    details = distinct(t.trace.events.detail[t.tasks.row[t.tasks.is_collective]]).tolist()
    parts = [t.trace.names[i].split("|") for i in details if i >= 0]
    return frozenset(p[1].lower() for p in parts if len(p) > 1 and p[1] and REDUCTION.search(p[0]))


def _allocator(t: Tables, info: CaptureInfo) -> Literal["caching", "uncached", "async", ""]:
    if "cudaMallocAsync" in (info.flags.allocator or "") or len(t.in_window(t.calls(_ASYNC_ALLOCATION, Kind.RUNTIME))):
        return "async"
    taken = len(t.in_window(t.calls(_DRIVER_ALLOCATION, Kind.RUNTIME)))
    freed = len(t.in_window(t.calls(_DRIVER_RELEASE, Kind.RUNTIME)))
    launches = len(t.in_window(t.calls(KERNEL_LAUNCH, Kind.RUNTIME)))
    if not launches:
        return ""
    both = min(taken, freed)  # a cache that grows takes memory without giving it back
    return "uncached" if both >= max(MIN_UNCACHED_PER_STEP * t.steps.num, MIN_UNCACHED * launches) else "caching"


def _asking(trace: Trace, pattern: re.Pattern[str]) -> Rows:
    """Return the operators with recorded shapes whose name the pattern finds."""
    rows = matching(trace, (Kind.OP,), pattern)
    return rows[trace.events.shapes[rows] >= 0]


def _inputs(trace: Trace, rows: Rows, apart: Ints | int = 0) -> Iterator[tuple[int, tuple[Shape, ...]]]:
    """Yield row and tensors' shapes of the operators, of those with equal name, shapes and ``apart`` the first."""
    events, size = trace.events, len(trace.names) + 1
    alike = (np.asarray(apart, np.int64) * size + events.name[rows]) * size + events.shapes[rows]
    firsts = rows[grouped(alike).first]
    yield from zip(firsts.tolist(), shapes_of_each(trace, firsts), strict=True)


def _layer_sizes(trace: Trace) -> Iterator[int]:
    """Yield the sizes of weights: of `linear`'s, of `embedding`'s table, and of the bias that `addmm` adds."""
    for row, shapes in _inputs(trace, _asking(trace, _LINEAR)):
        name = trace.names[int(trace.events.name[row])]
        at = {"aten::linear": 1, "aten::addmm": 0, "aten::embedding": 0}[name]
        weight = shapes[at] if at < len(shapes) else ()
        if name != "aten::addmm" or len(weight) == 1:  # a bias; a matrix is the sum of another product
            yield from weight


def _varying_sizes(t: Tables, traces: list[Trace]) -> frozenset[int]:
    """Return the sizes of matrix products that some steps have and others have not."""
    for trace in traces:
        steps = t.steps if trace is t.trace else t.named.steps
        if steps.num < 2:
            continue
        each: list[set[int]] = [set() for _ in range(steps.num)]
        rows = _asking(trace, _PRODUCT)
        step = np.searchsorted(steps.start, trace.events.start[rows], side="right") - 1
        for row, shapes in _inputs(trace, rows, step):
            at = int(np.searchsorted(steps.start, trace.events.start[row], side="right")) - 1
            if at >= 0:
                each[at].update(n for shape in shapes for n in shape)
        seen = [sizes for sizes in each if sizes]
        if len(seen) >= 2:
            return frozenset(set[int].union(*seen) - set[int].intersection(*seen))
    return frozenset()
