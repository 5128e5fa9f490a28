"""The user's own statements, rewritten: kept, moved, handed on or detached, with the names that they have.

Each function returns the edits, or () if the known lines do not show that the new form has all its names. Nothing is
made up but the name of a result that had none.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from diagnose.model.dataflow import Frame
from diagnose.model.own_source import EditedStatement, OwnSource, needs_parentheses, span, with_parts

Edits: TypeAlias = tuple[EditedStatement, ...]


def joined(rewrites: Iterable[Edits]) -> Edits:
    """Return the edits of several rewrites, of those of one line the first; () if the first one has none."""
    found: dict[int, EditedStatement] = {}
    each = list(rewrites)
    for edits in each if each and each[0] else ():
        if not found.keys() & {edit.line for edit in edits}:
            found |= {edit.line: edit for edit in edits}
    return tuple(found.values())


def cached(source: OwnSource, line: Frame) -> Edits:
    """Return the loop around what uses parametrized weights in a block that computes them once."""
    loop = source.loop(line)
    head = source.text(loop)
    return _edit(source, loop, f"with torch.nn.utils.parametrize.cached():\n    {head}") if head else ()


def hoisted(source: OwnSource, line: Frame, is_meant: Callable[[ast.Call], bool] | None = None) -> Edits:
    """Return a statement of a loop, all or a call of it made before the loop: it uses nothing that the loop binds."""
    loop, text, node = source.loop(line), source.text(line), source.statement(line)
    head = source.text(loop)
    if loop is None or node is None or not head:
        return ()
    binds = source.binds(loop)
    meant = is_meant or (lambda _: True)
    free = _outermost(node, lambda each: isinstance(each, ast.Call) and meant(each) and not all_names(each) & binds)
    lines = (range(loop.line, line.line), range(line.line + 1, _last(source, loop)))
    elsewhere = {name for each in lines for name in source.stored(loop.file, each)}
    target = set(_target(node).split(", "))
    is_all = isinstance(node, ast.Assign) and (free or is_meant is None) and not all_names(node.value) & binds
    if is_all and target != {""} and not target & elsewhere:
        return (*_edit(source, loop, f"{text}\n{head}"), *_edit(source, line, ""))
    if len({ast.dump(each) for each in free}) != 1:
        return ()
    name = _new_name(free[0], all_names(node) | binds)
    rest = with_parts(text, [(each, name) for each in free])
    return (*_edit(source, loop, f"{name} = {_segment(text, free[0])}\n{head}"), *_edit(source, line, rest))


def _last(source: OwnSource, loop: Frame) -> int:
    return max(b for a, b in source.loops[loop.file] if a == loop.line) + 1


def _edit(source: OwnSource, line: Frame | None, after: str) -> Edits:
    return (EditedStatement(line.line, source.text(line), after),) if line is not None else ()


def kept(source: OwnSource, first: Frame, again: Frame, *, is_kept_first: bool) -> Edits:
    """Return two statements of one function, the second of which uses what the first has computed.

    If no backward pass goes through the first result alone, the first statement uses what the second computes.
    """
    texts, nodes = (source.text(first), source.text(again)), (source.statement(first), source.statement(again))
    is_after = first.file == again.file and first.line < again.line
    if not is_after or source.function(first) != source.function(again) or nodes[0] is None or nodes[1] is None:
        return ()
    mine = {ast.dump(each) for each in ast.walk(nodes[0]) if isinstance(each, ast.Call)}
    both = _outermost(nodes[1], lambda each: isinstance(each, ast.Call) and ast.dump(each) in mine)
    between = {*source.stored(first.file, range(first.line + 1, again.line))}
    if len({ast.dump(each) for each in both}) != 1 or all_names(both[0]) & (between | stored_names(nodes[0])):
        return ()
    same = ast.dump(both[0])
    uses = [_outermost(node, lambda each: ast.dump(each) == same) for node in nodes if node is not None]
    is_whole = [getattr(node, "value", None) is use[0] for node, use in zip(nodes, uses, strict=True)]
    names = [_target(node) * each for node, each in zip(nodes, is_whole, strict=True)]
    if not is_kept_first:
        rest = with_parts(texts[0], [(each, f"{names[1]}.detach()") for each in uses[0]])
        is_named = names[1].isidentifier()
        return (*_edit(source, first, f"{texts[1]}\n{rest}"), *_edit(source, again, "")) if is_named else ()
    name, now = names[0], texts[0]
    if not name or set(name.split(", ")) & between:
        name = _new_name(both[0], all_names(nodes[0]) | all_names(nodes[1]) | between)
        now = f"{name} = {_segment(texts[1], both[0])}\n{with_parts(texts[0], [(each, name) for each in uses[0]])}"
    second = with_parts(texts[1], [(each, name) for each in uses[1]])
    return (*_edit(source, first, now), *_edit(source, again, second))


def handed_on(source: OwnSource, inner: Frame, caller: Frame, modules: Iterable[str] = ()) -> Edits:
    """Return what a method computes again in each turn of a loop that calls it, made once before and handed to each.

    It is what a statement assigns, or else the call in it of the only one of these modules.
    """
    loop, method, made = source.loop(caller), source.function(inner), source.statement(inner)
    definition, line = source.statement(method), source.statement(caller)
    if loop is None or method is None or made is None or line is None or inner.file != caller.file:
        return ()
    call, head, binds = source.text(caller), source.text(loop), source.binds(loop)
    turns, calls = _turns(source.statement(loop)), [each for each in ast.walk(line) if isinstance(each, ast.Call)]
    of_turn = [each for each in calls if ast.unparse(each.func) in turns]
    of_turn = of_turn or [each for each in calls if not all_names(each.func) & {*turns}]
    if len(of_turn) != 1 or not isinstance(definition, ast.FunctionDef):
        return ()
    called = ast.unparse(of_turn[0].func)
    of = turns.get(called, "" if all_names(of_turn[0].func) & binds else called)
    given = _given(call, of_turn[0], definition, of) if of else {}
    choices = _repeated(made, modules, source.binds(method) | binds)
    each = ((name, nodes, _computed(source, inner, nodes[0], given or {}, binds)) for name, nodes in choices)
    name, nodes, computed = next((one for one in each if one[2]), ("", [], None))
    if not given or computed is None:
        return ()
    start = _edit(source, loop, f"{name} = {computed}\n{head}")
    if given.get(name) == name:
        return (*start, *_edit(source, caller, call))
    new_head, around = _with_parameter(source.text(method), definition, name), source.function(caller)
    if new_head is None or around is None or name in source.binds(around):
        return ()
    passing = with_parts(call, [(of_turn[0], f"{_segment(call, of_turn[0])[:-1].rstrip(', ')}, {name}={name})")])
    text = source.text(inner)
    now = f"{_segment(text, nodes[0])} if {name} is None else {name}"
    choice = ast.parse(now, mode="eval").body
    within = {inner: outer for outer in ast.walk(made) for inner in ast.iter_child_nodes(outer)}
    parts = [(node, f"({now})" if needs_parentheses(choice, node, within[node]) else now) for node in nodes]
    after = with_parts(text, parts)
    return (*start, *_edit(source, caller, passing), *_edit(source, method, new_head), *_edit(source, inner, after))


def _repeated(made: ast.stmt, modules: Iterable[str], taken: frozenset[str]) -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield what a statement may compute again, with its name: what it assigns, and the call of these modules alone."""
    value = getattr(made, "value", None)
    if _target(made).isidentifier() and value is not None:
        yield _target(made), [value]
    calls = _module_calls(made, modules)
    if len({ast.dump(each) for each in calls}) == 1:
        yield _new_name(calls[0], all_names(made) | taken), calls


