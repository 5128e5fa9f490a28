"""Which rank this process is, and an id that all ranks of one run share."""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from typing import Any

from diagnose.errors import UsageError
from diagnose.model.launched import JOB_VARIABLES, launched

__all__ = ["agree_on_run_id", "rank_and_size", "ranks_on_this_node"]

STORE_KEY = "diagnose/run_id"


def rank_and_size() -> tuple[int, int]:
    """Return rank and number of ranks: torch.distributed's once it is up, what the launcher set before that."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank()), int(distributed.get_world_size())
    try:
        found = launched()
    except UsageError:
        return 0, 1
    return found.rank, found.world_size


def ranks_on_this_node(num_ranks: int) -> int:
    """Return how many of the ranks run on this machine: all of them, where no launcher states it."""
    try:
        found = launched()
    except UsageError:
        return num_ranks
    return found.on_this_node if found.world_size > 1 else num_ranks


def agree_on_run_id() -> str:
    """Return the same text in every rank of a run.

    The ranks' store takes the first proposal; it answers at once and waits for no other rank. Without it the
    launcher's variables must do.
    """
    distributed = _distributed()
    if distributed is not None:
        try:
            store = distributed.distributed_c10d._get_default_store()
            return str(store.compare_set(STORE_KEY, "", uuid.uuid4().hex).decode())
        except (RuntimeError, ValueError, AttributeError):
            pass
    known = [os.environ.get(name, "") for name in JOB_VARIABLES]
    return hashlib.sha256("|".join(known).encode()).hexdigest()[:32] if any(known) else uuid.uuid4().hex


def _distributed() -> Any:  # the module torch.distributed, if it is loaded and initialised
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None
