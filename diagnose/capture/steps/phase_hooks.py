"""Hooks for what tells the phases of a run apart: gradients off, a module's mode, a checkpoint being written.

Like those in `hooks`, each installs one hook and returns a function that removes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias

from diagnose.capture.steps.import_hooks import when_imported
from diagnose.capture.steps.replacing import Undo, replace_function

__all__ = ["watch_gradients", "watch_modes", "watch_saves"]

OnSwitch: TypeAlias = Callable[[bool], None]


def watch_gradients(off: OnSwitch) -> Undo:
    """Report what is computed without gradients, its begin and its end: ``torch.no_grad``, ``inference_mode``, draws.

    A sample of a distribution has no gradient, whether its class switches gradients off for it or not. Regions within
    ``no_grad`` are not reported, nor what an autograd function computes without gradients, nor compiled code.
    """
    import torch

    undo = [one for region in (torch.no_grad, torch.inference_mode) for one in _watch_region(region, off)]
    undo += _watch_draws(off)

    def end() -> None:
        for one in reversed(undo):
            one()

    return end


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


def watch_modes(switched: Callable[[Any, bool], None]) -> Undo:
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
                switched(self, self.training)
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


def watch_saves(saving: OnSwitch) -> Undo:
    """Report begin and end of each ``torch.save``, ``save_file`` of safetensors and ``save_pretrained``.

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
            try:
                return save(*args, **kwargs)
            finally:
                saving(False)
                inside.discard(thread)

        return watched_save

    undo = [replace_function(torch, "save", watched)]

    def watch(module: str, cls: str, name: str) -> None:
        owner = getattr(sys.modules[module], cls, None) if cls else sys.modules[module]
        if hasattr(owner, name):
            undo.append(replace_function(owner, name, watched))

    undo.extend([when_imported(saver[0], partial(watch, *saver)) for saver in SAVERS])

    def end() -> None:
        for one in reversed(undo):
            one()

    return end
