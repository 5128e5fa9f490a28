"""The user's own statements, rewritten: kept, moved, handed on or detached, with the names that they have.

Each function returns code as it is and as it becomes, or None if the known lines do not show that the new form has all
its names. Nothing is made up but the name of a result that had none.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from diagnose.model.dataflow import Frame
from diagnose.model.own_source import OwnSource, span, with_parts

__all__ = [
    "NONE",
    "Rewrite",
    "cached",
    "detached",
    "frozen_for",
    "handed_on",
    "hoisted",
    "joined",
    "kept",
    "without_calls",
    "without_gradients",
]

_ONCE = "   # once, before the loop"


class Rewrite(NamedTuple):
    """Code as it is and as it becomes."""

    before: str
    after: str


NONE = Rewrite("", "")


def joined(rewrites: Iterable[object]) -> Rewrite:
    """Return the code of several rewrites, each once; nothing if the first one has none."""
    each = list(dict.fromkeys(one for one in rewrites if isinstance(one, Rewrite)))
    known = [one for one in each if one.after] if each and each[0].after else []
    return Rewrite("\n\n".join(one.before for one in known), "\n\n".join(one.after for one in known))


def cached(source: OwnSource, first: Frame, again: Frame) -> Rewrite | None:
    """Return what uses parametrized weights, the loop around it or two lines, in a block that computes them once."""
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
    is_after = first.file == again.file and first.line < again.line
    if not is_after or source.function(first) != source.function(again) or nodes[0] is None or nodes[1] is None:
        return None
    mine = {ast.dump(each) for each in ast.walk(nodes[0]) if isinstance(each, ast.Call)}
    both = _outermost(nodes[1], lambda each: isinstance(each, ast.Call) and ast.dump(each) in mine)
    between = {*source.stored(first.file, range(first.line + 1, again.line))}
    if len({ast.dump(each) for each in both}) != 1 or _names(both[0]) & (between | _stored(nodes[0])):
        return None
    same, before = ast.dump(both[0]), "\n".join(texts)
    uses = [_outermost(node, lambda each: ast.dump(each) == same) for node in nodes if node is not None]
    is_whole = [getattr(node, "value", None) is use[0] for node, use in zip(nodes, uses, strict=True)]
    names = [_target(node) * each for node, each in zip(nodes, is_whole, strict=True)]
    if not is_kept_first:
        rest = with_parts(texts[0], [(each, f"{names[1]}.detach()") for each in uses[0]])
        return Rewrite(before, f"{texts[1]}\n{rest}") if names[1].isidentifier() else None
    if names[0] and not set(names[0].split(", ")) & between:
        return Rewrite(before, f"{texts[0]}\n{with_parts(texts[1], [(each, names[0]) for each in uses[1]])}")
    name = _new_name(both[0], _names(nodes[0]) | _names(nodes[1]) | between)
    lines = [with_parts(text, [(each, name) for each in use]) for text, use in zip(texts, uses, strict=True)]
    return Rewrite(before, "\n".join([f"{name} = {_segment(texts[1], both[0])}", *lines]))


def handed_on(source: OwnSource, inner: Frame, caller: Frame) -> Rewrite | None:
    """Return a statement of a method that the modules of a loop run, made once before it and handed to each."""
    loop, method, made = source.loop(caller), source.function(inner), source.statement(inner)
    definition, line, name = source.statement(method), source.statement(caller), _target(made)
    is_known = loop is not None and method is not None and line is not None and name.isidentifier()
    if not is_known or not isinstance(definition, ast.FunctionDef) or inner.file != caller.file:
        return None
    assert loop is not None
    assert method is not None
    assert line is not None
    turns, call = _turns(source.statement(loop)), source.text(caller)
    calls = [each for each in ast.walk(line) if isinstance(each, ast.Call) and ast.unparse(each.func) in turns]
    given = _given(call, calls[0], definition, turns[ast.unparse(calls[0].func)]) if len(calls) == 1 else None
    computed = _computed(source, inner, method, given, source.binds(loop)) if given is not None else None
    if given is None or computed is None:
        return None
    before = f"{_block(source, loop, caller, call)}\n\n{source.text(method)}\n    {source.text(inner)}"
    start = f"{name} = {computed}{_ONCE}\n"
    if given.get(name) == name:
        return Rewrite(before, start + _block(source, loop, caller, call))
    new_head, around = _with_parameter(source.text(method), definition, name), source.function(caller)
    if new_head is None or around is None or name in source.binds(around):
        return None
    passing = f"{_segment(call, calls[0])[:-1].rstrip(', ')}, {name}={name})"
    after = _block(source, loop, caller, with_parts(call, [(calls[0], passing)]))
    return Rewrite(before, f"{start}{after}\n\n{new_head}   # without line {inner.line}\n    ...")


def _computed(
    source: OwnSource, inner: Frame, method: Frame, given: Mapping[str, str], changes: frozenset[str]
) -> str | None:
    """Return what a statement of a method assigns, with what its caller passes; None if that is not known there."""
    text = _segment(source.text(inner), getattr(source.statement(inner), "value", ast.Pass()))
    local = source.binds(method) | given.keys()
    changed = changes | {*source.stored(method.file, range(method.line + 1, inner.line))}
    parts = []
    for each in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(each, ast.Name) and each.id in local:
            new = given.get(each.id, "")
            if not new or each.id in changed - changes or _names(ast.parse(new)) & changes:
                return None
            parts.append((each, new))
    return with_parts(text, parts)


def without_gradients(source: OwnSource, line: Frame) -> Rewrite | None:
    """Return an assignment that is made without gradients."""
    text = source.text(line)
    if not _target(source.statement(line)):
        return None
    return Rewrite(text, f"with torch.no_grad():\n    {text}")


def frozen_for(source: OwnSource, line: Frame) -> Rewrite | None:
    """Return a statement that calls one model, which is frozen meanwhile."""
    text, node = source.text(line), source.statement(line)
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)] if node is not None else []
    models = {name for each in calls if (name := ast.unparse(each.func)).removeprefix("self.").isidentifier()}
    models -= {*dir(builtins)}
    if len(models) != 1 or not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr):
        return None
    (name,) = models
    return Rewrite(text, f"{name}.requires_grad_(False)\n{text}\n{name}.requires_grad_(True)")


def without_calls(source: OwnSource, line: Frame, method: str) -> Rewrite | None:
    """Return a statement without the calls of a method that returns its object."""
    text, node = source.text(line), source.statement(line)
    calls = _outermost(node, lambda each: _called(each).endswith(f".{method}")) if node is not None else []
    parts = [
        (each, _segment(text, each.func.value))
        for each in calls
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)
    ]
    if not parts:
        return None
    return Rewrite(text, f"# {text}" if isinstance(node, ast.Expr) else with_parts(text, parts))


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


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


def _turns(head: ast.stmt | None) -> Mapping[str, str]:
    """Return for each name of a loop's head what it is in the first turn: layers[0] of "for layer in layers"."""
    return dict(_first_turn(head.target, head.iter)) if isinstance(head, ast.For) else {}


