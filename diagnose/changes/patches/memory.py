"""Patches of memory: recomputation of repeated blocks, scheduled garbage collection, memory format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo
from diagnose.changes.patches.top_module import around_top_module, once_for_top_module

__all__ = ["channels_last", "checkpoint_blocks", "schedule_gc"]

MIN_BLOCKS = 2  # fewer of a kind in a list are no repeated blocks


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

    undo_hook = once_for_top_module(act)

    def undo() -> None:
        undo_hook()
        for one in undo_blocks:
            one()

    return undo


def _repeated(module: Any) -> list[Any]:  # a Module
    from torch.nn import ModuleList, Sequential

    for inner in module.modules():
        if isinstance(inner, ModuleList | Sequential):
            blocks = [block for block in inner if any(True for _ in block.children())]
            if len(blocks) >= MIN_BLOCKS and len({type(block) for block in blocks}) == 1:
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
    """Keep the model and its four-dimensional inputs in channels-last memory format."""
    import torch
    from torch.utils._pytree import tree_map

    converted: dict[int, bool] = {}
    modules: list[Any] = []

    def begins(module: Any, args: tuple[Any, ...]) -> Any:  # a Module
        if id(module) not in converted:
            converted[id(module)] = any(isinstance(inner, torch.nn.Conv2d) for inner in module.modules())
            if converted[id(module)]:
                module.to(memory_format=torch.channels_last)
                modules.append(module)
                log.did(f"{type(module).__name__} and its inputs in channels_last")
            else:
                log.left(f"{type(module).__name__}, which has no Conv2d")
        return tree_map(convert, args) if converted[id(module)] else None

    def convert(leaf: Any) -> Any:  # a leaf
        image = isinstance(leaf, torch.Tensor) and leaf.dim() == 4  # batch, channels, two sides
        return leaf.contiguous(memory_format=torch.channels_last) if image else leaf

    undo_hooks = around_top_module(begins, lambda output: output)

    def undo() -> None:
        undo_hooks()
        for module in modules:
            module.to(memory_format=torch.contiguous_format)

    return undo
