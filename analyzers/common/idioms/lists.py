"""Lists that are cut at their front, or searched from it, again and again."""

from __future__ import annotations

import ast

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, replaced, same
from diagnose.model.assignments import name_of

__all__ = ["cut_front", "searched_list"]

MAX_SHOWN_LINES = 12  # of a loop that is printed as a whole
_VIEWS = ("array", "tensor", "dict", "deque", "set", "frame")  # a slice copies nothing, or means something else
MIN_CUT, MIN_FOUND = 0.8, 0.7


def cut_front(source: Source) -> Idiom | None:
    """Return a position or a deque in the place of a list whose front is taken off, which moves all that is left."""
    popped = next((call for call in source.calls() if _is_pop(call)), None)
    if popped is not None:
        assert isinstance(popped.func, ast.Attribute)
        return _popped(source, popped, popped.func.value)
    cut = _cut(source.statement)
    if cut is None or source.kind(cut[0]) in _VIEWS:
        return None
    held, num = cut
    name, taken = ast.unparse(held), ast.unparse(num)
    at = "self.begin" if name.startswith("self.") else "begin"
    moved = [f"{at} += {taken}", f"if 2 * {at} > len({name}):"]
    moved += [f"    del {name}[:{at}]", f"    {at} = 0"]
    loop = source.loop() or source.around
    shown = _shown(source, loop, name, at, moved)
    after = f"{at} = 0   # before the loop: how much of {name} is used up; now and then that much is cut off\n{shown}"
    if source.kind(held) == "str":
        after = after.replace(f"del {name}[:{at}]", f"{name} = {name}[{at}:]")
    title = f"Move a position through {name} instead of cutting its front off"
    needs = f"every other use of {name} to begin at {at}, and no other name for the same list"
    return Idiom(title, ast.unparse(source.statement), after, "", needs, least=MIN_CUT)


def _is_pop(call: ast.Call) -> bool:
    return last_name(call.func) == "pop" and len(call.args) == 1 and same(call.args[0], ast.Constant(0))


def _cut(statement: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """Return the list and how many of its items a statement takes off its front."""
    match statement:
        case ast.Assign(
            targets=[target],
            value=ast.Subscript(value=held, slice=ast.Slice(lower=ast.expr() as num, upper=None, step=None)),
        ):
            return (held, num) if same(target, held) and not _is_last(num) else None
        case ast.Delete(
            targets=[ast.Subscript(value=held, slice=ast.Slice(lower=None, upper=ast.expr() as num, step=None))]
        ):
            return held, num
        case ast.Assign(
            targets=[ast.Subscript(value=held, slice=ast.Slice(lower=None, upper=ast.expr() as num, step=None))],
            value=ast.List(elts=[]),
        ):
            return held, num
    return None


def _is_last(num: ast.expr) -> bool:
    """Return whether a bound counts from the end: what is kept is short then."""
    return isinstance(num, ast.UnaryOp)


def _popped(source: Source, call: ast.Call, held: ast.expr) -> Idiom | None:
    if source.kind(held) in ("array", "tensor", "dict", "deque", "set", "frame"):
        return None
    name = ast.unparse(held)
    sliced = [node for node in ast.walk(source.around) if isinstance(node, ast.Subscript)
              and isinstance(node.slice, ast.Slice) and same(node.value, held)]  # fmt: skip
    made = [each for each in source.values(name_of(held)) if each is not None]
    filled = ast.unparse(made[0]) if len(made) == 1 and not isinstance(made[0], ast.List) else ""
    after = f"from collections import deque\n\n{name} = deque({filled})   # where it is made\n{source.now({call: f'{name}.popleft()'})}"
    needs = f"no slices of {name}, which a deque has not" if sliced else f"no slices of {name}, and few items by index"
    title = f"Make {name} a deque, and take its front with popleft()"
    return Idiom(title, ast.unparse(source.statement), after, "", needs, least=MIN_CUT)


def _shown(source: Source, loop: ast.AST, name: str, at: str, moved: list[str]) -> str:
    """Return the loop with the position in it; of a long or unknown one the lines that change."""
    by = {use: text for use in _parts(loop, source) if (text := _from(use, name, at))}
    if source.is_whole and isinstance(loop, ast.For | ast.While):
        whole = replaced(loop, {**by, source.statement: "\n".join(moved)})
        if whole.count("\n") < MAX_SHOWN_LINES:
            return whole
    changed = [node for node in ast.walk(loop) if isinstance(node, ast.stmt) and node is not source.statement
               and any(use in by for part in _heads(node) for use in ast.walk(part))]  # fmt: skip
    shown = [replaced(node, by).partition("\n")[0] for node in sorted(changed, key=lambda node: node.lineno)]
    shown = [f"{text} ..." if text.endswith(":") else text for text in shown]
    return "\n".join([*shown[:6], *moved])


def _heads(node: ast.stmt) -> list[ast.AST]:
    """Return the expressions of a statement, without those of the statements in its body."""
    return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr | ast.withitem)]


