"""torch.compile has given up on a function.

What it looks for
    A function that reached the recompile limit, 8 versions unless the script sets another one.

Why it costs
    Calls that fit none of the versions run eagerly, after the guards of all of them were checked.

What to do
    A size that changes: mark the dimension as dynamic. A number that changes: pass it as a tensor. An object: make it
    once. The finding names the guard that failed.

How sure
    High: torch counts versions. What running eagerly costs is not known before it is tried.
"""

from __future__ import annotations

from diagnose.analyzers.common.compiled_graphs import said_of
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="recompile-limit",
    kind="state",
    order=65,
    host_order=65,
    changes=("stop-recompiling", "steady-guard"),
    is_avoidable=False,
)


def find(t: Tables) -> list[Finding]:
    """Name the functions."""
    those = [each for each in t.capture.known.compiled.versions if each.gave_up]
    if not those:
        return []
    texts, facts = said_of(those)
    where = tuple(line_at(t, each.file, each.line, each.function) for each in those)
    title = f"torch.compile has given up on {those[0].function}: calls that fit none of its versions run eagerly"
    return [
        Finding(META.id, title, 0.0, count=len(those), evidence=tuple(texts), where=where, facts=facts, is_stated=True)
    ]
