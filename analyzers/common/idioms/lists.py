"""Lists that are cut at their front, or searched from it, again and again."""

from __future__ import annotations

import ast

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, same
from diagnose.model.assignments import assigned, name_of
from diagnose.model.own_source import EditedStatement

__all__ = ["cut_front", "indexed_deque", "searched_list"]

_VIEWS = ("array", "tensor", "dict", "deque", "set", "frame")  # a slice copies nothing, or means something else
_AT_END = ("append", "extend")
_DRAWN = ("random.sample", "random.choice", "random.choices")
MIN_CUT, MIN_FOUND = 0.8, 0.7


def cut_front(source: Source) -> Idiom | None:
    """Return a position or a deque in the place of a list whose front is taken off, which moves all that is left."""
    popped = next((call for call in source.calls() if _is_pop(call)), None)
    if popped is not None:
        assert isinstance(popped.func, ast.Attribute)
        return _popped(source, popped.func.value)
    cut = _cut(source.statement)
    if cut is None or source.kind(cut[0]) in _VIEWS:
        return None
    held, num = cut
    if any(same(node, held) for node in ast.walk(num)):
        return None
    name, taken, loop = ast.unparse(held), ast.unparse(num), source.loop()
    title, needs = f"Move a position through {name} instead of cutting its front off", "no other name for the same list"
    by = _from_front(loop or source.around, source, name, "begin")
    if by is None:
        return None
    if loop is None or "." in name or not source.is_whole:
        return Idiom(title, (), "", f"every other use of {name} to begin at the position; {needs}", least=MIN_CUT)
    dropped = f"del {name}[:begin]" if source.kind(held) == "list" else f"{name} = {name}[begin:]"
    moved = f"begin += {taken}"
    if loop is source.loop(outermost=True):  # what is used up would stay for as long as the run
        moved += f"\nif 2 * begin > len({name}):\n    {dropped}\n    begin = 0"
    others = [node for node in ast.walk(loop) if isinstance(node, ast.stmt) and node not in (loop, source.statement)
              and any(use in by for part in _heads(node) for use in ast.walk(part))]  # fmt: skip
    edits = [source.after(f"begin = 0\n{source.now(by, loop)}", loop), *(source.edited(by, node) for node in others)]
    edits += [source.after(moved)] + [EditedStatement(source.line(loop), "", dropped)] * (not _is_endless(loop))
    return Idiom(title, tuple(sorted(edits)), "", needs, least=MIN_CUT)


def _is_endless(loop: ast.For | ast.While) -> bool:
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)


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
    """Return whether an index or the begin of a slice counts from the end."""
    return isinstance(num.lower if isinstance(num, ast.Slice) else num, ast.UnaryOp)


def _popped(source: Source, held: ast.expr) -> Idiom | None:
    if source.kind(held) in ("array", "tensor", "dict", "deque", "set", "frame"):
        return None
    name = ast.unparse(held)
    mine = [node for node in ast.walk(source.around) if isinstance(node, ast.Call) and _is_pop(node)
            and isinstance(node.func, ast.Attribute) and same(node.func.value, held)]  # fmt: skip
    made = [node for node in ast.walk(source.around) if isinstance(node, ast.Assign) and same(node.targets[0], held)]
    edits: list[EditedStatement] = []
    if source.is_whole and "." not in name and len(made) == 1 and _is_deque_too(source, name, held):
        value = made[0].value
        filled = "" if same(value, ast.List([])) else source.now({}, value)
        by: dict[ast.AST, str] = {value: f"deque({filled})"}
        by.update((call, f"{name}.popleft()") for call in mine)
        statements = [node for node in ast.walk(source.around) if isinstance(node, ast.stmt)
                      and any(each in by for part in _heads(node) for each in ast.walk(part))]  # fmt: skip
        edits = [EditedStatement(0, "", "from collections import deque")]
        edits += sorted(source.edited(by, node) for node in statements)
    title = f"Make {name} a deque, and take its front with popleft()"
    return Idiom(title, tuple(edits), "", f"no slices of {name}, and few items by index", least=MIN_CUT)


def _is_deque_too(source: Source, name: str, held: ast.expr) -> bool:
    """Return whether all that a function does with a list a deque does too."""
    known = {id(held)}
    for node in ast.walk(source.around):
        match node:
            case ast.Attribute(value=one, attr="append" | "extend" | "pop" | "clear"):
                known.add(id(one))
            case ast.Subscript(value=one, slice=index) if not isinstance(index, ast.Slice):
                known.add(id(one))
            case ast.Call(func=ast.Name(id="len"), args=[one]) | ast.For(iter=one) | ast.While(test=one):
                known.add(id(one))
            case ast.If(test=one) | ast.UnaryOp(ast.Not(), one) | ast.Assign(targets=[one]):
                known.add(id(one))
    return all(id(use) in known for use in source.uses(name, source.around))


def _heads(node: ast.stmt) -> list[ast.AST]:
    """Return the expressions of a statement, without those of the statements in its body."""
    return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr | ast.withitem)]


