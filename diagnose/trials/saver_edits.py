"""The edit of a syntax tree that lets a thread write checkpoints, and waits for it before what may use the file."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst
from libcst import matchers as m

from diagnose.trials.saver_flow import Waits, find_waits

__all__ = ["with_background_saver"]

_IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
_MAKES_SAVER = "from diagnose.kernels.saving import BackgroundSaver\n_saver = BackgroundSaver()\n"


def with_background_saver(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every `torch.save` be a `BackgroundSaver`'s; what may use the files waits for it, and so does the end."""
    if "BackgroundSaver" in tree.code:
        return tree, "the script uses BackgroundSaver itself"
    if re.search(r"\b_saver\b", tree.code):
        return tree, "the script has a name _saver itself"
    at = _line_after_torch(tree)
    if at == 0:
        return tree, "the script does not import torch at its top"
    found = find_waits(tree)
    if found.why:
        return tree, found.why
    changed = cst.ensure_type(tree.visit(_Editor(found)), cst.Module)
    made = cst.parse_module(_MAKES_SAVER).body
    return changed.with_changes(body=[*changed.body[:at], *made, *changed.body[at:]]), ""


def _line_after_torch(tree: cst.Module) -> int:
    """Return the line after the imports of which one is torch's, 0 if there is none."""
    first = next((i for i, line in enumerate(tree.body) if m.matches(line, _IMPORT) and _imports_torch(line)), None)
    if first is None:
        return 0
    return next((i for i in range(first, len(tree.body)) if not m.matches(tree.body[i], _IMPORT)), len(tree.body))


def _imports_torch(line: cst.CSTNode) -> bool:
    return any(
        isinstance(alias.name, cst.Name) and alias.name.value == "torch" and alias.asname is None
        for alias in m.findall(line, m.ImportAlias())
        if isinstance(alias, cst.ImportAlias)
    )


class _Editor(cst.CSTTransformer):
    """Replaces the calls, and puts the waits where they were found to be needed."""

    def __init__(self, found: Waits) -> None:
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
