"""Edits of a syntax tree that leave values on the device which a line reads only to keep them."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

__all__ = ["assigned_names", "with_kept_values"]

_ITEM = m.Call(func=m.Attribute(attr=m.Name("item")), args=[])


def assigned_names(line: cst.CSTNode) -> set[str]:
    """Return the names that a statement, or one within it, assigns."""
    targets = [node.target for node in m.findall(line, m.AssignTarget() | m.AugAssign()) if hasattr(node, "target")]
    return {n.value for target in targets for n in m.findall(target, m.Name()) if isinstance(n, cst.Name)}


def with_kept_values(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave on the device what these lines (1-based) read with ``.item()`` only to add it up or keep it.

    ``total += loss.item()`` becomes ``total = total + loss.detach()``, ``last = loss.item()`` becomes ``last =
    loss.detach()``: the same number, of which a later ``print`` or ``float()`` waits once.
    """
    augmented = {name for node in m.findall(tree, m.AugAssign()) for name in assigned_names(node)}
    wrapper = MetadataWrapper(tree)
    editor = _Kept(frozenset(lines), frozenset(augmented))
    changed = wrapper.visit(editor)
    if editor.count:
        return changed, ""
    where = ", ".join(map(str, sorted(lines))) or "unknown"
    return tree, f"line {where} of the script neither adds the value up nor only keeps it, so its author must decide"


class _Kept(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, lines: frozenset[int], augmented: frozenset[str]) -> None:
        super().__init__()
        self.lines, self.augmented = lines, augmented
        self.count = 0

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> cst.AugAssign | cst.Assign:
        operators = {cst.AddAssign: cst.Add, cst.SubtractAssign: cst.Subtract}
        operator = operators.get(type(updated_node.operator))
        value = self._kept(updated_node.value)
        if operator is None or value is None or not self._asked(original_node):
            return updated_node
        self.count += 1
        if isinstance(value, cst.BinaryOperation) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        added = cst.BinaryOperation(updated_node.target, operator(), value)
        return cst.Assign([cst.AssignTarget(updated_node.target)], added)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        value = self._kept(updated_node.value)
        names = [target.target for target in updated_node.targets]
        plain = all(isinstance(name, cst.Name) and name.value not in self.augmented for name in names)
        if value is None or not plain or not self._asked(original_node):
            return updated_node
        self.count += 1
        return updated_node.with_changes(value=value)

    def _asked(self, node: cst.CSTNode) -> bool:
        at = self.get_metadata(PositionProvider, node)
        return any(at.start.line <= line <= at.end.line for line in self.lines)

    def _kept(self, value: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the arithmetic with its values left on the device, None where it reads none."""
        if m.matches(value, _ITEM):
            return value.with_deep_changes(value.func.attr, value="detach")  # type: ignore[attr-defined]  # as matched
        if isinstance(value, cst.UnaryOperation):
            inner = self._kept(value.expression)
            return None if inner is None else value.with_changes(expression=inner)
        if isinstance(value, cst.BinaryOperation):
            left, right = self._kept(value.left), self._kept(value.right)
            if left is not None or right is not None:
                return value.with_changes(left=left or value.left, right=right or value.right)
        return None
