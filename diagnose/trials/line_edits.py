"""Edits of single lines in a syntax tree: a call left out, a tensor made on the device, a masked result kept there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from diagnose.trials.replaced_calls import with_calls

__all__ = [
    "with_device_argument",
    "with_gradients_set_to_none",
    "with_masked_results",
    "without_contiguous",
    "without_synchronize",
]

_SYNCHRONIZE = m.Expr(m.Call(func=m.Attribute(attr=m.Name("synchronize"))))
_CONTIGUOUS = m.Call(func=m.Attribute(attr=m.Name("contiguous")), args=[])
# Operators of torch that make the same tensor on every device.
_MADE = ("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "zeros")
_MADE_BY_TORCH = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.OneOf(*map(m.Name, _MADE))))
_MOVED = m.Call(func=m.Attribute(value=_MADE_BY_TORCH, attr=m.Name("to") | m.Name("cuda")))
_MASKS = m.Name() | m.Attribute() | m.Comparison() | m.UnaryOperation(operator=m.BitInvert()) | m.BinaryOperation(
    operator=m.BitAnd() | m.BitOr() | m.BitXor()
)  # fmt: skip
_MASKED = m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=_MASKS))])
_REDUCED = m.Call(func=m.Attribute(value=_MASKED, attr=m.Name("mean") | m.Name("sum")), args=[])
_NUMBER = m.Integer() | m.Float() | m.UnaryOperation(operator=m.Minus(), expression=m.Integer() | m.Float())
_TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def without_synchronize(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave out the calls of ``synchronize()`` that are these lines (1-based), whose result nothing takes."""
    return _edited(tree, _WithoutSynchronize(lines), "is not a call of synchronize() by itself")


def without_contiguous(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave ``.contiguous()`` out of these lines (1-based); an operator that needs it then fails."""
    return _edited(tree, _WithoutContiguous(lines), "calls no contiguous()")


def with_gradients_set_to_none(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every ``zero_grad`` that fills gradients with zeros set them to None, as torch does by itself."""
    false = m.Name("False")
    fills = m.Call(args=[m.Arg(value=false, keyword=None) | m.Arg(value=false, keyword=m.Name("set_to_none"))])
    return with_calls(
        tree, ("zero_grad",), lambda call: call.with_changes(args=[]) if m.matches(call, fills) else "", "that fills"
    )


def with_device_argument(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Make on the device what these lines (1-based) make and then copy there.

    ``torch.zeros(n).to(device)`` becomes ``torch.zeros(n, device=device)``. Random numbers are left alone, since a
    device draws others, and so are tensors of the script's own values, which are copied either way.
    """
    return _edited(tree, _OnDevice(lines), "makes no tensor that torch could make on the device")


def with_masked_results(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Compute on all elements what these lines (1-based) compute on those that a mask chooses.

    ``x[mask].mean()`` becomes ``indexing.masked_mean(x, mask)``, and ``x[mask] = 0`` an `assign_where`. Those raise
    TypeError where the mask is none, but an index.
    """
    return _edited(tree, _Masked(lines), "neither reduces nor assigns what a mask chooses")


def _edited(tree: cst.Module, editor: _AtLines, why: str) -> tuple[cst.Module, str]:
    changed = MetadataWrapper(tree).visit(editor)
    if editor.count:
        return changed, ""
    where = ", ".join(map(str, sorted(editor.lines))) or "unknown"
    return tree, f"line {where} of the script {why}, so its author must decide"


class _AtLines(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, lines: Sequence[int]) -> None:
        super().__init__()
        self.lines = frozenset(lines)
        self.count = 0

    def asked(self, node: cst.CSTNode) -> bool:
        """Return whether the node stands in one of the lines, and count it."""
        at = self.get_metadata(PositionProvider, node)
        found = any(at.start.line <= line <= at.end.line for line in self.lines)
        self.count += found
        return found


class _WithoutSynchronize(_AtLines):
    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        kept = [part for part in updated_node.body if not m.matches(part, _SYNCHRONIZE)]
        if len(kept) == len(updated_node.body) or not self.asked(original_node):
            return updated_node
        if not kept:
            return cst.RemoveFromParent()  # a block that is left empty gets a `pass`
        return updated_node.with_changes(body=[*kept[:-1], kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


class _WithoutContiguous(_AtLines):
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if not m.matches(updated_node, _CONTIGUOUS) or not self.asked(original_node):
            return updated_node
        assert isinstance(updated_node.func, cst.Attribute), "as matched"
        return updated_node.func.value


class _OnDevice(_AtLines):
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        device = _device_of(updated_node) if m.matches(updated_node, _MOVED) else None
        made: Any = updated_node.func.value if isinstance(updated_node.func, cst.Attribute) else None
        if device is None or any(arg.star or (arg.keyword and arg.keyword.value == "device") for arg in made.args):
            return updated_node
        if not self.asked(original_node):
            return updated_node
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        before = [*made.args[:-1], made.args[-1].with_changes(comma=comma)] if made.args else []
        return cst.ensure_type(made.with_changes(args=[*before, _keyword("device", device)]), cst.Call)


def _device_of(call: cst.Call) -> cst.BaseExpression | None:
    """Return the device that ``.to(…)`` or ``.cuda()`` names, None where it may be a dtype or another tensor."""
    assert isinstance(call.func, cst.Attribute), "as matched"
    if call.func.attr.value == "cuda":
        return None if call.args else cst.SimpleString('"cuda"')
    first = next((a for a in call.args if not a.keyword or a.keyword.value == "device"), None)
    others = [a for a in call.args if a is not first and not (a.keyword and a.keyword.value == "non_blocking")]
    if first is None or others:
        return None
    named = bool(m.findall(first.value, m.Name(m.MatchRegex(".*(device|dev|gpu).*"))))
    return first.value if named or m.matches(first.value, m.SimpleString()) or first.keyword else None


class _Masked(_AtLines):
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if not m.matches(updated_node, _REDUCED) or not self.asked(original_node):
            return updated_node
        function: Any = updated_node.func
        return _called(f"masked_{function.attr.value}", *_parts(function.value))

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign | cst.Expr:
        target = updated_node.targets[0].target
        if len(updated_node.targets) > 1 or not m.matches(target, _MASKED):
            return updated_node
        source, mask = _parts(target)
        value = _each(updated_node.value, mask)
        if value is None or not self.asked(original_node):
            return updated_node
        return cst.Expr(_called("assign_where", source, mask, value))


def _each(value: cst.BaseExpression, mask: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what is assigned at each place: a number, or the tensor of which the same mask chooses."""
    if m.matches(value, _NUMBER):
        return value
    if not m.matches(value, _MASKED):
        return None
    source, same = _parts(value)
    return source if same.deep_equals(mask) else None


def _parts(subscript: Any) -> tuple[cst.BaseExpression, cst.BaseExpression]:  # a Subscript, as matched
    return subscript.value, subscript.slice[0].slice.value


def _called(name: str, *values: cst.BaseExpression) -> cst.Call:
    function = cst.Attribute(cst.Name("indexing"), cst.Name(name))
    return cst.Call(function, [cst.Arg(value) for value in values])


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    return cst.Arg(value, cst.Name(name), _TIGHT)
