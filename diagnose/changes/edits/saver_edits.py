"""The edit of a syntax tree that lets a thread write checkpoints, and waits for it before what may use the file.

Each statement is looked at in the states in which it may be reached: branches, loops, handlers and the functions of the
file are followed until nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import libcst as cst
from libcst import matchers as m

from diagnose.changes.edits.script_calls import ScriptCalls, calls_in
from diagnose.changes.save_in_background import NO_OVERLAP

__all__ = ["with_background_saver"]

_IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
_IMPORTS_TORCH = m.ImportAlias(name=m.Name("torch"), asname=None)
_MAKES_SAVER = "from diagnose.kernels.saving import BackgroundSaver\n_saver = BackgroundSaver()\n"
_SAVE = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("save")))
_MAY_NOT_RUN = m.BooleanOperation() | m.IfExp() | m.CompFor() | m.Lambda()
_MIXED = "one statement saves, and then calls what may use the file"
_HEAD = "it may use files in the head of a loop, where no line can wait for the last one"


def with_background_saver(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every `torch.save` be a `BackgroundSaver`'s; what may use the files waits for it, and so does the end."""
    for name, why in (("BackgroundSaver", "uses BackgroundSaver"), (r"\b_saver\b", "has a name _saver")):
        if re.search(name, tree.code):
            return tree, f"the script {why} itself"
    imports = [m.matches(line, _IMPORT) for line in tree.body]
    torch = next((i for i, line in enumerate(tree.body) if imports[i] and m.findall(line, _IMPORTS_TORCH)), None)
    if torch is None:
        return tree, "the script does not import torch at its top"
    at = next((i for i in range(torch, len(imports)) if not imports[i]), len(imports))  # after the imports there
    script, saves = ScriptCalls(tree), [call for call in m.findall(tree, _SAVE) if isinstance(call, cst.Call)]
    saves = [call for call in saves if not (call.args and script.is_buffer(call.args[-1].value))]
    if not saves:
        return tree, "the script calls no torch.save to a path itself"
    if any(len(call.args) != 2 or any(arg.keyword or arg.star for arg in call.args) for call in saves):
        return tree, "its torch.save has options, or its arguments have names"
    found = _Flow(tree, script, set(saves)).followed()
    if found.why:
        return tree, found.why
    changed = cst.ensure_type(tree.visit(_Editor(found)), cst.Module)
    made = cst.parse_module(_MAKES_SAVER).body
    return changed.with_changes(body=[*changed.body[:at], *made, *changed.body[at:]]), ""


class _Editor(cst.CSTTransformer):
    """Replaces the calls, and puts the waits where they were found to be needed."""

    def __init__(self, found: _Waits) -> None:
        super().__init__()
        self.found = found

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:  # libcst has no narrower type
        updated: Any = super().on_leave(original_node, updated_node)
        if original_node in self.found.saves:
            return updated.with_changes(func=cst.parse_expression("_saver.save"))
        if original_node in self.found.at_end:
            inner = updated.body if isinstance(updated.body, cst.BaseSuite) else updated
            is_line = isinstance(inner, cst.SimpleStatementSuite)
            inner = inner.with_changes(body=[*inner.body, _wait() if is_line else cst.SimpleStatementLine([_wait()])])
            updated = inner if isinstance(updated, cst.Module) else updated.with_changes(body=inner)
        if original_node not in self.found.before:
            return updated
        if isinstance(updated, cst.SimpleStatementSuite):
            return updated.with_changes(body=[_wait(), *updated.body])
        line = cst.SimpleStatementLine([_wait()], leading_lines=updated.leading_lines)
        return cst.FlattenSentinel([line, updated.with_changes(leading_lines=())])


def _wait() -> cst.Expr:
    return cst.Expr(cst.parse_expression("_saver.wait()"))


class _State(IntEnum):
    """Whether a file may still be written when a statement is reached."""

    CLEAN = 0
    ASSUMED = 1  # others may call this function at any time
    PENDING = 2


@dataclass
class _Waits:
    """What an edit does: calls that become the saver's, statements with a wait before them, bodies with one at the end.

    ``why`` is why the edit cannot be made, "" if it can.
    """

    saves: set[cst.CSTNode] = field(default_factory=set)
    before: set[cst.CSTNode] = field(default_factory=set)
    at_end: set[cst.CSTNode] = field(default_factory=set)
    why: str = ""


class _Head(NamedTuple):
    """What the expressions of a statement do before its body runs."""

    calls: Sequence[cst.Call]
    is_mixed: bool  # something else runs after what saves
    uses_files: bool
    yields: bool
    is_certain: bool  # all of it runs


