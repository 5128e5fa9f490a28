"""Patch of torch.save: files are written by a background thread."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo, replace_attribute

__all__ = ["save_in_background"]


def save_in_background(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let `torch.save` to a path copy to the host and write on a thread; what is undone waits for the files."""
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

    undo_save = replace_attribute(torch, "save", save)

    def undo() -> None:
        undo_save()
        saver.close()

    return undo
