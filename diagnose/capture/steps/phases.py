"""What a step's time goes into beside training: batches, evaluation, rollouts, checkpoints, what follows the update.

Nothing of it is marked in a script. It follows from a few events on the thread that steps:

- *loading*: from asking a DataLoader for a batch until it is there;
- *evaluation*: from ``module.eval()`` to ``module.train()`` without a backward pass between them, or several batches
  that a model gets without gradients before a step's first backward pass;
- *rollout*: where gradients are switched off several times before a step's first backward pass, without a DataLoader,
  all from the step's begin to the last of them: between two calls of a policy the environment is simulated;
- *inference*: the time with gradients off, once or a few times there: generation, a teacher, a target network, metrics;
  with a DataLoader only what comes after the request for the batch that it works on;
- *checkpoint*: in ``torch.save``, ``save_file`` of safetensors or ``save_pretrained``;
- *other*: from the optimizer's step to the first of these, where a DataLoader shows that the next step has begun:
  logging, metrics, schedules, moving averages of the weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias

from diagnose.capture.steps.hooks import Undo, replace_function, undo_all, when_imported
from diagnose.model.limits import MIN_REGIONS

# Hooks for what tells the phases of a run apart: gradients off, a module's mode, a checkpoint being written.
#
# Like those in `hooks`, each installs one hook and returns a function that removes it.

OnSwitch: TypeAlias = Callable[[bool], None]


def watch_gradients(off: OnSwitch) -> Undo:
    """Report what is computed without gradients, its begin and its end: ``torch.no_grad``, ``inference_mode``, draws.

    A sample of a distribution has no gradient, whether its class switches gradients off for it or not. Regions within
    ``no_grad`` are not reported, nor what an autograd function computes without gradients, nor compiled code.
    """
    import torch

    regions = [one for region in (torch.no_grad, torch.inference_mode) for one in _watch_region(region, off)]
    return undo_all([*regions, *_watch_draws(off)])


def _watch_region(region: type, off: OnSwitch) -> tuple[Undo, Undo]:
    import torch

    enabled = torch.is_grad_enabled

    def entering(enter: Any) -> Callable[[Any], Any]:
        def watched_enter(self: Any) -> Any:
            outermost = enabled()
            result = enter(self)
            if outermost and not enabled():
                off(True)
            return result

        return watched_enter

    def leaving(leave: Any) -> Callable[..., Any]:
        def watched_leave(self: Any, *error: Any) -> Any:
            inside = not enabled()
            result = leave(self, *error)
            if inside and enabled():
                off(False)
            return result

        return watched_leave

    return replace_function(region, "__enter__", entering), replace_function(region, "__exit__", leaving)


def _watch_draws(off: OnSwitch) -> list[Undo]:
    """Report samples that are drawn while gradients are on, and within one those that it is made of."""
    import torch
    from torch.distributions import Distribution

    def watched(sample: Any) -> Callable[..., Any]:
        def watched_sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return sample(self, *args, **kwargs)
            off(True)
            try:
                return sample(self, *args, **kwargs)
            finally:
                off(False)

        return watched_sample

    return [replace_function(cls, "sample", watched) for cls in _subclasses(Distribution) if "sample" in vars(cls)]


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def watch_modes(switched: OnSwitch) -> Undo:
    """Report each call of ``module.train()`` or ``module.eval()`` that changes a module's mode; its children follow."""
    from torch.nn import Module

    busy = False

    def watched(train: Any) -> Callable[..., Any]:
        def watched_train(self: Any, mode: bool = True) -> Any:  # torch's signature
            nonlocal busy
            if busy:
                return train(self, mode)
            busy, before = True, self.training
            try:
                result = train(self, mode)
            finally:
                busy = False
            if before != self.training:
                switched(self.training)
            return result

        return watched_train

    return replace_function(Module, "train", watched)


SAVERS = (  # module, class or "", function: what writes a checkpoint without torch.save, or takes long before it
    ("safetensors.torch", "", "save_file"),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("peft.peft_model", "PeftModel", "save_pretrained"),
    ("diffusers.models.modeling_utils", "ModelMixin", "save_pretrained"),
    ("diffusers.pipelines.pipeline_utils", "DiffusionPipeline", "save_pretrained"),
    ("huggingface_hub.hub_mixin", "ModelHubMixin", "save_pretrained"),
)