def _first_turn(target: ast.expr, over: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Name) and isinstance(over, ast.Name | ast.Attribute | ast.Subscript):
        yield target.id, f"{ast.unparse(over)}[0]"
    elif isinstance(target, ast.Tuple) and isinstance(over, ast.Call) and isinstance(over.func, ast.Name):
        if over.func.id == "enumerate" and len(target.elts) == 2 and over.args:
            yield from _first_turn(target.elts[1], over.args[0])
        elif over.func.id == "zip" and len(target.elts) == len(over.args):
            for each, part in zip(target.elts, over.args, strict=True):
                yield from _first_turn(each, part)


def _given(text: str, call: ast.Call, definition: ast.FunctionDef, of: str) -> dict[str, str] | None:
    """Return what a call of an object's method passes for its parameters, as text; None if it cannot be told."""
    own, *names = [each.arg for each in definition.args.args] or [""]
    spread = any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords)
    if spread or definition.args.vararg or definition.args.posonlyargs or len(call.args) > len(names):
        return None
    passed = dict(zip(names, call.args, strict=False)) | {str(k.arg): k.value for k in call.keywords}
    return {own: of} | {name: _segment(text, value) for name, value in passed.items()}


def _with_parameter(text: str, definition: ast.FunctionDef, name: str) -> str | None:
    """Return the head of a method that takes one argument more, the last one."""
    args = definition.args
    if args.vararg or args.kwonlyargs or args.kwarg or not args.args or name in {each.arg for each in args.args}:
        return None
    last = args.defaults[-1] if args.defaults else args.args[-1]
    end = span(last)[1]
    raw = text.encode()
    return (raw[:end] + f", {name}{'=None' if args.defaults else ''}".encode() + raw[end:]).decode()
