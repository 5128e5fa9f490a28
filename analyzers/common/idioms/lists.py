"""Lists that are cut at their front, or searched from it, again and again."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, replaced, runnable, same
from diagnose.model.assignments import assigned, name_of

__all__ = ["cut_front", "indexed_deque", "searched_list"]

MAX_SHOWN_LINES = 12  # of a loop that is printed as a whole
_VIEWS = ("array", "tensor", "dict", "deque", "set", "frame")  # a slice copies nothing, or means something else
_AT_END = ("append", "extend")
_DRAWN = ("random.sample", "random.choice", "random.choices")
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
    if any(same(node, held) for node in ast.walk(num)):
        return None
    name, taken = ast.unparse(held), ast.unparse(num)
    at = "self.begin" if name.startswith("self.") else "begin"
    loop = source.loop()
    by = _from_front(loop or source.around, source, name, at)
    if by is None:
        return None
    dropped = f"del {name}[:{at}]" if source.kind(held) == "list" else f"{name} = {name}[{at}:]"
    moved = [f"{at} += {taken}"]
    needs = "" if loop is not None and "." not in name else f"every other use of {name} to begin at {at}"
    if loop is None or loop is source.loop(outermost=True):  # what is used up would stay for as long as the run
        moved += [f"if 2 * {at} > len({name}):", f"    {dropped}", f"    {at} = 0"]
    where = "before the loop" if loop is not None and "." not in name else f"where {name} is made"
    lines = [f"{at} = 0   # {where}: how much of {name} is used up", _shown(source, loop or source.around, by, moved)]
    if loop is not None and not _is_endless(loop):
        lines += [*([f"{dropped}   # after the loop"]), *([f"{at} = 0"] if "." in name else [])]
    after, needs = "\n".join(lines), "; ".join(filter(None, [needs, "no other name for the same list"]))
    title = f"Move a position through {name} instead of cutting its front off"
    return Idiom(title, ast.unparse(source.statement), after, "", needs, least=MIN_CUT)


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


def _popped(source: Source, call: ast.Call, held: ast.expr) -> Idiom | None:
    if source.kind(held) in ("array", "tensor", "dict", "deque", "set", "frame"):
        return None
    name = ast.unparse(held)
    sliced = [node for node in ast.walk(source.around) if isinstance(node, ast.Subscript)
              and isinstance(node.slice, ast.Slice) and same(node.value, held)]  # fmt: skip
    made = [each for each in source.values(name_of(held)) if each is not None]
    filled = ast.unparse(made[0]) if len(made) == 1 and not same(made[0], ast.List([])) else ""
    now = source.now({call: f"{name}.popleft()"})
    after = f"from collections import deque\n\n{name} = deque({filled})   # where it is made\n{now}"
    needs = f"no slices of {name}, which a deque has not" if sliced else f"no slices of {name}, and few items by index"
    title = f"Make {name} a deque, and take its front with popleft()"
    return Idiom(title, ast.unparse(source.statement), after, "", needs, least=MIN_CUT)


def _shown(source: Source, loop: ast.AST, by: Mapping[ast.AST, str], moved: list[str]) -> str:
    """Return the loop with the position in it; of a long or unknown one the lines that change."""
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
    grows = [call for call in ast.walk(source.around) if isinstance(call, ast.Call) and last_name(call.func) == "append"
             and isinstance(call.func, ast.Attribute) and same(call.func.value, held)]  # fmt: skip
    if is_position:
        made = f"{{item: i for i, item in reversed(list(enumerate({name})))}}   # once, where {name} is made"
        title, needs = f"Keep the positions in {name} in a dict instead of searching for them", "a list that stays so"
    else:
        made = f"set({name})   # once, where {name} is made"
        title, needs = f"Look up in a set of {name} instead of going through the list", f"{kept} kept as {name} changes"
    added = [f"{kept}.add({ast.unparse(call.args[0])})   # beside {ast.unparse(call)}" for call in grows[:1]]
    after = "\n".join([f"{kept} = {made}", runnable(source.now(by)), *(added if not is_position else [])])
    before = runnable(source.now({}))
    return Idiom(title, before, after, "", f"items that can be hashed, and {needs}", least=MIN_FOUND)


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
    for node, held in (*reads, *drawn):
        if source.kind(held) != "deque":
            continue
        name, made = ast.unparse(held), next(iter(source.values(name_of(held))), None)
        words = made.keywords if isinstance(made, ast.Call) else []
        given = [*(made.args[1:] if isinstance(made, ast.Call) else []), *(word.value for word in words)]
        limit, oldest = ast.unparse(given[0]) if given else "", "self.oldest" if name.startswith("self.") else "oldest"
        title, before = f"Keep {name} as a list whose oldest item is written over", ast.unparse(source.statement)
        lines = [f"{name} = []   # where it is made", before]
        needs = f"no popleft() from {name}"
        if limit:
            mine = [node for node, _ in reads if same(node.value, held)]
            by: dict[ast.AST, str] = {}
            by |= {node: f"{name}[({oldest} + {ast.unparse(node.slice)}) % len({name})]" for node in mine}
            grown = [f"if len({name}) < {limit}:   # in the place of {name}.append(item)", f"    {name}.append(item)"]
            grown += ["else:", f"    {name}[{oldest}] = item", f"    {oldest} = ({oldest} + 1) % {limit}"]
            lines = [f"{name}, {oldest} = [], 0   # where it is made", "", *grown, "", source.now(by)]
        condition = "if the order of what is drawn from does not matter" if limit and not reads else ""
        return Idiom(title, before, "\n".join(lines), condition, needs, least=MIN_FOUND)
    return None


def _is_end(index: ast.expr) -> bool:
    """Return whether an index is a constant, which is near an end."""
    return isinstance(index.operand if isinstance(index, ast.UnaryOp) else index, ast.Constant | ast.Slice)
