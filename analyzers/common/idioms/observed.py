"""What spares a call that goes through much each time, as it was observed: what it needs is made once."""

from __future__ import annotations

import ast

from diagnose.analyzers.common.idioms.host_calls import MIN_SPARED, GoneThrough
from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, names_in, same
from diagnose.model.own_source import EditedStatement

__all__ = ["observed_idiom"]


def observed_idiom(source: Source | None, found: GoneThrough) -> Idiom:
    """Return what makes the call cheap, with edits if the source shows all that they would change."""
    if found.idiom is not None:
        return found.idiom
    name, called, condition = found.operand.text, ast.unparse(found.node), _stays(found)
    edits: tuple[EditedStatement, ...] = ()
    match found.way:
        case "sort":
            title, needs = f"Sort {name} once, and look the values up in it", "a sorted copy of it"
            edits = _searched(source, found)
        case "file":
            title, needs = f"Read the arrays of {name} once and keep them", "memory for the arrays, in each worker too"
            edits, condition = _in_memory(source, found), "if nothing writes into the arrays"
        case "lookup":
            title = f"Keep a set or a dict of {name}, and look up in it instead of going through all of it"
            needs = "items that can be hashed"
        case "rows":
            title = f"Group {name} by its values once, and take each group by its value"
            needs = "the places of the rows of each value, kept"
        case "weights":
            title, needs = "Add up the weights once, and look each draw up", "8 bytes for each weight"
        case "row":
            table = name.removesuffix(".iloc").removesuffix(".loc")
            title = f"Keep the columns of {table} as arrays instead of taking rows of pandas"
            needs = "memory for the arrays"
        case "copy":
            title, needs = f"Keep one copy of {name}, and copy its values into it", "a copy that is not held elsewhere"
        case "result" if found.operand.same or found.operand.same_in_step:
            title, needs = f"Keep the result of {called} instead of computing it again", ""
            edits = _kept(source, found) if isinstance(found.node, ast.Call) else ()
        case _:
            title = f"Keep the result of {called} up to date when {name} changes, instead of going through all of it"
            condition, needs = "", f"an update wherever {name} is written"
    return Idiom(title, edits, condition, needs, least=MIN_SPARED)


def _stays(found: GoneThrough) -> str:
    name = found.operand.text
    return f"if {name} stays the same" if found.operand.same else f"if it is made again when {name} changes"


def _same_calls(source: Source, found: GoneThrough) -> list[tuple[ast.stmt, list[ast.expr]]]:
    """Return the statements of a function that have such an expression, those with a body for their head's sake."""
    function, given = _function(found.node), found.operand.text
    statements = []
    for statement in ast.walk(source.around):
        if isinstance(statement, ast.stmt):
            parts = [part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.expr)]
            nodes = [each for part in parts for each in ast.walk(part) if isinstance(each, ast.expr)]
            mine = [each for each in nodes if _function(each) == function and _is_given(each, given)]
            if mine:
                statements.append((statement, mine))
    return statements


def _function(node: ast.AST) -> str:
    match node:
        case ast.Call(func=function):
            return ast.unparse(function)
        case ast.Subscript(value=held, ctx=ast.Load()):
            return f"{ast.unparse(held)}[]"
    return ""


def _is_given(node: ast.expr, operand: str) -> bool:
    match node:
        case ast.Call(args=args):
            return len(args) == 2 and ast.unparse(args[1]) == operand
    return isinstance(node, ast.Subscript)


def _kept_name(name: str, ending: str) -> str:
    return f"{name}_{ending}" if name.replace(".", "").isidentifier() else ""


def _searched(source: Source | None, found: GoneThrough) -> tuple[EditedStatement, ...]:
    """Return a search in a sorted copy in the place of ``np.isin(values, operand)``."""
    name = found.operand.text
    kept = _kept_name(name, "sorted")
    match found.node:
        case ast.Call(func=function, args=[_, _], keywords=[]) if last_name(function) in ("isin", "in1d"):
            is_plain = bool(kept) and found.operand.same
        case _:
            is_plain = False
    if source is None or not is_plain:
        return ()
    value = ast.parse(name, mode="eval").body
    once = source.once(value, f"{kept} = np.unique({name})") if source.changes(value) is False else ()
    if not once:
        return ()
    edits = []
    for statement, calls in _same_calls(source, found):
        by: dict[ast.AST, str] = {}
        for call in calls:
            assert isinstance(call, ast.Call)
            values = source.now({}, call.args[0])
            again = values if isinstance(call.args[0], ast.Name) else "wanted"
            asked = values if again == values else f"wanted := {values}"  # the search comes first
            by[call] = f"({kept}[np.searchsorted({kept}, ({asked})).clip(max=len({kept}) - 1)] == {again})"
        edits.append(source.edited(by, statement))
    return (*once, *edits)


def _in_memory(source: Source | None, found: GoneThrough) -> tuple[EditedStatement, ...]:
    """Return the arrays of a file of NumPy's, read once where it is opened."""
    name = found.operand.text
    kept = _kept_name(name, "arrays")
    if source is None or not kept:
        return ()
    value = ast.parse(name, mode="eval").body
    once = source.once(value, f"{kept} = dict({name})") if source.changes(value) is False else ()
    edits = [source.edited({each: f"{kept}[{source.now({}, each.slice)}]" for each in nodes
                            if isinstance(each, ast.Subscript)}, statement)
             for statement, nodes in _same_calls(source, found)]  # fmt: skip
    return (*once, *edits) if once else ()


def _kept(source: Source | None, found: GoneThrough) -> tuple[EditedStatement, ...]:
    """Return a call that is made once, where what it is given gets its value."""
    if source is None or not found.operand.same:
        return ()
    call = next((each for each in source.own() if same(each, found.node)), None)
    if not isinstance(call, ast.expr) or source.changes(call) is not False:
        return ()
    is_own = any(name.startswith("self.") for name in names_in(call))
    function = getattr(found.node, "func", found.node)
    kept = f"{'self.' if is_own else ''}kept_{last_name(function)}"
    once = source.once(call, f"{kept} = {source.now({}, call)}")
    return (*once, source.edited({call: kept})) if once else ()
