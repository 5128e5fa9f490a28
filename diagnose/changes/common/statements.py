"""Changes that rewrite statements of the script, as the rule that found them has them written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from diagnose.changes.common.change import EditLoop, Proposal
from diagnose.model.locations import at_line, own_place
from diagnose.model.own_source import EditedStatement, shown

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts, Finding

STATEMENTS = EditLoop("with_statements", "statements", ())
BY_HAND = "the recording does not show all the code that it would change"


def of_statements(edits: object, **proposed: Any) -> Proposal:
    """Return how statements are rewritten; by hand, and in words alone, if no edits are known.

    Args:
        edits: `EditedStatement` objects.
        proposed: further fields of the `Proposal`.
    """
    known = tuple(each for each in edits if isinstance(each, EditedStatement)) if isinstance(edits, Iterable) else ()
    before, after = shown(known)
    arguments: Facts = {"statements": known} if known else {"by_hand": BY_HAND}
    return Proposal(before=before, after=after, arguments=arguments, **proposed)


def there(finding: Finding) -> str:
    """Return the place of a finding as the end of a title."""
    place = own_place(finding.where)
    return f" ({at_line(place)})" if place else ""
