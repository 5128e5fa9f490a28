"""Tensors are only moved: into another order, another type, or the memory of a CUDA graph.

What it looks for
    Conversions between channels-first and channels-last, and copies by `.contiguous()`, `reshape` or `clone`.
    Threshold: 5% of GPU busy time, without conversions 10%. Also repeated float casts, and eight or more copies next to
    a CUDA graph launch.

Why it costs
    Each copy reads and writes the whole tensor and computes nothing.

What to do
    Keep images and convolutions in `channels_last`. Remove `.contiguous()` before operators that accept strides, such
    as matrix products and attention. Write tensors in the type that is used. Let graphs read parameters in place.

How sure
    High for layouts, medium or low for casts and graphs. Needs recorded shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical, rounding
from diagnose.analyzers.common.advice_models import with_launches
from diagnose.analyzers.common.kernel_findings import SHAPES_DOUBT, KernelRule, kernel_finding, top_kernels
from diagnose.analyzers.common.locate import enclosing_operators
from diagnose.model.arrays import Mask, Rows
from diagnose.model.diagnosis import Confidence, Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import among, contains, distinct, grouped
from diagnose.model.limits import MIN_RECURRENCES
from diagnose.model.rules import RuleMeta
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.names import AnyCase
from diagnose.text.numbers import plural

META = RuleMeta(
    id="layout-copy",
    kind="kernel",
    order=60,
    changes=("channels-last", "no-contiguous", "emit-type", "static-graph-inputs"),
    needs=("shapes",),
)
_STATIC = Advice(
    id="static-graph-inputs",
    title="Mark the parameters as static inputs of the CUDA graphs, and copy new batches only",
    numerics=rounding("fused kernels round differently; compare the loss of the first steps"),
    before='model = torch.compile(model, backend="cudagraphs")   # a backend that copies each input',
    after="""model = torch.compile(model, mode="reduce-overhead")   # parameters are read in place
# of other large tensors that stay from step to step, once:
torch._dynamo.mark_static_address(table)""",
    needs="torch 2.1 or newer; parameters that the compiled model holds, and does not get as arguments",
    watch="A tensor that is marked and then replaced is captured again. Outputs live until the next step: clone them.",
    when=lambda f, p: f.facts.get("around_graphs") and p.is_compiled,
    least=0.5,  # the inputs of a compiled model's graphs are mostly parameters and what backward keeps
    most=0.95,
    effect=with_launches(0.5, 0.95, "the copies"),
)
ADVICE = (
    _STATIC,
    replace(
        _STATIC,
        numerics=identical(),
        before="""for captured, tensor in zip(inputs, [*model.parameters(), batch]):
    captured.copy_(tensor)
graph.replay()""",
        after="""# captured with the model's own parameters, which optimizers update in place
