"""The call that stands for a norm written out in single operators, as its data flow and its lines show it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diagnose.model.dataflow import Dataflow, Operator
from diagnose.model.diagnosis import Facts
from diagnose.model.locations import Where
from diagnose.model.own_source import parsed_statement
from diagnose.model.shapes import num_elements

_AVERAGES = ("mean", "var", "std", "var_mean", "std_mean")
_MEANS = re.compile(rf"aten::({'|'.join(_AVERAGES)})\b")
_CENTRED = re.compile(r"aten::(sub_?|var|std|var_mean|std_mean)\b")
_SAMPLE = re.compile(r"aten::(var|std|var_mean|std_mean)\b")  # divides by n - 1 unless told otherwise


class _Reduced(NamedTuple):
    """What a mean is taken over."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    is_channels_last: bool


class Norm(NamedTuple):
    """What the operators of a norm show of it."""

    over: _Reduced
    is_centred: bool
    is_sample: bool  # its variance divides by n - 1
    parameters: Mapping[str, str]  # the attributes that hold "weight" and "bias", as far as they are known


def norm_of(flow: Dataflow, rows: Iterable[int]) -> Norm | None:
    """Return what the operators of a norm show of it, None if none of them takes a mean."""
    forward = [one for one in (flow.operators[i] for i in rows) if one.phase != "backward"]
    means = Counter(found for one in forward if _MEANS.match(one.name) and (found := _reduced(one)) is not None)
    if not means:
        return None
    over, _ = means.most_common(1)[0]
    # Weight and bias have the size of the last dimension if that is reduced, else that of the channels.
    num = over.shape[-1] if over.dims == (len(over.shape) - 1,) else over.shape[1]
    named = {
        what: name.rpartition(".")[2]
        for what, operator in (("weight", "mul"), ("bias", "add"))
        if (name := _parameter(flow, forward, operator, num))
    }
    is_centred = any(_CENTRED.match(one.name) for one in forward)
    is_sample = any(_SAMPLE.match(one.name) and "correction=0" not in one.attributes for one in forward)
    return Norm(over, is_centred, is_sample, named)


def _reduced(one: Operator) -> _Reduced | None:
    read, written = one.reads[0], one.writes[-1]
    if len(written.shape) == len(read.shape):
        dims = tuple(d for d, (a, b) in enumerate(zip(read.shape, written.shape, strict=True)) if a != b)
    else:
        given = re.search(r"dim=[\[(]?([-\d, ]+)", one.attributes)
        numbers = [int(n) for n in re.findall(r"-?\d+", given[1])] if given else []
        dims = tuple(sorted(n % len(read.shape) for n in numbers))
    return _Reduced(read.shape, dims, len(read.stride) > 2 and read.stride[1] == 1) if dims else None


def _parameter(flow: Dataflow, forward: Iterable[Operator], operator: str, num: int) -> str:
    uses = (use for one in forward if re.match(rf"aten::{operator}_?\b", one.name) for use in one.reads)
    values = (flow.values[use.value] for use in uses if num_elements(use.shape) == num)
    return next((value.name for value in values if value.role == "parameter"), "")


def call_facts(norm: Norm, where: Sequence[Where]) -> Facts:
    """Return the texts of an advice on a norm: its operator, what it reduces, and the call with the script's names.

    Nothing where no operator of torch reduces that.
    """
    (shape, dims, is_channels_last), names = norm.over, _Names(where, norm.parameters)
    made = _call(shape, dims, names, is_centred=norm.is_centred)
    if made is None:
        return {}
    operator, call = made
    what = "mean and variance" if norm.is_centred else "mean of the squares"
    over = f"dimension {dims[0]}" if len(dims) == 1 else f"dimensions {', '.join(map(str, dims))}"
    needs = ["the variance with n in the divisor, not n - 1"] if norm.is_sample else []
    if "permute" in call and not is_channels_last:
        needs.append("memory in channels_last, or the permuted view is copied")
    comment = f"# {what} over {over} of {list(shape)}{names.affine}"
    return {
        "operator": operator,
        "over": over,
        "after": f"from torch.nn import functional as F\n\n{comment}\ny = {call}",
        "before": "\n".join(w.code for w in sorted(where, key=lambda w: (w.file or "", w.line or 0)) if w.code),
        "needs": "; ".join(needs),
    }


