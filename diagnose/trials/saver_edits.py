"""The edit of a syntax tree that lets a thread write checkpoints, and waits for it where the script needs the file."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from diagnose.trials.replaced_calls import with_calls

__all__ = ["with_background_saver"]

_SAVE = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("save")))
_IMPORT = m.Import() | m.ImportFrom()
# What reads, moves or removes files, by its name alone: an unneeded wait returns at once.
_OF_TORCH = m.Attribute(value=m.Name("torch"), attr=m.Name("load"))
_OF_SHUTIL = m.Attribute(value=m.Name("shutil"))
_OF_OS = m.Attribute(
    value=m.Name("os"), attr=m.OneOf(*map(m.Name, ("replace", "rename", "remove", "unlink", "link", "symlink")))
)
_OF_A_PATH = m.Attribute(attr=m.OneOf(*map(m.Name, ("unlink", "rmdir", "read_bytes"))))
_MOVES_A_PATH = m.Attribute(attr=m.OneOf(m.Name("rename"), m.Name("replace")))  # that of a str takes two
_USES_FILES = m.Call(func=_OF_TORCH | _OF_SHUTIL | _OF_OS | _OF_A_PATH) | m.Call(
    func=_MOVES_A_PATH, args=[m.Arg(keyword=None, star="")]
)
_TEMPORARY = m.Call(func=m.Name("TemporaryDirectory") | m.Attribute(attr=m.Name("TemporaryDirectory")))


def with_background_saver(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every `torch.save` be a `BackgroundSaver`'s; the end of the program waits for it, and what uses the files."""
    if "BackgroundSaver" in tree.code:
        return tree, "the script uses BackgroundSaver itself"

    def change(call: cst.Call) -> cst.Call | str:
        if not m.matches(call, _SAVE):
            return ""
        if len(call.args) != 2 or any(arg.keyword or arg.star for arg in call.args):
            return "its torch.save has options, or its arguments have names"
        return call.with_changes(func=cst.parse_expression("_saver.save"))

    changed, why = with_calls(tree, ("save",), change)
    if why:
        return tree, why
    at = _line_after_imports(changed)
    waits = _Waits()
    later = cst.Module(changed.body[at:]).visit(waits).body
    # What runs before the saver is made waits for nothing; a function that stands there runs later.
    before = [
        line.visit(waits) if m.matches(line, m.FunctionDef() | m.ClassDef()) else line for line in changed.body[:at]
    ]
    if waits.why:
        return tree, waits.why
    made = cst.parse_module("import atexit\n_saver = BackgroundSaver()\natexit.register(_saver.close)\n").body
    return changed.with_changes(body=[*before, *made, *later]), ""


def _line_after_imports(tree: cst.Module) -> int:
    imports = [i for i, line in enumerate(tree.body) if m.matches(line, m.SimpleStatementLine(body=[_IMPORT]))]
    return imports[-1] + 1 if imports else int(tree.get_docstring() is not None)


def _wait() -> cst.Expr:
    return cst.Expr(cst.parse_expression("_saver.wait()"))


class _Waits(cst.CSTTransformer):
    """Puts a wait before each statement that uses files, and at the end of what a temporary folder lives for."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        del original_node
        if not m.findall(updated_node, _USES_FILES):
            return updated_node
        line = cst.SimpleStatementLine([_wait()], leading_lines=updated_node.leading_lines)
        return cst.FlattenSentinel([line, updated_node.with_changes(leading_lines=())])

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        del original_node
        if not m.findall(updated_node, _USES_FILES):
            return updated_node
        return updated_node.with_changes(body=[_wait(), *updated_node.body])

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> cst.With:
        del original_node
        if not any(m.matches(item.item, _TEMPORARY) for item in updated_node.items):
            return updated_node
        body = updated_node.body
        last = _wait() if isinstance(body, cst.SimpleStatementSuite) else cst.SimpleStatementLine([_wait()])
        return updated_node.with_changes(body=body.with_changes(body=[*body.body, last]))

    def visit_If(self, node: cst.If) -> None:
        self._look(node.test)

    def visit_While(self, node: cst.While) -> None:
        self._look(node.test)

    def visit_For(self, node: cst.For) -> None:
        self._look(node.iter)

    def visit_WithItem(self, node: cst.WithItem) -> None:
        self._look(node.item)

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._look(node.body)

    def _look(self, head: cst.CSTNode) -> None:
        if m.findall(head, _USES_FILES):
            self.why = "it reads or moves files in the head of a statement, where no line can wait for the last one"
