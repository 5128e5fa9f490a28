"""torch's faster implementations of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, Install, Patch, Proposal, SetArguments, rounding
from diagnose.changes.patches import optimizers
from diagnose.changes.patches.optimizers import EDITS, FOREACH_CLASSES, FUSED_CLASSES, differentiates
from diagnose.model.locations import own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program


OWN_STEP = """# a sketch, with the arithmetic of Adam: keep your own; in step(), for each group:
params = [p for p in group["params"] if p.grad is not None]
grads = [p.grad for p in params]
mean = [self.state[p]["exp_avg"] for p in params]
square = [self.state[p]["exp_avg_sq"] for p in params]
torch._foreach_lerp_(mean, grads, 1 - beta1)
torch._foreach_mul_(square, beta2)
torch._foreach_addcmul_(square, grads, grads, value=1 - beta2)
scale = torch._foreach_div(square, 1 - beta2**step)  # step: updates so far
torch._foreach_sqrt_(scale)
torch._foreach_add_(scale, eps)
torch._foreach_addcdiv_(params, mean, scale, value=-lr / (1 - beta1**step))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """An implementation of torch's optimizers; ranges are what holds at least and at most where it replaces a loop."""

    flag: str  # the argument that selects it
    classes: tuple[str, ...]  # that have it
    advised_for: Callable[[str], bool]  # classes for which no better one is there
    launches: tuple[int, int]  # that a step of the optimizer makes, where least and where most is saved
    fewer_passes: tuple[float, float]  # share of the passes over memory that is spared
    on_device: tuple[float, float]  # of the loop's cost, what goes
    on_cpu: tuple[float, float] | None  # where the cost is without what stays of the operators; None: no gain
    serves_own: bool = False  # whether it is what an optimizer of the author's own can be written with