class _Names:
    """The script's names of what a norm takes, as its lines have them."""

    def __init__(self, where: Sequence[Where], parameters: Mapping[str, str]) -> None:
        code = [w.code or "" for w in sorted(where, key=lambda w: (w.file or "", w.line or 0))]
        trees = [tree for text in code if (tree := parsed_statement(text)) is not None]
        self.x = next((name for tree in trees if (name := _averaged(tree))), "x")
        self.eps = next((name for tree in trees if (name := _epsilon(tree))), "1e-5")
        self._parameters, self._text = parameters, "\n".join(code)
        self.affine = "" if parameters else "; then weight and bias, if there are any"

    def of(self, what: str) -> str:
        """Return the weight or the bias; "None" where the norm has none."""
        name = self._parameters.get(what, "None")
        return f"self.{name}" if f"self.{name}" in self._text else name


def _averaged(tree: ast.AST) -> str:
    """Return the name of what a line takes a mean or variance of, "" if it takes none."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    found = (_root(node) for node in calls if ast.unparse(node.func).rpartition(".")[2] in _AVERAGES)
    return next(filter(None, found), "")


def _root(node: ast.expr) -> str:
    """Return the name that a chain of calls and powers begins with."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_function = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F")
            if is_function and not node.args:
                return ""
            node = node.args[0] if is_function else node.func.value
        elif isinstance(node, ast.BinOp):
            node = node.left
        elif isinstance(node, ast.Attribute):
            return ast.unparse(node)
        else:
            return ""
    return node.id


def _epsilon(tree: ast.AST) -> str:
    """Return what a line adds before it takes a root: a name with "eps" in it, or a small number."""
    added = [node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)]
    for node in added:
        is_small = isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < 0.01
        if is_small or (isinstance(node, ast.Name | ast.Attribute) and "eps" in ast.unparse(node)):
            return ast.unparse(node)
    return ""


def _call(shape: tuple[int, ...], dims: tuple[int, ...], names: _Names, *, is_centred: bool) -> tuple[str, str] | None:
    """Return torch's operator for a norm over some dimensions, and its call; None where there is none."""
    x, weight, bias, eps = names.x, names.of("weight"), names.of("bias"), names.eps
    rest = tuple(range(2, len(shape)))
    operator = "F.layer_norm" if is_centred else "F.rms_norm"
    affine = f"{weight}, {bias}, {eps}" if is_centred else f"{weight}, {eps}"
    if rest and dims == rest and len(rest) > 1 and is_centred:
        return "F.instance_norm", f"F.instance_norm({x}, weight={weight}, bias={bias}, eps={eps})"
    if dims == tuple(range(dims[0], len(shape))) and (dims[0] > 1 or len(shape) < 3):
        return operator, f"{operator}({x}, {x}.shape[-{len(dims)}:], {affine})"
    if dims == (1,):
        to, back = (0, *rest, 1), (0, len(shape) - 1, *(d - 1 for d in rest))
        size = f"{weight}.shape" if weight != "None" else f"{x}.shape[1:2]"
        moved = f"{x}.permute({', '.join(map(str, to))})"
        return operator, f"{operator}({moved}, {size}, {affine}).permute({', '.join(map(str, back))})"
    if dims == (1, *rest) and is_centred:
        return "F.group_norm", f"F.group_norm({x}, 1, {weight}, {bias}, {eps})"
    if dims == (0, *rest) and is_centred:
        return "F.batch_norm", f"F.batch_norm({x}, None, None, {weight}, {bias}, training=True, eps={eps})"
    return None
