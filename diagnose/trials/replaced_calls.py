"""Calls of a script that are replaced by others, by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

__all__ = ["with_calls"]


def with_calls(
    tree: cst.Module, names: Sequence[str], change: Callable[[cst.Call], cst.Call | str], how: str = "itself"
) -> tuple[cst.Module, str]:
    """Replace the calls of these names; ``change`` returns the new call, or why not ("" for one that is not meant)."""
    editor = _Calls(frozenset(names), change)
    changed = tree.visit(editor)
    if editor.count and not editor.why:
        return changed, ""
    called = " or ".join(names[:3])
    return tree, editor.why or f"the script calls no {called} {how}{' itself' if how != 'itself' else ''}"


class _Calls(cst.CSTTransformer):
    def __init__(self, names: frozenset[str], change: Callable[[cst.Call], cst.Call | str]) -> None:
        super().__init__()
        self.names, self.change = names, change
        self.count, self.why = 0, ""

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        del original_node
        func = updated_node.func
        name = func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""
        changed = self.change(updated_node) if name in self.names else ""
        if isinstance(changed, str):
            self.why = self.why or changed
            return updated_node
        self.count += 1
        return changed