def _module_calls(made: ast.stmt, modules: Iterable[str]) -> list[ast.expr]:
    """Return the calls of one of these modules by a statement of the module around it: "layer.key" as `self.key(x)`."""
    names = tuple(f".{module}." for module in modules)

    def is_meant(node: ast.AST) -> bool:
        called = _called(node)
        return called.startswith("self.") and all(f".{called.removeprefix('self.')}." in name for name in names)

    return _outermost(made, is_meant) if names else []


def _computed(
    source: OwnSource, inner: Frame, part: ast.AST, given: Mapping[str, str], changes: frozenset[str]
) -> str | None:
    """Return a part of a method's statement with what its caller passes; None if that is not known there."""
    text, method = _segment(source.text(inner), part), source.function(inner)
    if method is None:
        return None
    local = source.binds(method) | given.keys()
    changed = changes | {*source.stored(method.file, range(method.line + 1, inner.line))}
    parts = []
    for each in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(each, ast.Name) and each.id in local:
            new = given.get(each.id, "")
            if not new or each.id in changed - changes or all_names(ast.parse(new)) & changes:
                return None
            parts.append((each, new))
    return with_parts(text, parts)


def applied_first(source: OwnSource, enlarging: Frame, line: Frame, modules: tuple[str, str]) -> Edits:
    """Return a module that is called on an interpolated input, called before the interpolation: in one line, or in two.

    ``modules`` are what the recording calls the module and the interpolation, if that is one.
    """
    head, interpolation = (name.rpartition(".")[2] for name in modules)
    first, made, text, node = (
        source.text(enlarging),
        source.statement(enlarging),
        source.text(line),
        source.statement(line),
    )
    calls = [each for each in ast.walk(node or ast.Pass()) if head and _called(each).endswith(f".{head}")]
    call = calls[0] if len(calls) == 1 else None
    if not isinstance(call, ast.Call) or len(call.args) != 1:
        return ()
    inner, is_apart = call.args[0], enlarging != line
    enlarged = getattr(made, "value", None) if is_apart else inner
    is_known = _called(enlarged or inner).rpartition(".")[2] in ("interpolate", "upsample", interpolation)
    if not isinstance(enlarged, ast.Call) or not enlarged.args or not is_known:
        return ()
    before, after = (part.decode() for part in _sides(first, enlarged, enlarged.args[0]))
    applied = f"{_segment(text, call.func)}({_segment(first, enlarged.args[0])})"
    if not is_apart:
        return _edit(source, line, with_parts(text, [(call, f"{before}{applied}{after}")]))
    name = inner.id if isinstance(inner, ast.Name) else ""
    is_last_use = isinstance(node, ast.Return) or _target(node) == name  # else more may read the interpolated input
    if not name or not is_last_use or _target(made) != name or enlarging.line >= line.line:
        return ()
    swapped = with_parts(text, [(call, f"{before}{name}{after}")])
    return (*_edit(source, enlarging, with_parts(first, [(enlarged, applied)])), *_edit(source, line, swapped))