def _parts(loop: ast.AST, source: Source) -> list[ast.AST]:
    mine = {id(node) for node in ast.walk(source.statement)}
    return [node for node in ast.walk(loop) if id(node) not in mine]


def _from(node: ast.AST, name: str, at: str) -> str:
    """Return how an expression reads the list from a position on, "" where it is none that begins at the front."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[held]) if ast.unparse(held) == name:
            return f"(len({name}) - {at})"
        case ast.Subscript(value=held, slice=ast.Slice(lower=low, upper=high, step=None)) if ast.unparse(held) == name:
            if any(isinstance(each, ast.UnaryOp) for each in (low, high)):
                return ""
            begin = f"{at} + {ast.unparse(low)}" if low is not None else at
            return f"{name}[{begin}:{f'{at} + {ast.unparse(high)}' if high is not None else ''}]"
        case ast.Subscript(value=held, slice=ast.expr() as index) if ast.unparse(held) == name:
            return "" if isinstance(index, ast.UnaryOp) else f"{name}[{at} + {ast.unparse(index)}]"
    return ""


def searched_list(source: Source) -> Idiom | None:
    """Return a set or a dict in the place of a list that a line looks through."""
    for node in source.own():
        match node:
            case ast.Compare(left=item, ops=[ast.In() | ast.NotIn()], comparators=[held]) if _is_searched(source, held):
                return _member(source, node, item, held)
            case ast.Call(func=ast.Attribute(value=held, attr="index"), args=[item]) if _is_searched(source, held):
                return _position(source, node, item, held)
    return None


def _is_searched(source: Source, held: ast.expr) -> bool:
    return isinstance(held, ast.Name | ast.Attribute) and source.kind(held) in ("list", "tuple")


def _member(source: Source, node: ast.Compare, item: ast.expr, held: ast.expr) -> Idiom:
    name = ast.unparse(held)
    known, word = f"{name}_set", "in" if isinstance(node.ops[0], ast.In) else "not in"
    grows = [call for call in ast.walk(source.around) if isinstance(call, ast.Call) and last_name(call.func) == "append"
             and isinstance(call.func, ast.Attribute) and same(call.func.value, held)]  # fmt: skip
    added = [f"{known}.add({ast.unparse(call.args[0])})   # beside {ast.unparse(call)}" for call in grows[:1]]
    now = _runnable(source.now({node: f"{ast.unparse(item)} {word} {known}"}))
    after = "\n".join([f"{known} = set({name})   # once, where {name} is made", now, *added])
    needs = f"items that can be hashed, and {known} kept as {name} changes" if grows else "items that can be hashed"
    return Idiom(f"Look up in a set of {name} instead of going through the list", _shown_line(source), after, "", needs,
                 least=MIN_FOUND)  # fmt: skip


def _position(source: Source, node: ast.Call, item: ast.expr, held: ast.expr) -> Idiom:
    name = ast.unparse(held)
    kept = f"{name}_position"
    now = _runnable(source.now({node: f"{kept}[{ast.unparse(item)}]"}))
    made = f"{kept} = {{item: i for i, item in reversed(list(enumerate({name})))}}"
    after = f"# once, where {name} is made: the first place of each item\n{made}\n{now}"
    needs = f"items that can be hashed, and a list that stays the same; a missing item raises KeyError"
    return Idiom(f"Keep the positions of {name} in a dict instead of searching with index()", _shown_line(source), after,
                 "", needs, least=MIN_FOUND)  # fmt: skip


def _runnable(text: str) -> str:
    return f"{text} ..." if text.endswith(":") else text


def _shown_line(source: Source) -> str:
    return _runnable(source.now({}))