def _from_front(loop: ast.AST, source: Source, name: str, at: str) -> dict[ast.AST, str] | None:
    """Return how a loop's expressions read a list from a position on; None where it uses all of the list otherwise."""
    mine = {id(node) for node in ast.walk(source.statement)}
    nodes = [node for node in ast.walk(loop) if id(node) not in mine]
    by = {node: text for node in nodes if (text := _from(node, name, at))}
    tests = [node.test for node in nodes if isinstance(node, ast.While | ast.If)]
    tests += [node.operand for node in nodes if isinstance(node, ast.UnaryOp)]
    by |= {test: f"len({name}) > {at}" for test in tests if ast.unparse(test) == name}
    known = {id(inner) for node in by for inner in ast.walk(node)}
    known |= {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in _AT_END}
    known |= {id(node.value) for node in nodes if isinstance(node, ast.Subscript) and _is_last(node.slice)}
    known |= {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    others = [use for use in source.uses(name, loop) if id(use) not in known]
    return None if others and source.is_whole else by


def _from(node: ast.AST, name: str, at: str) -> str:
    """Return how an expression reads the list from a position on, "" where it is none that begins at the front."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[held]) if ast.unparse(held) == name:
            return f"(len({name}) - {at})"
        case ast.Subscript(value=held, slice=ast.Slice(lower=low, upper=high, step=None)) if ast.unparse(held) == name:
            if low is not None and _is_last(low):
                return ""
            begin = f"{at} + {ast.unparse(low)}" if low is not None else at
            end = "" if high is None else ast.unparse(high) if _is_last(high) else f"{at} + {ast.unparse(high)}"
            return f"{name}[{begin}:{end}]"
        case ast.Subscript(value=held, slice=index) if ast.unparse(held) == name and not _is_last(index):
            if isinstance(index, ast.Slice):
                return ""
            return f"{name}[{at}]" if same(index, ast.Constant(0)) else f"{name}[{at} + {ast.unparse(index)}]"
    return ""


def searched_list(source: Source) -> Idiom | None:
    """Return a set or a dict in the place of a list that a line looks through."""
    found: list[tuple[ast.AST, ast.expr, ast.expr, str]] = []  # the search, the list, the item and how it is searched
    for node in source.own():
        match node:
            case ast.Compare(left=item, ops=[ast.In()], comparators=[held]):
                found.append((node, held, item, "in"))
            case ast.Compare(left=item, ops=[ast.NotIn()], comparators=[held]):
                found.append((node, held, item, "not in"))
            case ast.Call(func=ast.Attribute(value=held, attr="index"), args=[item]):
                found.append((node, held, item, "index"))
    found = [each for each in found if isinstance(each[1], ast.Name | ast.Attribute)]
    found = [each for each in found if source.kind(each[1]) in ("list", "tuple") and _stays(source, each[0], each[1])]
    if not found:
        return None
    is_position = any(how == "index" for *_, how in found)
    held = next(held for _, held, _, how in found if how == "index" or not is_position)
    name = ast.unparse(held)
    kept = f"{name}_position" if is_position else f"{name}_set"
    by = {node: f"{kept}[{ast.unparse(item)}]" if how == "index" else f"{ast.unparse(item)} {how} {kept}"
          for node, other, item, how in found if same(other, held)}  # fmt: skip
    if is_position:
        made = f"{kept} = {{item: i for i, item in reversed(list(enumerate({name})))}}"
        title, needs = f"Keep the positions in {name} in a dict instead of searching for them", "a list that stays so"
    else:
        made = f"{kept} = set({name})"
        title, needs = f"Look up in a set of {name} instead of going through the list", f"{kept} kept as {name} changes"
    once = source.once(held, made) if source.changes(held) is False else ()
    edits = (*once, source.edited(by)) if once else ()
    return Idiom(title, edits, "", f"items that can be hashed, and {needs}", least=MIN_FOUND)


def _stays(source: Source, search: ast.AST, held: ast.expr) -> bool:
    """Return whether a list is searched more often than it is made, and not one that is written out, which is short."""
    name = name_of(held)
    if all(isinstance(each, ast.List | ast.Tuple) and _is_written_out(each) for each in source.values(name)):
        return False
    parts = [
        node for node in source.own() if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
    ]
    if name not in source.local or any(node is search for part in parts for node in ast.walk(part)):
        return True
    loop = source.loop(outermost=True)
    return loop is not None and all(name_of(target) != name for node in ast.walk(loop) for target, _ in assigned(node))


def _is_written_out(value: ast.List | ast.Tuple) -> bool:
    return bool(value.elts) and not any(isinstance(each, ast.Constant) and each.value is ... for each in value.elts)


def indexed_deque(source: Source) -> Idiom | None:
    """Return a list in the place of a deque whose inner items are read: the way to them is longer the more it holds."""
    reads = [(node, node.value) for node in source.own() if isinstance(node, ast.Subscript) and not _is_end(node.slice)]
    drawn = [(call, call.args[0]) for call in source.calls() if call.args and ast.unparse(call.func) in _DRAWN]
    for _, held in (*reads, *drawn):
        if source.kind(held) != "deque":
            continue
        name = ast.unparse(held)
        condition = "" if reads else "if the order of what is drawn from does not matter"
        title = f"Keep {name} as a list whose oldest item is written over"
        return Idiom(title, (), condition, f"no popleft() from {name}", least=MIN_FOUND)
    return None


def _is_end(index: ast.expr) -> bool:
    """Return whether an index is a constant, which is near an end."""
    return isinstance(index.operand if isinstance(index, ast.UnaryOp) else index, ast.Constant | ast.Slice)
