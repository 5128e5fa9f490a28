"""What a change advises where a line goes through a list or a deque each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line
from diagnose.model.locations import Where

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts

__all__ = ["lookup_code", "lookup_of"]


def lookup_of(facts: Facts) -> Mapping[str, object]:
    """Return what a finding's line goes through, empty where nothing is known."""
    found = facts.get("lookup")
    return found if isinstance(found, Mapping) else {}


def lookup_code(facts: Facts) -> str:
    """Return the lines that find the same at once: in a set or in a list, "" where no line goes through anything."""
    lookup = lookup_of(facts)
    if not lookup:
        return ""
    name = str(lookup["name"])
    at = at_line(Where(str(lookup["file"]), int(str(lookup["built"]))))
    if lookup.get("indexed"):
        return (
            f"# {at} makes {name} a deque: an index walks to it from an end; of a list or an array it takes no time\n"
            f"{name} = []   # and once it is full, the oldest is written over: {name}[end % capacity] = item"
        )
    other = f"{name}_{'SET' if name.isupper() else 'set'}"
    return f"{other} = set({name})   # once, below {at}, which builds a list; then look up in {other}"
