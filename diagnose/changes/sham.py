"""Change nothing: the control of a trial.

What it does
    Nothing. A trial of it shows what `diagnose prove` calls a gain where there is none.

What to watch
    No rule prescribes it; it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.change import Change, Log, Patch, Undo, identical


def _install(log: Log, _options: Mapping[str, Any]) -> Undo:
    log.did("nothing, on purpose")
    return lambda: None


CHANGE = Change(
    id="sham",
    title="Change nothing (a control)",
    numerics=identical(),
    patch=Patch(_install),
)