captured_batch.copy_(batch)   # what is new in a step, and nothing else
graph.replay()""",
        needs="",
        when=lambda f, _: f.facts.get("around_graphs"),
        least=0.1,  # a loop that replays a graph itself may copy nothing but a batch of many tensors
        effect=with_launches(0.1, 0.95, "the copies"),
    ),
    Advice(
        id="emit-type",
        title="Write the tensors in the type that they are used in",
        numerics=rounding("a value is rounded once instead of twice"),
        before="w = dequantize(packed)   # writes another type\ny = x @ w.to(torch.{cast_to})",
        after="w = dequantize(packed, dtype=torch.{cast_to})   # a library: its compute dtype\ny = x @ w",
        needs="a producer that can write the type; weights of 4 bits, say, that were packed for it",
        when=lambda f, _: f.facts.get("cast_to"),
        least=0.1,
    ),
)


_CONVERTS = AnyCase(
    r"nchwtonhwc|nhwctonchw|foldednhwc|nhwctofolded|batched_transpose|transpose_readwrite|converttensor_kernel"
    r"|tensortransform"
)
_COPIES = re.compile(r"direct_copy_kernel")
_COPY_OPS = frozenset({"aten::copy_", "aten::contiguous", "aten::clone", "aten::reshape"})
CASTS = re.compile(r"LoadWithCast|StoreWithCast")
_FLOATS = r"float|double|c10::Half|c10::BFloat16|c10::Float8_\w+"
_CAST = re.compile(
    rf"direct_copy_kernel.*lambda\((?P<to>{_FLOATS})\).*(LoadWithCast|StoreWithCast)"
    r"|(?P<short>bfloat16|float16|half|float8)_copy_kernel_cuda"
)
_CAST_OPS = frozenset(
    {"aten::to", "aten::_to_copy", "aten::copy_", "aten::type_as", "aten::float", "aten::half", "aten::bfloat16"}
)
# A cast inside an operator is autocast's, the backward of a cast goes with it, a policy casts sharded parameters.
_OF_OTHERS = r"^aten::|ToCopyBackward|FSDP|FullyShardedDataParallel"
MIN_COPIES = 8  # right before or behind one launch: a batch has a few tensors, parameters and outputs are many
_GRAPH_COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_", ""})
_FILLS = "aten::fill_"  # before a replay torch writes the seed and the offset of random numbers


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of tasks that only move numbers: of the kind that takes longest."""
    around = graph_copies(t, free)
    free = free & (t.trace.events.kind[t.tasks.row] == Kind.KERNEL)
    free[around] = False
    converts = free & t.tasks_matching(_CONVERTS)
    reorders = free & ~converts & t.tasks_matching(_COPIES)
    copies = np.flatnonzero(reorders)
    reorders[copies] = ~t.tasks_matching(CASTS, copies) & _same_type(t, copies)
    casts = conversions(t, free & ~converts & ~reorders)
    length = t.tasks.end - t.tasks.start
    is_conversion = bool(length[converts].sum() > length[reorders].sum())
    tasks = max((np.flatnonzero(converts | reorders), casts, around), key=lambda each: length[each].sum())
    confidence: Confidence = "high"
    facts: dict[str, object] = {"is_conversion": is_conversion and tasks is not casts and tasks is not around}
    evidence, min_share, doubt = top_kernels(t, tasks), 0.05, ""
    if tasks is around:
        title, confidence = "CUDA graphs copy their inputs and outputs at each launch", "medium"
        num = plural(len(distinct(t.tasks.launch[t.graph_nodes])) / t.steps.num, "launch")
        moved_mb = t.trace.events.size[t.tasks.row[tasks]].clip(min=0).sum() / t.steps.num / 1e6
        text = (
            f"They are queued right before or after {num} of CUDA graphs a step, and move {moved_mb:,.0f} MB: what "
            "the graphs read is copied into their memory, what they write is copied out."
        )
        evidence, facts["around_graphs"] = [text, *evidence], True
    elif tasks is casts:
        in_graph = bool(2 * t.graph_nodes[tasks].sum() > len(tasks))
        cost = Counter[str]()  # by the type that the casts write
        for task, ns in zip(tasks.tolist(), length[tasks].tolist(), strict=True):
            match = _CAST.search(t.name(int(t.tasks.row[task])))
            cost[(match["to"] or match["short"] or "") if match else ""] += ns
        facts["cast_to"] = cost.most_common(1)[0][0].removeprefix("c10::").lower()
        confidence = "medium"
        title = "Tensors are converted to another type as soon as they are made"
        if in_graph:
            title = "Tensors are converted to another type as soon as they are made, in a CUDA graph"
        if in_graph or not t.operator_inputs.is_known.any():
            confidence, doubt = "low", SHAPES_DOUBT
    elif is_conversion:
        title = "Images are converted between memory layouts"
    else:
        title = "Tensors are copied into another order"
        min_share = 0.1  # four healthy models copy 5 to 9 % for operators that need it, planted ones 21 to 50 %
    found = kernel_finding(t, KernelRule(META.id, title, min_share, 0.0, evidence, confidence, facts, doubt), tasks)
    # Copies that the script calls itself come first: other operators copy what these give them.
    return [
        replace(each, where=tuple(sorted(each.where, key=lambda place: place.op not in _COPY_OPS))) for each in found
    ]


def _same_type(t: Tables, tasks: Rows) -> Mask:
    """Return which copies keep the type, as far as the types of what is copied were recorded."""
    given = t.operator_inputs
    copying = [row for row in distinct(given.name[tasks]).tolist() if given.text(row) in _COPY_OPS]
    types = np.where(among(given.name[tasks], copying), given.types[tasks], -1)
    same = np.ones(len(given.texts) + 1, bool)  # the last one is for tasks of which nothing is known
    for row in distinct(types[types >= 0]).tolist():
        read = inputs("[[1], [1]]", given.texts[row])
        same[row] = read is None or len({tensor.type for tensor in read.tensors}) <= 1
    found: Mask = same[types]
    return found


