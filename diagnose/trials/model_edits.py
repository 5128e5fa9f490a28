"""The edit of a syntax tree that compiles the model behind the line that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

__all__ = ["parameters_of", "with_compiled_model"]

_PARAMETERS = m.Call(func=m.Attribute(attr=m.Name("parameters") | m.Name("named_parameters")), args=[])
_MADE = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.Call())])
# What wraps the model and has an order of its own with compiling.
_WRAPPERS = ("DistributedDataParallel", "DDP(", "FSDP", "fully_shard", "DataParallel(", ".prepare(", ".setup(")
_OF_TORCH = ("nn.", "torch.nn.", "Sequential")


def parameters_of(tree: cst.Module) -> set[str]:
    """Return the expressions whose parameters the script asks for."""
    calls = [call for call in m.findall(tree, _PARAMETERS) if isinstance(call, cst.Call)]
    return {tree.code_for_node(call.func.value) for call in calls if isinstance(call.func, cst.Attribute)}


def with_compiled_model(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Compile the one model that the script makes and asks for its parameters, behind the line that makes it.

    ``model.compile()`` keeps the names of its parameters. Of torch's own classes it compiles nothing: these are
    wrapped, unless the script saves or loads their state, whose names would be others.
    """
    if ".compile(" in tree.code:
        return tree, "the script compiles already"
    wrapper = next((name for name in _WRAPPERS if name in tree.code), "")
    if wrapper:
        return tree, f"the script wraps its model ({wrapper.strip('.(')}), and the order of both is its author's"
    names = parameters_of(tree)
    if len(names) != 1 or not (name := names.pop()).isidentifier() or name == "self":
        return tree, "which of the script's modules is the model only its author knows"
    editor = _Compiled(tree, name)
    changed = tree.visit(editor)
    if editor.num_blocks != 1:
        return tree, f"{name} is not made by one call at one place of the script"
    return (tree, editor.why) if editor.why else (changed, "")


class _Compiled(cst.CSTTransformer):
    def __init__(self, tree: cst.Module, name: str) -> None:
        super().__init__()
        self.tree, self.name = tree, name
        self.num_blocks, self.why = 0, ""

    def leave_IndentedBlock(  # libcst calls it so
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        del original_node
        return updated_node.with_changes(body=self._compiled(list(updated_node.body)))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        del original_node
        return updated_node.with_changes(body=self._compiled(list(updated_node.body)))

    def _compiled(self, body: list[Any]) -> Sequence[Any]:
        places = [i for i, line in enumerate(body) if m.matches(line, _MADE) and self._is_model(line)]
        if not places:
            return body
        self.num_blocks += 1
        made = body[places[0]].body[0].value
        wraps = self.tree.code_for_node(_constructor(made)).startswith(_OF_TORCH)
        if wraps and ("state_dict" in self.tree.code or "import torch\n" not in self.tree.code):
            self.why = "model.compile() compiles none of torch's own classes; give it a class of your own"
        call = f"{self.name} = torch.compile({self.name})" if wraps else f"{self.name}.compile()"
        at = places[-1] + 1
        return [*body[:at], cst.parse_statement(call), *body[at:]]

    def _is_model(self, line: Any) -> bool:  # as matched
        return bool(line.body[0].targets[0].target.value == self.name)


def _constructor(made: cst.Call) -> cst.BaseExpression:
    """Return what is called to make the model, without methods of it such as ``.to(device)``."""
    func = made.func
    while isinstance(func, cst.Attribute) and isinstance(func.value, cst.Call):
        func = func.value.func
    return func
