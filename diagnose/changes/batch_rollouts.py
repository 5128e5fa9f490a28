"""Run many environments, or requests, in one call of the model.

What it does
    Steps many environments and calls the policy once on all of them, without gradients; generation keeps a cache and
    takes several prompts at once.

What to watch
    What is collected comes from more environments, each for fewer steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


NUM_ENVIRONMENTS = 64
# Of the rollout, that a policy called once for many environments saves: at most all calls but one.
MIN_SAVED_SHARE, MAX_SAVED_SHARE = 0.2, 1 - 1 / NUM_ENVIRONMENTS
MAX_SAVED_BY_STORING = 0.95  # of a model without gradients: its outputs are read or computed for some inputs

_ROLLOUT = f"""envs = gymnasium.make_vec(name, num_envs={NUM_ENVIRONMENTS}, vectorization_mode="async")   # in processes
observations, _ = envs.reset()
with torch.inference_mode():            # in each step: one call for all of them
    actions = policy(torch.as_tensor(observations, device=device))
observations, rewards, *_ = envs.step(actions.cpu().numpy())
# generation: several prompts in one call, use_cache=True"""
_INFERENCE = """with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
    targets = teacher(x)                # one call for the whole batch, no graph
# a teacher or an encoder that does not change: compute its outputs once and store them beside the samples"""


def _applies(_program: Program, finding: Finding) -> str:
    from diagnose.analyzers import rollout_bound

    is_rollout = finding.facts.get("phase") == "rollout" or finding.rule == rollout_bound.META.id
    return "" if is_rollout else "the long steps collect no data with the model"


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    is_rollout = finding.facts.get("phase") != "inference"
    return Advice(
        title="Step many environments at once and call the model on all of them"
        if is_rollout
        else "Run the model without gradients in one call, or store its outputs",
        before=(place.code or "") if place else "",
        after=_ROLLOUT if is_rollout else _INFERENCE,
        least=MIN_SAVED_SHARE if is_rollout else 0.0,
        most=MAX_SAVED_SHARE if is_rollout else MAX_SAVED_BY_STORING,
        needs="environments or requests that do not depend on each other"
        if is_rollout
        else "several calls a step, or inputs that come again: one call of inputs that are always new saves nothing",
    )


CHANGE = Change(
    id="batch-rollouts",
    title="Step many environments at once and call the model on all of them",
    numerics=other_training("what is collected comes from more environments"),
    patch=ByHand("what the model is called on is the script's own"),
    edit=ByHand("what the model is called on is the script's own"),
    advice=_advice,
    applies=_applies,
    without_remedy="how a script collects data is its own",
)
