"""Patch of torch.save: files are written by a background thread."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo, replace_attribute

__all__ = ["save_in_background"]


def save_in_background(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let `torch.save` to a path copy to the host and write on a thread; what uses the files waits for them."""
    import torch

    from diagnose.kernels.saving import BackgroundSaver

    original, saver = torch.save, BackgroundSaver()

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:  # torch's names
        if args or kwargs or not isinstance(f, str | os.PathLike):
            log.left("a torch.save to an open file, or with options")
            original(obj, f, *args, **kwargs)
            return
        saver.save(obj, f)
        log.did("torch.save: the file is written by a background thread")

    def waiting(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | os.PathLike):
                saver.wait(path)
            return function(path, *args, **kwargs)

        return call

    undo_all = [replace_attribute(torch, "save", save)]
    undo_all += [replace_attribute(owner, name, waiting(getattr(owner, name))) for owner, name in _users_of_files()]

    def undo() -> None:
        for undo_one in undo_all:
            undo_one()
        saver.close()

    return undo


def _users_of_files() -> list[tuple[Any, str]]:  # modules
    """Return the functions whose first argument may be a checkpoint that is still to be written."""
    import shutil

    import torch

    return [
        (torch, "load"),
        (os, "rename"),
        (os, "replace"),
        *((shutil, name) for name in ("copyfile", "move", "rmtree")),
    ]
