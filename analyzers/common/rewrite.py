"""The user's own statements, rewritten: kept, moved, handed on or detached, with the names that they have.

Each function returns code as it is and as it becomes, or None if the known lines do not show that the new form has all
its names. Nothing is made up but the name of a result that had none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from diagnose.model.dataflow import Frame
from diagnose.model.own_source import OwnSource, span, with_parts

__all__ = ["NONE", "Rewrite", "cached", "detached", "handed_on", "hoisted", "kept", "without_gradients"]

_ONCE = "   # once, before the loop"


class Rewrite(NamedTuple):
    """Code as it is and as it becomes."""

    before: str
    after: str


NONE = Rewrite("", "")


def cached(source: OwnSource, first: Frame, again: Frame) -> Rewrite | None:
    """Return what uses parametrized weights, under a block that computes them once: the loop around it, or two lines."""
    if first != again and source.function(first) != source.function(again):
        return None
    loop = source.loop(again) if first == again else None
    texts = [source.text(first), source.text(again)] if loop is None else _turn(source, loop, again, source.text(again))
    if "" in texts or (loop is None and first == again):
        return None
    block = "\n    ".join(["with torch.nn.utils.parametrize.cached():", *texts])
    return Rewrite("\n".join(texts), block)


def hoisted(source: OwnSource, line: Frame) -> Rewrite | None:
    """Return a statement of a loop, all or a call of it made before the loop: it uses nothing that the loop binds."""
    loop, text, node = source.loop(line), source.text(line), source.statement(line)
    head = source.text(loop)
    if loop is None or node is None or not head:
        return None
    binds = source.binds(loop)
    if _target(node) and isinstance(node, ast.Assign) and not _names(node.value) & binds:
        return Rewrite(_block(source, loop, line, text), f"{text}{_ONCE}\n{head}\n    ...")
    free = _outermost(node, lambda each: isinstance(each, ast.Call) and not _names(each) & binds)
    if len({ast.dump(each) for each in free}) != 1:
        return None
    name = _new_name(free[0], _names(node) | binds)
    rest = with_parts(text, [(each, name) for each in free])
    before, after = (_block(source, loop, line, each) for each in (text, rest))
    return Rewrite(before, f"{name} = {_segment(text, free[0])}{_ONCE}\n{after}")


def kept(source: OwnSource, first: Frame, again: Frame, *, is_kept_first: bool) -> Rewrite | None:
    """Return two statements of one function, the second of which uses what the first has computed.

    If no backward pass goes through the first result alone, the first statement uses what the second computes.
    """
    texts, nodes = (source.text(first), source.text(again)), (source.statement(first), source.statement(again))
    if first.file != again.file or first.line >= again.line or source.function(first) != source.function(again):
        return None
    if nodes[0] is None or nodes[1] is None:
        return None
    mine = {ast.dump(each) for each in ast.walk(nodes[0]) if isinstance(each, ast.Call)}
    both = _outermost(nodes[1], lambda each: isinstance(each, ast.Call) and ast.dump(each) in mine)
    if len({ast.dump(each) for each in both}) != 1:
        return None
    same, between = ast.dump(both[0]), {*source.stored(first.file, range(first.line + 1, again.line))}
    uses = [_outermost(node, lambda each: ast.dump(each) == same) for node in nodes if node is not None]
    names = [
        _target(node) if getattr(node, "value", None) is use[0] else "" for node, use in zip(nodes, uses, strict=True)
    ]
    before = "\n".join(texts)
    if not is_kept_first:
        if not names[1].isidentifier() or _names(both[0]) & (between | _stored(nodes[0])):
            return None
        return Rewrite(
            before, f"{texts[1]}\n{with_parts(texts[0], [(each, f'{names[1]}.detach()') for each in uses[0]])}"
        )
    if _names(both[0]) & (between | _stored(nodes[0])):
        return None
    if names[0] and not set(names[0].split(", ")) & between:
        return Rewrite(before, f"{texts[0]}\n{with_parts(texts[1], [(each, names[0]) for each in uses[1]])}")
    name = _new_name(both[0], _names(nodes[0]) | _names(nodes[1]) | between)
    lines = [with_parts(text, [(each, name) for each in use]) for text, use in zip(texts, uses, strict=True)]
    return Rewrite(before, "\n".join([f"{name} = {_segment(texts[1], both[0])}", *lines]))


def handed_on(source: OwnSource, inner: Frame, caller: Frame) -> Rewrite | None:
    """Return a statement of a method that the modules of a loop run, made once before it and handed to each."""
    loop, method, made = source.loop(caller), source.function(inner), source.statement(inner)
    head, definition, call_line = source.statement(loop), source.statement(method), source.statement(caller)
    name = _target(made)
    if loop is None or method is None or call_line is None or inner.file != caller.file or not name.isidentifier():
        return None
    if not isinstance(made, ast.Assign) or not isinstance(head, ast.For) or not isinstance(definition, ast.FunctionDef):
        return None
    turns, changes = _turns(head), source.binds(loop)
    calls = [
        each
        for each in ast.walk(call_line)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in turns
    ]
    given = _given(source.text(caller), calls[0], definition) if len(calls) == 1 else None
    if given is None:
        return None
    given[definition.args.args[0].arg] = turns[ast.unparse(calls[0].func)]
    computed = _segment(source.text(inner), made.value)
    parts, local = [], source.binds(method)
    for each in ast.walk(ast.parse(computed, mode="eval")):
        if isinstance(each, ast.Name) and each.id in local | given.keys():
            new = given.get(each.id, "")
            if not new or _names(ast.parse(new)) & changes:
                return None
            parts.append((each, new))
    call, around = source.text(caller), source.function(caller)
    before = f"{_block(source, loop, caller, call)}\n\n{source.text(method)}\n    {source.text(inner)}"
    start = f"{name} = {with_parts(computed, parts)}{_ONCE}\n"
    if given.get(name) == name:
        return Rewrite(before, start + _block(source, loop, caller, call))
    new_head = _with_parameter(source.text(method), definition, name)
    if new_head is None or around is None or name in source.binds(around):
        return None
    end = len(_segment(call, calls[0])) - 1
    passing = _segment(call, calls[0])[:end].rstrip(", ") + f", {name}={name})"
    after = _block(source, loop, caller, with_parts(call, [(calls[0], passing)]))
    return Rewrite(before, f"{start}{after}\n\n{new_head}   # without line {inner.line}\n    ...")


def without_gradients(source: OwnSource, line: Frame) -> Rewrite | None:
    """Return an assignment that is made without gradients."""
    text = source.text(line)
    if not _target(source.statement(line)):
        return None
    return Rewrite(text, f"with torch.no_grad():\n    {text}")


def detached(source: OwnSource, made: Frame, used: Frame) -> Rewrite | None:
    """Return the use of a name that another line has assigned, with that name detached."""
    name, text, node = _target(source.statement(made)), source.text(used), source.statement(used)
    if node is None or not name.isidentifier():
        return None
    uses = _outermost(
        node, lambda each: isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
    )
    if not uses:
        return None
    return Rewrite(text, with_parts(text, [(each, f"{name}.detach()") for each in uses]))


def _block(source: OwnSource, loop: Frame, line: Frame, text: str) -> str:
    return "\n".join(_turn(source, loop, line, text))


def _turn(source: OwnSource, loop: Frame, line: Frame, text: str) -> list[str]:
    """Return the lines of a loop with one of its statements; "..." stands for others."""
    last = max(b for a, b in source.loops[loop.file] if a == loop.line)
    before, after = ["    ..."] * (line.line > loop.line + 1), ["    ..."] * (line.line < last)
    return [source.text(loop), *before, f"    {text}", *after]


def _outermost(node: ast.AST, wanted: Callable[[ast.AST], bool]) -> list[ast.expr]:
    """Return the expressions of a tree that are wanted, none of those within another."""
    if isinstance(node, ast.expr) and wanted(node):
        return [node]
    return [each for child in ast.iter_child_nodes(node) for each in _outermost(child, wanted)]


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _stored(node: ast.AST) -> frozenset[str]:
    return frozenset(e.id for e in ast.walk(node) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store))


def _target(node: ast.stmt | None) -> str:
    """Return what a statement assigns to, if these are one or several plain names: "a, b"; else ""."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return ""
    target = node.targets[0]
    each = target.elts if isinstance(target, ast.Tuple) else [target]
    return (
        ", ".join(e.id for e in each if isinstance(e, ast.Name)) if all(isinstance(e, ast.Name) for e in each) else ""
    )


