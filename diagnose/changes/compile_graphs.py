"""Replay the launches of a compiled model as CUDA graphs.

What it does
    `torch.compile(model, mode="reduce-overhead")` replays forward and backward with one launch each. It helps if the
    CPU launches kernels more slowly than the GPU runs them.

What to watch
    Shapes must stay the same from step to step. Call `zero_grad` before each forward: a replay overwrites earlier
    gradients. Compiling takes tens of seconds. The optimizer and data loading gain nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import COMPILATION, graphable, to_calls_of_the_model, to_launches_without_graphs
from diagnose.changes.common.change import Change, Patch, Proposal, identical, rounding
from diagnose.changes.patches import compiling
from diagnose.text.numbers import duration, percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

# What the host does per step to replay graphs: guards and input copies, and for each kernel. Published traces
# have 184 µs in the launch of 100 kernels and 507 µs in that of 425; newer drivers take less. At least of the operators
# stays where a graph break or unsteady shapes keep them out of the graphs.
GUARDS_NS = (200_000, 50_000)
NODE_NS = (1_800, 300)
UNCAPTURED = (0.5, 0.0)
UNCAPTURED_OF_STEP = (0.25, 0.0)
PAUSES_LEFT = 0.3  # between the kernels of a graph, of those between launches
MIN_DATA_SIZES = 4.0  # operators a step; fewer may stand in a loss, outside of the model
_SERVERS = {"vllm": "vLLM", "sglang": "SGLang"}
_OPTIONS = {
    "vllm": (
        "llm = LLM(model=name, enforce_eager=True)",
        "llm = LLM(model=name)   # without enforce_eager; vllm serve: without --enforce-eager",
    ),
    "sglang": (
        "python -m sglang.launch_server --model-path PATH --disable-cuda-graph",
        "python -m sglang.launch_server --model-path PATH --cuda-graph-max-bs 64   # not below the batches that come",
    ),
}


_WHOLE_STEP = """from diagnose.kernels.step_graph import StepGraph

def whole_step(x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()   # made with capturable=True
    return loss.detach()

step = StepGraph(whole_step, "cuda", optimizers=[optimizer])
loss = step(x, y)"""


def _applies(program: Program, finding: Finding) -> bool:
    num = finding.facts.get("data_sizes", 0.0)  # operators of a step with as many rows as their data asks for
    has_fixed_sizes = not isinstance(num, float) or num < MIN_DATA_SIZES
    return has_fixed_sizes and to_calls_of_the_model(finding) and to_launches_without_graphs(program, finding)


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal | None:
    if not finding.facts.get("has_device"):
        return None
    if program.server:
        return _of_a_server(program.server)
    if program.second_derivatives:
        return Proposal(
            title="Capture the whole step as one CUDA graph: torch.compile takes no gradients of gradients",
            after=_WHOLE_STEP,
            least=0.3 * graphable(finding),
            most=0.95 * graphable(finding),
            needs="inputs of one shape, no value read within the step, and memory for the graph",
            numerics=identical("if no value is read within the step"),
        )
    if program.is_compiled:
        title = "Replay the compiled model's launches as one CUDA graph"
        model, before = "model", "model = torch.compile(model)"
    else:
        title, model, before = "", "Model().cuda()", "model = Model().cuda()"
    return Proposal(
        title=title,
        before=before,
        after=f'model = torch.compile({model}, mode="reduce-overhead")',
        least=0.3 * graphable(finding),
        most=0.9 * graphable(finding),
        needs=f"input shapes that do not change from step to step; {COMPILATION}"
        + ("; collectives of NCCL, which a graph can hold" if program.has_collectives else ""),
    )


def _of_a_server(server: str) -> Proposal:
    """Return the option that the server itself has for it."""
    before, after = _OPTIONS[server]
    return Proposal(
        title=f"Compile the model and capture its launches as CUDA graphs in {_SERVERS[server]}",
        before=before,
        after=after,
        least=0.3,
        most=0.9,
        needs="batches of the sizes that it captures, and memory for the graphs",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    import numpy as np

    from diagnose.model.events import Kind
    from diagnose.model.intervals import intersect, span, subtract, total, union
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.calls import allocations, code_loads, compile_frames
    from diagnose.tables.names import LOADER_NEXT, ZERO_GRAD

    # What operators do beside launching has findings of its own.
    loading, collecting = t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP), t.host_rows(Kind.GC)
    others = (loading, collecting, allocations(t), code_loads(t), compile_frames(t))
    apart = t.covering(np.concatenate(others))
    named = t.causes.pieces(finding.rule)
    whole = t.program.second_derivatives  # a graph of the whole step holds the optimizer as well
    outside = union(t.updates, t.covering(t.calls(ZERO_GRAD, Kind.ANNOTATION, Kind.OP)))  # of the model
    host = span(*t.steps.window) if whole else subtract(union(t.in_ops, named), outside)
    host = subtract(host, apart)
    host = intersect(host, t.sync_free if graphable(finding) < 1 else span(*t.steps.window))
    each = total(host) / t.steps.num
    if each <= 0:
        return None
    num = len(t.tasks.row) / t.steps.num
    graphed = [guards + node * num for guards, node in zip(GUARDS_NS, NODE_NS, strict=True)]
    left = UNCAPTURED_OF_STEP if whole else UNCAPTURED
    stays = [min(1.0, max(share, fixed / each)) for share, fixed in zip(left, graphed, strict=True)]
    assumption = (
        f"Of {duration(each)} a step in operators outside loading and the optimizer, {percent(stays[1], 0)} to "
        f"{percent(stays[0], 0)} stay as launches of graphs and operators that no graph holds."
    )
    tasks = np.arange(len(t.tasks.row))  # which take as long as before, at most with shorter pauses between them
    nothing = np.zeros(len(tasks))
    return effect_of_tasks(
        t,
        finding,
        tasks,
        (nothing, nothing),
        assumption,
        host=host,
        host_left=(stays[0], stays[1]),
        pauses_left=(1.0, PAUSES_LEFT if whole else 1.0),
        frees_host=True,
    )


CHANGE = Change(
    id="compile-graphs",
    title="Compile the model and replay its launches as one CUDA graph",
    numerics=rounding("fused kernels round differently; compare the loss of the first steps"),
    patch=Patch(compiling.compile_graphs, needs_gpu=True, compiles=True, group="compile"),
    proposal=_proposal,
    applies=_applies,
    effect=_effect,
    remedy="diagnose.kernels.compiling",
    modules=("diagnose.kernels.step_graph",),
)