def change_to(chosen: Implementation, install: Install, page: str) -> Change:
    """Return the change to an implementation, which ``install`` makes in a trial."""

    def advice(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
        name = str(finding.facts.get("name", "AdamW"))
        if differentiates(finding.facts):
            return None
        if finding.facts.get("in_graph"):
            return _in_a_graph(chosen) if chosen.flag == "fused" else None
        if _is_of_torch(name, finding):
            spared = chosen.on_device if finding.facts.get("has_device") else chosen.on_cpu
            return _proposal(chosen, name, finding, spared) if spared and chosen.advised_for(name) else None
        return _of_the_authors_own(name, finding) if chosen.serves_own else None

    def effect(t: Tables, finding: Finding) -> Effect | None:
        return _merged_updates(t, finding, chosen.launches, chosen.fewer_passes)

    return Change(
        id=f"{chosen.flag}-optimizer",
        page=page,
        title=f"Use the {chosen.flag} implementation of the optimizer",
        numerics=rounding("the order of roundings differs; the same to about 1e-6 after a step"),
        patch=Patch(install, group="optimizer"),
        edit=EDITS[chosen.flag],
        proposal=advice,
        applies=to_training,
        effect=effect,
        remedy="diagnose.kernels.optimizers",
    )


def _in_a_graph(chosen: Implementation) -> Proposal:
    """Return the advice for an Adam whose kernels are nodes of a graph; which of the two it is no kernel shows."""
    return Proposal(
        title="Use the fused implementation of Adam or AdamW, and capture the graph again",
        before="optimizer = torch.optim.AdamW(params, lr=lr, capturable=True)",
        after="optimizer = torch.optim.AdamW(params, lr=lr, capturable=True, fused=True)   # the other arguments stay",
        least=chosen.on_device[0],
        most=chosen.on_device[1],
        needs="a new capture: a graph holds the kernels that it was captured with",
        by_hand=True,
    )


def _is_of_torch(name: str, finding: Finding) -> bool:
    """Return whether the class is torch's own with the arguments of the others, not one of the same name."""
    module = finding.facts.get("module") if finding.facts.get("class", name) == name else None
    return name in FOREACH_CLASSES and (not isinstance(module, str) or module.startswith("torch.optim"))


def _of_the_authors_own(name: str, finding: Finding) -> Proposal | None:
    module = finding.facts.get("module")
    if not isinstance(module, str) or module.startswith("torch.optim"):
        return None  # not known, or SparseAdam: no call of theirs takes other arguments
    place = own_place(finding.where)
    return Proposal(
        title=f"Use multi-tensor updates in {name}",
        before=(place.code or "") if place else "",
        after=OWN_STEP,
        needs="the optimizer's own step() rewritten; or a class of torch.optim that computes the same, with fused=True",
        least=0.3 if finding.facts.get("has_device") else 0.0,
        most=0.9 if finding.facts.get("has_device") else 0.6,  # the Python around each of its calls goes too
        by_hand=True,
    )


def _proposal(chosen: Implementation, name: str, finding: Finding, spared: tuple[float, float]) -> Proposal:
    before, after = _shown(EDITS[chosen.flag], name, finding.facts)
    return Proposal(
        title=f"Use the {chosen.flag} implementation of {name}",
        before=before,
        after=after,
        least=spared[0],
        most=spared[1],
        needs="floating-point parameters on one device type"
        + (", dense gradients, and a torch whose fused Adagrad runs there" if name == "Adagrad" else ""),
    )


def _shown(edit: SetArguments, name: str, facts: Mapping[str, object]) -> tuple[str, str]:
    """Return the call before and after, for where no diff of it can be made: what else it passes is not known."""
    left = [word for word in edit.without if facts.get(word)]
    stays = f"   # in its constructor; the other arguments stay{''.join(f', without {word}' for word in left)}"
    before, after = (
        f"optimizer = torch.optim.{name}({', '.join(['params', 'lr=lr', *(f'{word}=True' for word in words)])})"
        for words in (left, edit.given)
    )
    return before, after + stays


def _merged_updates(
    t: Tables, finding: Finding, launches: tuple[int, int], fewer_passes: tuple[float, float]
) -> Effect | None:
    """Return the effect of updating all tensors with few launches.

    Args:
        t: the recorded steps.
        finding: it holds how many launches a step of the optimizer makes today.
        launches: that are left, where least and where most is saved.
        fewer_passes: share of the passes over memory that is spared, at least and at most.
    """
    import numpy as np

    from diagnose.analyzers.unfused_optimizer import one_by_one
    from diagnose.model.intervals import contains, intersect, span, total
    from diagnose.replay.effects import effect_of_tasks

    if finding.facts.get("in_graph"):
        return _merged_nodes(t, finding)
    host = intersect(t.updates if t.device_id >= 0 else one_by_one(t), span(*t.steps.window))
    today = finding.facts.get("launches")
    if not total(host) or not isinstance(today, int | float) or today <= 0:
        return None
    begun = t.trace.events.start[t.tasks.launch]
    tasks = np.flatnonzero((t.tasks.launch >= 0) & contains(host, begun))
    length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
    start_up = float(length.min()) if len(length) else 0.0
    stays = [min(1.0, kept / today) for kept in launches]
    spared = [
        start_up * (1 - stay) + (length - start_up) * fewer for stay, fewer in zip(stays, fewer_passes, strict=True)
    ]
    assumption = f"{launches[1]} to {launches[0]} launches update all tensors instead of {today:.0f}" + (
        ", in one pass over memory instead of three or more." if fewer_passes[1] else "."
    )
    return effect_of_tasks(
        t,
        finding,
        tasks,
        (spared[0], spared[1]),
        assumption,
        host=host,
        host_left=(stays[0], stays[1]),
        pauses_left=(stays[0], stays[1]),
        frees_host=True,
    )


def _merged_nodes(t: Tables, finding: Finding) -> Effect:
    """Return the effect of few nodes in the place of many: fewer passes over memory, and at most no pauses."""
    from diagnose.replay.effects import effect_of_tasks

    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(float)
    share = finding.lost_ns * t.steps.num / max(float(length.sum()), 1.0)
    assumption = "Between half and all of what the nodes read and write beyond one pass goes, at most their pauses too."
    return effect_of_tasks(
        t, finding, finding.tasks, (0.5 * share * length, share * length), assumption, pauses_left=(1.0, 0.0)
    )


FUSED = Implementation(
    flag="fused",
    classes=FUSED_CLASSES,
    advised_for=lambda name: name in FUSED_CLASSES,
    launches=(8, 2),
    fewer_passes=(0.0, 2 / 3),
    on_device=(0.5, 1.0),
    on_cpu=(0.6, 1.0),
)
FOREACH = Implementation(
    flag="foreach",
    classes=FOREACH_CLASSES,
    advised_for=lambda name: name in FOREACH_CLASSES and name not in FUSED_CLASSES,
    launches=(40, 12),
    fewer_passes=(0.0, 0.0),
    on_device=(0.5, 1.0),
    on_cpu=None,
    serves_own=True,
)
CHANGES = (
    change_to(
        FUSED,
        optimizers.fused_optimizer,
        """Use the fused implementation of the optimizer.

What it does
    Passes `fused=True` to the optimizer. A few launches then update all tensors in one pass over memory.

What to watch
    Adam, AdamW, SGD and Adagrad have it, for floating-point parameters.
""",
    ),
    change_to(
        FOREACH,
        optimizers.foreach_optimizer,
        """Use the foreach implementation of the optimizer.

What it does
    Passes `foreach=True` to the optimizer. It then updates all tensors in a few launches. Use it on a GPU for
    optimizers without a fused implementation.

What to watch
    It needs memory for intermediate results of all tensors at once. On a CPU it makes steps slower.
""",
    ),
)
