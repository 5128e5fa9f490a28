"""Compares gradient hooks in real training: time, bytes, loss.

What it cures
    `exposed-communication`, by the hook that is measured to be fastest among those that keep the loss.

When it does not help
    A drift that shows after thousands of steps only: keep an eye on the loss, and give it more steps.

Cost
    ``steps`` training steps for each hook and for plain DDP, once; a copy of the model's and the optimizer's state
    meanwhile.

Numerics
    Nothing is left changed. A hook qualifies if the mean loss of its last quarter of steps is at most ``tolerance``
    above plain DDP's, relative to it.

Example::

    from diagnose.kernels.distributed.hook_trials import try_hooks

    def make_step(ddp):
        def train_step(batch):
            x, y = batch
            loss = criterion(ddp(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return train_step

    hooks = {"bf16": {}, "power_sgd": {"rank": 2, "warm_up": 4}}
    choice = try_hooks(model, make_step, loader, hooks, state=[optimizer], steps=8)
    log(choice)  # hook, step, bytes, loss against plain
    if choice.best != "plain":
        hook = choice.install(DistributedDataParallel(model))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels._state import Stateful, unchanged
from diagnose.kernels.distributed._agreement import check_alike, whole_group
from diagnose.kernels.distributed._trials import MakeStep, in_ddp, of_all_ranks, timed_steps
from diagnose.kernels.distributed.comm_hooks import CommHook, comm_hook, install

__all__ = ["HookChoice", "HookTrial", "try_hooks"]

TOLERANCE = 0.01  # of plain DDP's loss
MIN_GAIN_SHARE = 0.02  # of the step: less than runs differ from each other
LAST = 4  # the last quarter is compared: at first every hook is near


@dataclass(frozen=True)
class HookTrial:
    """One hook: milliseconds of a step on the slowest rank, bytes that a rank sends in it, losses over all ranks."""

    name: str
    step_ms: float
    sent_bytes: int
    losses: tuple[float, ...]

    @property
    def last_loss(self) -> float:
        """Return the mean of the last quarter of steps."""
        return fmean(self.losses[-max(1, len(self.losses) // LAST) :])


@dataclass(frozen=True)
class HookChoice:
    """The hook to use, and what was measured; plain DDP comes first."""

    best: str
    options: Mapping[str, Any]
    trials: tuple[HookTrial, ...]

    def drift(self, trial: HookTrial) -> float:
        """Return how far a hook's last loss is above plain DDP's, relative; negative below."""
        plain = self.trials[0].last_loss
        return (trial.last_loss - plain) / max(abs(plain), 1e-12)

    def install(self, ddp: DistributedDataParallel) -> CommHook:
        """Install the best hook; errors are those of ``comm_hooks.install``."""
        return install(ddp, self.best, **self.options)

    def __str__(self) -> str:
        return "\n".join(
            f"{t.name:12} {t.step_ms:9.2f} ms  {t.sent_bytes / 1e6:9.3f} MB  loss {self.drift(t):+.2%}"
            + ("  ← chosen" if t.name == self.best else "")
            for t in self.trials
        )


def try_hooks(  # what a trial needs
    module: nn.Module,
    make_step: MakeStep,
    batches: Iterable[Any],
    hooks: Mapping[str, Mapping[str, Any]],
    *,
    state: Sequence[Stateful] = (),
    steps: int = 50,
    tolerance: float = TOLERANCE,
    **ddp_arguments: Any,  # DDP's own
) -> HookChoice:
    """Train ``steps`` steps with plain DDP and with each hook, from the same state; all ranks get the same answer.

    ``hooks`` maps names to options. ``make_step`` gets the model in DDP and returns what takes a batch, trains on it
    and returns its loss; optimizers that it uses are listed in ``state``. Warm-ups should end well before ``steps``.

    Raises:
        ValueError: ``steps`` is less than one, there is no batch, or ranks were given different hooks or steps.
        TypeError: the step returned no loss.
        RuntimeError: there is no process group, or the model in DDP is kept elsewhere.
    """
    group = whole_group(ddp_arguments.get("process_group"))
    if steps < 1:
        raise ValueError(f"try_hooks needs steps >= 1, not {steps}.")
    for name, options in hooks.items():
        comm_hook(name, **options)  # wrong names and options before anything runs
    with unchanged():
        first = list(islice(batches, steps))
    check_alike(
        "hooks, steps or numbers of batches", ({n: repr(o) for n, o in hooks.items()}, steps, len(first)), group
    )
    if not first:
        raise ValueError("try_hooks got no batch to train on.")
    trials = []
    for name, options in {"plain": {}, **hooks}.items():
        with unchanged(module, *state):
            trials.append(_trial(name, options, (module, make_step, first, steps, group), ddp_arguments))
    plain = trials[0]
    choice = HookChoice("plain", {}, tuple(trials))
    good = [t for t in trials if choice.drift(t) <= tolerance and t.step_ms < (1 - MIN_GAIN_SHARE) * plain.step_ms]
    if not good:
        return choice
    best = min(good, key=lambda t: t.step_ms).name
    return HookChoice(best, hooks[best], tuple(trials))


def _trial(
    name: str,
    options: Mapping[str, Any],
    what: tuple[nn.Module, MakeStep, Sequence[Any], int, dist.ProcessGroup],
    ddp_arguments: dict[str, Any],
) -> HookTrial:
    module, make_step, batches, steps, group = what
    device = next(module.parameters()).device

    def run(ddp: DistributedDataParallel, step: Any) -> tuple[list[float], list[float], int]:
        hook = install(ddp, name, **options)
        times, results = timed_steps(step, batches, steps, device)
        if any(result is None for result in results):
            raise TypeError("try_hooks needs a step that returns its loss; it returned None.")
        return times, [float(r) for r in results], hook.sent_bytes // steps

    times, losses, sent = in_ddp(module, make_step, run, ddp_arguments)
    slowest = of_all_ranks(times, dist.ReduceOp.MAX, group, device)
    sums = of_all_ranks(losses, dist.ReduceOp.SUM, group, device)
    return HookTrial(name, median(slowest[len(slowest) // 2 :]), sent, tuple(s / group.size() for s in sums))