class _Flow:
    def __init__(self, tree: cst.Module, script: ScriptCalls, saves: set[cst.CSTNode]) -> None:
        self._tree, self._script, self._called = tree, script, script.called
        self._found = _Waits(saves)
        self._functions = [f for f in m.findall(tree, m.FunctionDef()) if isinstance(f, cst.FunctionDef)]
        self._generators = {f for f in self._functions if any(_yields(line) for line in f.body.body)}
        self._saving = self._functions_that_save()
        self._after: dict[tuple[cst.FunctionDef, _State], _State] = {}
        self._shared: set[cst.FunctionDef] = set()  # others call them too: no file is left to write at their end
        self._settled: int | None = None  # depth of loops at which a block starts that no pending file may leave
        self._heads: dict[cst.CSTNode, _Head] = {}
        self._loops: list[list[_State]] = []
        self._returned: list[_State] = []
        self._overlaps = False
        self._is_saving = False  # the function that is followed

    def followed(self) -> _Waits:
        """Follow the program from its first line, then what others call, and return the waits."""
        script = self._script
        self._until_stable()
        known = {f for f, _ in self._after if script.is_known(f)} - self._generators
        self._shared = set(self._functions) - known
        self._found, self._overlaps = _Waits(self._found.saves), False
        for function in self._shared:
            is_called = script.is_handed_on(function) or function in self._generators
            at_any_time = is_called and not script.serves_loader_or_model(function)
            for state in {_State.CLEAN, _State.ASSUMED if at_any_time else _State.CLEAN}:
                self._after.setdefault((function, state), _State.CLEAN)
        if self._until_stable() is _State.PENDING:
            self._found.at_end.add(self._tree)
        if not self._overlaps:
            self._refuse(NO_OVERLAP)
        return self._found

    def _until_stable(self) -> _State:
        while True:
            before = dict(self._after)
            end = self._block(self._tree, _State.CLEAN)
            for function, state in before:
                self._after[function, state] = self._function(function, state)
            if self._after == before:
                return end

    def _function(self, function: cst.FunctionDef, state: _State) -> _State:
        self._settled = 0 if function in self._shared & self._saving else None
        self._returned, self._is_saving = [_State.CLEAN], function in self._saving
        end = self._block(function.body, state)
        if self._settled is not None and end is _State.PENDING:
            self._found.at_end.add(function)
            end = _State.CLEAN
        self._settled = None
        return max(end, *self._returned)

    def _refuse(self, why: str) -> None:
        self._found.why = self._found.why or why

    def _block(self, body: cst.BaseSuite | cst.Module, state: _State) -> _State:
        if isinstance(body, cst.SimpleStatementSuite):
            return self._line(body, state)
        for statement in body.body:
            state = self._statement(statement, state)
        return state

    def _statement(self, node: cst.CSTNode, state: _State) -> _State:
        follow: Mapping[type, Callable[[Any, _State], _State]] = {
            cst.SimpleStatementLine: self._line, cst.If: self._if, cst.For: self._loop, cst.While: self._loop,
            cst.With: self._with, cst.Try: self._try, cst.TryStar: self._try, cst.Match: self._match,
            cst.ClassDef: self._class,
        }  # fmt: skip
        if type(node) in follow:
            return follow[type(node)](node, state)
        assert isinstance(node, cst.FunctionDef), "no further statement has a body"
        return self._head(node, [*node.decorators, node.params], state)

    def _match(self, node: cst.Match, state: _State) -> _State:
        state = self._head(node, [node.subject, *(case.guard for case in node.cases if case.guard)], state)
        return max(state, *(self._block(case.body, state) for case in node.cases))

    def _class(self, node: cst.ClassDef, state: _State) -> _State:
        return self._block(node.body, self._head(node, [*node.decorators, *node.bases, *node.keywords], state))

    def _line(self, node: cst.SimpleStatementLine | cst.SimpleStatementSuite, state: _State) -> _State:
        state, last = self._head(node, node.body, state), node.body[-1]
        if not isinstance(last, cst.Return | cst.Raise | cst.Break | cst.Continue):
            return state
        if state is _State.PENDING and self._leaves_settled(last):
            if any(call in self._found.saves or self._called(call) for call in calls_in(node)):
                self._refuse(_MIXED)
            self._found.before.add(node)
            state = _State.CLEAN
        (self._returned if isinstance(last, cst.Return | cst.Raise) else self._loops[-1]).append(state)
        return _State.CLEAN  # the next line is not reached from here

    def _leaves_settled(self, jump: cst.CSTNode) -> bool:
        if self._settled is None or isinstance(jump, cst.Raise):
            return False
        return isinstance(jump, cst.Return) or len(self._loops) <= self._settled

    def _if(self, node: cst.If, state: _State) -> _State:
        branches = [node]
        while isinstance(branches[-1].orelse, cst.If):
            branches.append(branches[-1].orelse)
        state = self._head(node, [branch.test for branch in branches], state)  # no line can wait before an elif
        ends = [self._block(branch.body, state) for branch in branches]
        orelse = branches[-1].orelse
        return max(*ends, self._block(orelse.body, state) if orelse is not None else state)

    def _loop(self, node: cst.For | cst.While, state: _State) -> _State:
        head = [node.iter if isinstance(node, cst.For) else node.test]
        around = self._head(node, head, state)
        while True:
            self._loops.append([around])
            end = self._block(node.body, around)
            end = max(end, *self._loops.pop())
            if isinstance(node, cst.While):
                if end and self._may_use_files(self._looked_at(node, head)):
                    self._refuse(_HEAD)
                end = max(end, self._head(node, head, end))
            if end <= around:
                break
            around = end
        return max(around, self._block(node.orelse.body, around)) if node.orelse else around

    def _with(self, node: cst.With, state: _State) -> _State:
        items = [item.item for item in node.items]
        state = self._head(node, items, state)
        if not self._may_use_files(self._looked_at(node, items)) and all(
            isinstance(i, cst.Call) or self._script.is_plain(i) for i in items
        ):
            return self._block(node.body, state)
        outer, self._settled = self._settled, len(self._loops)  # its end may use files
        end = self._block(node.body, state)
        self._settled = outer
        if end is not _State.PENDING:
            return end
        self._found.at_end.add(node)
        return _State.CLEAN

    def _try(self, node: cst.Try | cst.TryStar, state: _State) -> _State:
        end = self._block(node.body, state)
        latest = max(state, end, _State.ASSUMED if _yields(node.body) else state)  # when anything in it may have failed
        if any(map(self._saves, calls_in(node.body))):
            latest = _State.PENDING
        handled = [self._block(handler.body, latest) for handler in node.handlers]
        end = self._block(node.orelse.body, end) if node.orelse else end
        if node.finalbody is not None:
            return self._block(node.finalbody.body, max(latest, end, *handled))
        return max(end, *handled)

    def _head(self, node: cst.CSTNode, parts: Sequence[cst.CSTNode], state: _State) -> _State:
        """Return the state after the expressions of a statement; note a wait before it if they may use a file."""
        head = self._looked_at(node, parts)
        if head.is_mixed:
            self._refuse(_MIXED)
        if state and self._may_use_files(head):
            self._found.before.add(node)
            state = _State.CLEAN
        for call in head.calls:
            if call in self._found.saves:
                state = _State.PENDING
            elif (function := self._called(call)) is not None and function not in self._generators:
                after = self._after.setdefault((function, state), _State.CLEAN)
                state = after if head.is_certain else max(after, state)
            elif state is _State.PENDING and self._script.computes(call):
                self._overlaps = True
        return max(state, _State.ASSUMED) if head.yields else state

    def _may_use_files(self, head: _Head) -> bool:
        return head.uses_files or (head.yields and self._is_saving)

    def _looked_at(self, node: cst.CSTNode, parts: Sequence[cst.CSTNode]) -> _Head:
        if node not in self._heads:
            calls = [call for part in parts for call in calls_in(part)]
            saving = [call for call in calls if self._saves(call)]
            unknown = [call for call in calls if self._is_unknown(call)]
            hands_over = m.Await() | m.Import() | m.ImportFrom()
            self._heads[node] = _Head(
                calls=calls,
                is_mixed=bool(saving) and any(not any(one in calls_in(call) for call in saving) for one in unknown),
                uses_files=bool(unknown) or any(m.findall(part, hands_over) for part in parts),
                yields=any(map(_yields, parts)),
                is_certain=not any(m.findall(part, _MAY_NOT_RUN) for part in parts),
            )
        return self._heads[node]

    def _is_unknown(self, call: cst.Call) -> bool:
        return call not in self._found.saves and self._called(call) is None and not self._script.is_harmless(call)

    def _saves(self, call: cst.Call) -> bool:
        return call in self._found.saves or self._called(call) in self._saving

    def _functions_that_save(self) -> set[cst.FunctionDef]:
        found: set[cst.FunctionDef] = set()
        calls = {f: [c for c in m.findall(f, m.Call()) if isinstance(c, cst.Call)] for f in self._functions}
        while True:
            more = {
                function
                for function, each in calls.items()
                if any(call in self._found.saves or self._called(call) in found for call in each)
            }
            if more == found:
                return found
            found = more


def _yields(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Yield) or any(
        _yields(child) for child in node.children if not isinstance(child, cst.FunctionDef | cst.ClassDef | cst.Lambda)
    )