def _sides(text: str, outer: ast.AST, inner: ast.AST) -> tuple[bytes, bytes]:
    """Return what of a node is on both sides of a part of it."""
    (start, end), (first, last) = span(text, outer), span(text, inner)
    return text.encode()[start:first], text.encode()[last:end]


def without_gradients(source: OwnSource, line: Frame) -> Edits:
    """Return an assignment that is made without gradients."""
    text = source.text(line)
    return _edit(source, line, f"with torch.no_grad():\n    {text}") if _target(source.statement(line)) else ()


def frozen_for(source: OwnSource, line: Frame) -> Edits:
    """Return a statement that calls one model, which is frozen meanwhile."""
    text, node = source.text(line), source.statement(line)
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)] if node is not None else []
    models = {name for each in calls if (name := ast.unparse(each.func)).removeprefix("self.").isidentifier()}
    models -= {*dir(builtins)}
    if len(models) != 1 or not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr):
        return ()
    (name,) = models
    return _edit(source, line, f"{name}.requires_grad_(False)\n{text}\n{name}.requires_grad_(True)")


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def detached(source: OwnSource, made: Frame, used: Frame) -> Edits:
    """Return the use of a name that another line has assigned, with that name detached."""
    name, text, node = _target(source.statement(made)), source.text(used), source.statement(used)
    if node is None or not name.isidentifier():
        return ()
    uses = _outermost(
        node, lambda each: isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
    )
    return _edit(source, used, with_parts(text, [(each, f"{name}.detach()") for each in uses])) if uses else ()


def skipped(source: OwnSource, line: Frame) -> Edits:
    """Return a statement that adds a computed term times a coefficient, without the term while that is 0."""
    text, node = source.text(line), source.statement(line)
    match node:
        case ast.AugAssign(op=ast.Add() | ast.Sub(), value=term) if coefficient := _coefficient(term):
            return _edit(source, line, f"if {coefficient} != 0:\n    {text}")
        case (
            ast.Assign(value=ast.BinOp(left, ast.Add() | ast.Sub(), term) as whole)
            | ast.Return(value=ast.BinOp(left, ast.Add() | ast.Sub(), term) as whole)
        ) if coefficient := _coefficient(term):
            now = f"{_segment(text, whole)} if {coefficient} != 0 else {_segment(text, left)}"
            return _edit(source, line, with_parts(text, [(whole, now)]))
    return ()


def only_trained(source: OwnSource, line: Frame) -> Edits:
    """Return the statement of a loop over two models' parameters, for those alone that are trained."""
    text, loop = source.text(line), source.loop(line)
    match source.statement(loop), source.statement(line):
        case (
            ast.For(
                target=ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)]),
                iter=ast.Call(func=ast.Name(id="zip"), args=[one, other]),
            ),
            ast.Expr(value=ast.Call(func=function)),
        ) if all(ast.unparse(each).endswith(".parameters()") for each in (one, other)):
            moved = ast.unparse(function).partition(".")[0]
            trained = {first: second, second: first}.get(moved)
            return _edit(source, line, f"if {trained}.requires_grad:\n    {text}") if trained else ()
    return ()


def _coefficient(term: ast.expr) -> str:
    """Return the factor of a product that calls nothing, if the others do; "" for anything else."""
    factors = [term]
    while isinstance(factors[0], ast.BinOp) and isinstance(factors[0].op, ast.Mult):
        factors[:1] = [factors[0].left, factors[0].right]
    plain = [each for each in factors if not any(isinstance(one, ast.Call) for one in ast.walk(each))]
    is_known = len(plain) == 1 < len(factors) and isinstance(plain[0], ast.Name | ast.Attribute | ast.Subscript)
    return ast.unparse(plain[0]) if is_known else ""


def _outermost(node: ast.AST, wanted: Callable[[ast.AST], bool]) -> list[ast.expr]:
    """Return the expressions of a tree that are wanted, none of those within another."""
    if isinstance(node, ast.expr) and wanted(node):
        return [node]
    return [each for child in ast.iter_child_nodes(node) for each in _outermost(child, wanted)]


def all_names(node: ast.AST) -> frozenset[str]:
    """Return the names in a tree."""
    return frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def stored_names(node: ast.AST) -> frozenset[str]:
    """Return the names that a tree gives values to."""
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
    start, end = span(text, node)
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
    end = span(text, last)[1]
    raw = text.encode()
    return (raw[:end] + f", {name}=None".encode() + raw[end:]).decode()  # what else calls it computes it as before