def conversions(t: Tables, free: Mask) -> Rows:
    """Return the tasks that convert what one and the same kernel before them writes, several times a step.

    Casts within runs of pointwise kernels, in an optimizer's step and of data from elsewhere do not count: others
    answer for the first two, and of the third nobody on the device can write another type.
    """
    casts = free & t.tasks_matching(_CAST) & (t.tasks.launch >= 0)
    if not casts.any():
        return np.empty(0, np.intp)
    for chain in t.chains:
        casts[chain.tasks] = False
    length, computes = t.tasks.end - t.tasks.start, t.trace.events.kind[t.tasks.row] == Kind.KERNEL
    computes &= ~t.tasks.is_collective
    before = np.full(len(casts), -1, np.intp)  # the kernel right before each task on its stream
    for tasks in t.streams.values():
        before[tasks[1:]] = np.where(computes[tasks[:-1]], tasks[:-1], -1)
    # A cast reads and writes each element; its producer wrote it: of 16 and 32 bits, a third of the bytes or more.
    casts &= (before >= 0) & (length[before] >= length / 3)
    casts &= ~contains(t.updates, t.trace.events.start[np.maximum(t.tasks.launch, 0)])
    found = np.flatnonzero(casts)
    found = found[_asked_for(t, found) | t.graph_nodes[found]]  # of a graph nothing shows who asked
    name = t.trace.events.name[t.tasks.row]
    pairs = list(zip(name[before[found]].tolist(), name[found].tolist(), strict=True))
    count = Counter(pairs)
    again: Rows = found[np.array([count[pair] >= MIN_RECURRENCES * t.steps.num for pair in pairs], bool)]
    return again


def _asked_for(t: Tables, tasks: Rows) -> Mask:
    """Return which casts the program asks for itself, as the operators around their launches show."""
    events, launch = t.trace.events, t.tasks.launch[tasks]
    found = np.zeros(len(tasks), bool)
    for thread in distinct(events.thread[launch]).tolist():
        mine = np.flatnonzero(events.thread[launch] == thread)
        for i, text in zip(mine.tolist(), enclosing_operators(t, thread, events.start[launch[mine]]), strict=True):
            around = set(text.split(" > "))
            others = around - _CAST_OPS
            found[i] = around != others and not any(re.search(_OF_OTHERS, name) for name in others)
    return found


def graph_copies(t: Tables, free: Mask) -> Rows:
    """Return the copies within the device that a thread queues back to back with the launch of a graph.

    A graph reads and writes the memory that it was captured with. What lies elsewhere is copied into it before each
    launch, and what must outlive the next launch is copied out.
    """
    nodes = t.graph_nodes
    if not nodes.any():
        return np.zeros(0, np.intp)
    launches, first, _ = grouped(t.tasks.launch)
    launches, first = launches[launches >= 0], first[launches >= 0]
    ops, events = t.operators, t.trace.events
    names = [t.trace.names[n] if n >= 0 else "" for n in np.where(ops >= 0, events.name[ops], -1)[first].tolist()]
    kind = events.kind[t.tasks.row]
    copies = (kind == Kind.MEMCPY) | ((kind == Kind.KERNEL) & (ops >= 0) & ~t.tasks_matching(CASTS))
    copies &= free & ~t.tasks.is_copy & ~t.tasks.is_collective & ~nodes
    is_graph, is_copy = nodes[first], copies[first]
    is_copy &= np.array([name in _GRAPH_COPIES for name in names], bool)
    counts = np.array([name != _FILLS for name in names], bool) | is_graph
    found = [launches[:0]]
    for thread in distinct(events.thread[launches[is_graph]]).tolist():
        mine = np.flatnonzero((events.thread[launches] == thread) & counts)
        mine = mine[np.argsort(events.start[launches[mine]], kind="stable")]
        begin = np.flatnonzero(np.diff(is_copy[mine], prepend=not is_copy[mine[0]]))
        end = np.append(begin[1:], len(mine))
        beside = np.concatenate([[False], is_graph[mine], [False]])  # of each launch: the one before, two on the next
        runs = is_copy[mine][begin] & (beside[begin] | beside[end + 1]) & (end - begin >= MIN_COPIES)
        found += [launches[mine[a:b]] for a, b in zip(begin[runs].tolist(), end[runs].tolist(), strict=True)]
    return np.flatnonzero(among(t.tasks.launch, np.concatenate(found)) & free)