def watch_saves(saving: OnSwitch, saved: Callable[[object, int], None] = lambda _state, _ns: None) -> Undo:
    """Report begin and end of each ``torch.save``, ``save_file`` of safetensors and ``save_pretrained``.

    ``saved`` gets what ``torch.save`` was given and the time that it took, ns.

    A call within another one in the same thread belongs to that. Libraries that the script imports later are watched
    from then on.
    """
    import torch

    inside: set[int] = set()  # threads

    def watched(save: Any) -> Callable[..., Any]:
        def watched_save(*args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            if thread in inside:
                return save(*args, **kwargs)
            inside.add(thread)
            saving(True)
            began = time.perf_counter_ns()
            try:
                result = save(*args, **kwargs)
            finally:
                took_ns = time.perf_counter_ns() - began
                saving(False)
                inside.discard(thread)
            if save is torch_save and args:
                saved(args[0], took_ns)
            return result

        return watched_save

    torch_save = torch.save

    undo = [replace_function(torch, "save", watched)]

    def watch(module: str, cls: str, name: str) -> None:
        owner = getattr(sys.modules[module], cls, None) if cls else sys.modules[module]
        if hasattr(owner, name):
            undo.append(replace_function(owner, name, watched))

    undo.extend([when_imported(saver[0], partial(watch, *saver)) for saver in SAVERS])
    return undo_all(undo)


class PhaseTimes(NamedTuple):
    """One step's time in each phase, ns; the rest of the step is training. ``work`` is what it worked on."""

    loading: int = 0
    evaluation: int = 0
    rollout: int = 0
    inference: int = 0
    checkpoint: int = 0
    other: int = 0
    backwards: int = 0  # number of backward passes
    work: int = 0  # numbers in the batches delivered, or how often gradients were off where no batch was


# Of them, those that are times.
PHASES = tuple(name for name in PhaseTimes._fields if name not in ("backwards", "work"))


class _Step:
    """What was seen of the step that is under way; defaults are the class's, as one is made for each step."""

    loading = evaluation = checkpoint = 0
    before_backward = 0  # of these three, what came before the first backward pass
    regions = regions_ns = last_region_end = 0
    early_ns = 0  # in regions before the first request for a batch
    batches = batches_before = numbers = 0
    first_load = first_backward = backwards = 0

    def __init__(self, began: int) -> None:
        self.began = began

    def spend(self, phase: str, ns: int) -> None:
        """Add time to loading, evaluation or checkpoint."""
        setattr(self, phase, getattr(self, phase) + ns)
        if not self.first_backward:
            self.before_backward += ns


class Phases:
    """Takes the events of one thread; ``take`` returns what came since ``begin``."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._step = _Step(clock())
        self._eval_began = self._off_began = self._load_began = self._save_began = 0  # 0: not inside one

    def begin(self) -> None:
        """Begin a step now; a phase that is under way goes on in it."""
        now = self._clock()
        self._step = _Step(now)
        self._eval_began = now if self._eval_began else 0
        self._off_began = now if self._off_began else 0

    def forget(self) -> None:
        """Forget the phase that is under way: its end will not be reported."""
        self._eval_began = self._off_began = self._load_began = self._save_began = 0

    def mode(self, training: bool) -> None:
        """Take notice of a module's change of mode."""
        if training and self._eval_began:
            self._end_evaluation()
        elif not training:
            self._eval_began = self._eval_began or self._clock()

    def gradients_off(self, begins: bool) -> None:
        """Take notice of an interval without gradients, outside of any module's own forward pass."""
        now = self._clock()
        if begins:
            self._off_began = self._off_began or now  # a sample of a distribution may be made of others
        elif self._off_began:
            began, self._off_began = self._off_began, 0
            if not self._eval_began and not self._step.first_backward:
                self._step.regions += 1
                self._step.regions_ns += now - began
                self._step.early_ns += 0 if self._step.first_load else now - began
                self._step.last_region_end = now

    def loading(self, begins: bool) -> None:
        """Take notice of a wait for a batch."""
        now = self._clock()
        step = self._step
        if begins:
            self._load_began = now
            step.first_load = step.first_load or (0 if self._eval_began else now)
            return
        began, self._load_began = self._load_began, 0
        if began and not self._eval_began:
            step.spend("loading", now - began)

    def batch(self, numbers: int) -> None:
        """Take notice of a batch that was delivered and how many numbers it holds."""
        if not self._eval_began:
            self._step.batches += 1
            self._step.batches_before += not self._step.first_backward
            self._step.numbers += numbers

    def saving(self, begins: bool) -> None:
        """Take notice of a checkpoint that is being written."""
        now = self._clock()
        if begins:
            self._save_began = now
            return
        began, self._save_began = self._save_began, 0
        if began and not self._eval_began:
            self._step.spend("checkpoint", now - began)

    def backward(self) -> None:
        """Take notice of a backward pass: no module that is in its evaluation mode meanwhile is being evaluated."""
        self._step.first_backward = self._step.first_backward or self._clock()
        self._step.backwards += 1
        self._eval_began = 0

    def take(self) -> PhaseTimes:
        """Return the times of the step that is over."""
        if self._eval_began:
            self._end_evaluation()
            self._eval_began = self._clock()
        step = self._step
        other = 0  # from the step's begin to its first wait for a batch, what is in no other phase
        if step.backwards and _loads_first(step) and step.regions < MIN_REGIONS:
            other = max(0, step.first_load - step.began - step.evaluation - step.checkpoint)
        counted = step.backwards, step.numbers if step.batches else step.regions
        if not step.regions:  # nearly every step: nothing was computed without gradients
            return PhaseTimes(step.loading, step.evaluation, 0, 0, step.checkpoint, other, *counted)
        evaluation, rollout, inference = step.evaluation, 0, 0
        many = step.regions >= MIN_REGIONS
        spent = max(0, step.last_region_end - step.began - step.before_backward) if many else step.regions_ns
        if step.batches_before >= 4:
            evaluation += spent
        elif many:
            rollout = spent
        else:
            inference = spent - (step.early_ns if _loads_first(step) else 0)
        return PhaseTimes(step.loading, evaluation, rollout, inference, step.checkpoint, other, *counted)

    def _end_evaluation(self) -> None:
        self._step.spend("evaluation", self._clock() - self._eval_began)
        self._eval_began = 0


def _loads_first(step: _Step) -> bool:
    """Return whether a batch was asked for before the first backward pass: what came before followed the update."""
    return bool(step.first_load) and not (step.first_backward and step.first_load > step.first_backward)