def _new_name(node: ast.expr, taken: frozenset[str] | set[str]) -> str:
    """Return a name for the result of a call that no statement uses yet."""
    called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    name = f"{called if called.isidentifier() else 'call'}_result"
    while name in taken:
        name += "_"
    return name


def _segment(text: str, node: ast.AST) -> str:
    start, end = span(node)
    return text.encode()[start:end].decode()


def _turns(head: ast.For) -> Mapping[str, str]:
    """Return for each name of a loop's head what it is in the first turn: layers[0] of "for layer in layers"."""
    return dict(_first_turn(head.target, head.iter))


def _first_turn(target: ast.expr, over: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Name) and isinstance(over, ast.Name | ast.Attribute | ast.Subscript):
        yield target.id, f"{ast.unparse(over)}[0]"
    elif isinstance(target, ast.Tuple) and isinstance(over, ast.Call) and isinstance(over.func, ast.Name):
        if over.func.id == "enumerate" and len(target.elts) == 2 and over.args:
            yield from _first_turn(target.elts[1], over.args[0])
        elif over.func.id == "zip" and len(target.elts) == len(over.args):
            for each, part in zip(target.elts, over.args, strict=True):
                yield from _first_turn(each, part)


def _given(text: str, call: ast.Call, definition: ast.FunctionDef) -> dict[str, str] | None:
    """Return what a call passes for the parameters of a method, as text; None if it cannot be told."""
    names = [each.arg for each in definition.args.args][1:]
    spread = any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords)
    if spread or definition.args.vararg or definition.args.posonlyargs or len(call.args) > len(names):
        return None
    passed = dict(zip(names, call.args, strict=False)) | {str(k.arg): k.value for k in call.keywords}
    return {name: _segment(text, value) for name, value in passed.items()}


def _with_parameter(text: str, definition: ast.FunctionDef, name: str) -> str | None:
    """Return the head of a method that takes one argument more, the last one."""
    args = definition.args
    if args.vararg or args.kwonlyargs or args.kwarg or not args.args or name in {each.arg for each in args.args}:
        return None
    last = args.defaults[-1] if args.defaults else args.args[-1]
    end = span(last)[1]
    raw = text.encode()
    return (raw[:end] + f", {name}{'=None' if args.defaults else ''}".encode() + raw[end:]).decode()
