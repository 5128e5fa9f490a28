"""Patches of memory: recomputation and offload, gradients set to None, garbage collection, memory format."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.change import Log, Undo, replace_attribute, undo_all
from diagnose.changes.patches.top_module import around_top_module, once_for_top_module

__all__ = [
    "LAUNCH_BLOCKING",
    "channels_last",
    "checkpoint_blocks",
    "keep_cached_memory",
    "no_debug_checks",
    "no_fills",
    "offload_activations",
    "offload_optimizer",
    "schedule_gc",
]

# Patches that turn off what is meant for finding bugs.

LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"  # read when the device is first used


def no_debug_checks(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Keep anomaly detection off, whatever the script asks for, and let launches return at once."""
    import torch

    real, was_on, was_checking = (
        torch.set_anomaly_enabled,
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )

    def stay_off(mode: bool, check_nan: bool = True) -> None:  # torch's own signature
        real(False, check_nan)
        if mode:
            log.did("torch.autograd.set_detect_anomaly(False)")

    blocking = os.environ.pop(LAUNCH_BLOCKING, None)
    if blocking not in (None, "", "0"):
        log.did(f"{LAUNCH_BLOCKING} is not set")
    if was_on:
        stay_off(True)
    put_back = replace_attribute(torch, "set_anomaly_enabled", stay_off)

    def undo() -> None:
        if blocking is not None:
            os.environ[LAUNCH_BLOCKING] = blocking
        put_back()
        real(was_on, was_checking)

    return undo


def checkpoint_blocks(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Recompute the blocks of every ModuleList and Sequential of alike modules in the backward pass."""
    undo_blocks: list[Undo] = []

    def act(module: Any, args: tuple[Any, ...]) -> None:  # a Module and its arguments
        from diagnose.kernels import checkpointing

        blocks = _repeated(module)
        names = [name for name, inner in module.named_modules() if any(inner is block for block in blocks)]
        if not names:
            log.left("a model without repeated blocks in a ModuleList or Sequential")
            return
        try:
            undo_blocks.append(checkpointing.checkpoint_blocks(module, blocks=names).undo)
        except ValueError as error:
            log.left(str(error))
        else:
            log.did(f"{len(names)} blocks of {type(blocks[0]).__name__} are recomputed in the backward pass")

    return undo_all((once_for_top_module(act), undo_all(undo_blocks)))


def _repeated(module: Any) -> list[Any]:  # a Module
    from torch.nn import ModuleList, Sequential

    for inner in module.modules():
        if isinstance(inner, ModuleList | Sequential):
            blocks = [block for block in inner if any(True for _ in block.children())]
            # Fewer of a kind in a list are no repeated blocks.
            if len(blocks) >= 2 and len({type(block) for block in blocks}) == 1:
                return blocks
    return []


def schedule_gc(log: Log, options: Mapping[str, Any]) -> Undo:
    """Freeze what lives after the warm-up, switch automatic collection off and collect every hundred steps."""
    from contextlib import ExitStack

    from torch.optim.optimizer import register_optimizer_step_post_hook

    from diagnose.kernels.gc_schedule import scheduled_gc

    stack = ExitStack()
    every = int(options.get("every") or 100)
    collector = stack.enter_context(scheduled_gc(every=every))

    def stepped(optimizer: object, args: object, kwargs: object) -> None:  # torch's signature
        collector.step()

    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]  # a function takes attributes
    handle = register_optimizer_step_post_hook(stepped)
    log.did(f"garbage is collected every {every} steps; what lives after the warm-up is frozen")

    def undo() -> None:
        handle.remove()
        stack.close()

    return undo


def channels_last(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Keep the convolutions of each outermost module, and the images that it is given, in channels-last format."""
    from torch import Tensor
    from torch.utils._pytree import tree_map

    from diagnose.kernels.layout import channels_last, in_channels_last

    reports: dict[int, Any] = {}  # by outermost module; None where there is nothing to convert

    def begins(module: Any, args: tuple[Any, ...]) -> Any:  # a Module
        if id(module) not in reports:
            reports[id(module)] = None
            try:
                reports[id(module)] = report = channels_last(module)  # its hook takes named inputs too
            except ValueError as error:
                if next(module.parameters(), None) is not None:  # else it is a criterion or a transform
                    log.left(str(error))
            else:
                log.did(f"{len(report.converted)} convolutions of {type(module).__name__}, and its inputs")
        return None if reports[id(module)] is None else tree_map(convert, args)  # of the first call too

    def convert(leaf: Any) -> Any:
        return in_channels_last(leaf) if isinstance(leaf, Tensor) else leaf

    undo_hooks = around_top_module(begins, lambda output: output)

    def undo() -> None:
        undo_hooks()
        for report in reports.values():
            if report is not None:
                report.undo()

    return undo


def offload_activations(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Keep what the outermost module's forward saves for the backward pass in host memory."""
    from diagnose.kernels.offload import ActivationOffload

    offload = ActivationOffload()

    def begins(module: Any, args: tuple[Any, ...]) -> None:  # a Module and its arguments
        offload.__enter__()
        log.did(f"{type(module).__name__}: activations go to the host until the backward pass")

    def ends(output: Any) -> Any:  # whatever the module returns
        offload.__exit__(None, None, None)
        return output

    return around_top_module(begins, ends)


def offload_optimizer(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Keep the state of every optimizer that is made in host memory between steps."""
    from torch.optim import Optimizer

    from diagnose.kernels.offload import offload_optimizer_state

    original = Optimizer.__init__
    undo_each: list[Undo] = []

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
        original(self, *args, **kwargs)
        undo_each.append(offload_optimizer_state(self).undo)
        log.did(f"{type(self).__name__}: its state is on the host between steps")

    return undo_all((replace_attribute(Optimizer, "__init__", made), undo_all(undo_each)))


def no_fills(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let every `zero_grad` of an optimizer or a module set gradients to None."""
    from torch.nn import Module
    from torch.optim import Optimizer

    undo_each = [_sets_to_none(owner, log) for owner in (Optimizer, Module)]

    return undo_all(undo_each)


def _sets_to_none(owner: Any, log: Log) -> Undo:  # a class with zero_grad
    original = owner.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:  # torch's signature
        if not set_to_none:
            log.did(f"{type(self).__name__}.zero_grad(set_to_none=True)")
        original(self, set_to_none=True)

    return replace_attribute(owner, "zero_grad", zero_grad)


def keep_cached_memory(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let torch.cuda.empty_cache do nothing."""
    import torch

    def kept() -> None:
        log.did("torch.cuda.empty_cache() does nothing")

    return replace_attribute(torch.cuda, "empty_cache", kept)
