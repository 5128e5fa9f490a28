"""Change nothing: the control of a trial.

What it does
    Changes nothing. A trial of it shows how large a difference your machine shows without any change.

What to watch
    If it shows a gain, use a quieter machine or a larger `--budget`.
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
