"""Compute in float32 instead of float64.

What it does
    Makes float32 at the place that makes the values: the line of a buffer, an array or a dataset. This halves the
    bytes.

What to watch
    Solvers and long sums may need float64.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diagnose.changes.common.call_arguments import Expression, parsed_call, set_arguments
from diagnose.changes.common.call_edits import EditedCall, call_of, text_of
from diagnose.changes.common.change import Change, Proposal, reduced
from diagnose.model.limits import MAX_NAMED
from diagnose.model.locations import at_line, own_place
from diagnose.model.own_source import parsed_statement, with_parts

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_PARAMETERS = {  # of NumPy's functions that make arrays
    **dict.fromkeys(("zeros", "ones", "empty"), ("shape", "dtype")),
    **dict.fromkeys(("array", "asarray"), ("object", "dtype")),
    "full": ("shape", "fill_value", "dtype"),
}
_TAKES_OVER = frozenset({"torch.from_numpy", "torch.as_tensor", "torch.tensor"})
_NARROW = {"float64": "float32", "double": "float32", "complex128": "complex64"}


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    place, names = own_place(finding.where), finding.facts.get("names")
    at = f" ({at_line(place)})" if place else ""
    title = f"Compute in float32 instead of float64{at}"
    edit = _edit(finding)
    text = (place.code or "") if place else ""
    after = "" if edit is not None or finding.facts.get("made") else narrowed(text)
    if edit is None and not after and isinstance(names, list | tuple) and names:
        more = " and others" if len(names) > MAX_NAMED else ""
        title = f"Make {', '.join(map(str, names[:MAX_NAMED]))}{more} float32: call float() at their source"
    return Proposal(
        title=title,
        before=text if after else "",
        after=after,
        edits=(edit,) if edit is not None else (),
        least=0.5,
        needs="results that need no more than 7 digits",
    )


def _edit(finding: Finding) -> EditedCall | None:
    """Return the user's expression that makes what comes in, in float32; None where it is not known."""
    call = call_of(finding.facts.get("made"))
    text = text_of(call) if call is not None else ""
    if call is None or not text:
        return None
    if finding.facts.get("is_tensor"):
        return EditedCall(call, f"{_whole(text)}.float()")
    made = parsed_call(text)
    name = ast.unparse(made.func) if made is not None else ""
    numpy, _, function = name.partition(".")
    parameters = _PARAMETERS.get(function, ()) if numpy in ("np", "numpy") else ()
    if not parameters:
        return EditedCall(call, f'{_whole(text)}.astype("float32")')
    after, why = set_arguments(text, {"dtype": Expression(f"{numpy}.float32")}, parameters=parameters)
    return None if why else EditedCall(call, after)


def _whole(text: str) -> str:
    """Return an expression that a method can be called of."""
    node = ast.parse(f"({text})", mode="eval").body
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call) else f"({text})"


def narrowed(text: str) -> str:
    """Return a statement that makes float32 where it asks for float64 or takes arrays over; "" if it does not."""
    node = parsed_statement(text)
    parts = list(_narrower(text, node)) if node is not None else []
    taken_over = [part for part, _ in parts if isinstance(part, ast.Call) and ast.unparse(part.func) in _TAKES_OVER]
    return with_parts(text, parts) if parts and len(taken_over) < 2 else ""  # which of them is wide is not known


def _narrower(text: str, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.Attribute) and node.attr in _NARROW and ast.unparse(node.value) in ("torch", "np", "numpy"):
        yield node, f"{ast.unparse(node.value)}.{_NARROW[node.attr]}"
        return
    if isinstance(node, ast.Constant) and node.value == "float64":
        yield node, '"float32"'
    if isinstance(node, ast.Call):
        called = ast.get_source_segment(text, node) or ""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "double" and not node.args:
            yield node, f"{ast.get_source_segment(text, node.func.value)}.float()"
            return
        if ast.unparse(node.func) in _TAKES_OVER and not node.keywords:
            yield node, f"{called}.float()"
            return
    for child in ast.iter_child_nodes(node):
        yield from _narrower(text, child)


CHANGE = Change(
    id="single-precision",
    title="Compute in float32 instead of float64",
    numerics=reduced("numbers keep 7 digits instead of 16; compare the loss curve"),
    proposal=_proposal,
    applies=lambda _, finding: finding.facts.get("kind") != "float32",  # between 16-bit ends
    edits_expressions=True,
)
