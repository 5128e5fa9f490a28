"""The edit of a syntax tree that lets a thread write checkpoints. The saver itself waits before a file is used."""

from __future__ import annotations

import itertools
import re

import libcst as cst
from libcst import matchers as m

from diagnose.changes.save_in_background import NO_OVERLAP

__all__ = ["with_background_saver"]

_IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
_IMPORTS_TORCH = m.ImportAlias(name=m.Name("torch"), asname=None)
_MAKES_SAVER = "from diagnose.kernels.saving import BackgroundSaver\n_saver = BackgroundSaver(waits_before_use=True)\n"
_SAVE = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("save")))
_SAVES = m.SimpleStatementLine(body=[m.Expr(_SAVE)])
_REFUSED = {
    r"BackgroundSaver": "uses BackgroundSaver itself",
    r"\b_saver\b": "has a name _saver itself",
    r"\bmultiprocessing\b": "starts processes, which may use the file",
    r"\b_exit\b": "ends without waiting for what is written",
}


def with_background_saver(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every `torch.save` be a `BackgroundSaver`'s, made after the imports."""
    for name, why in _REFUSED.items():
        if re.search(name, tree.code):
            return tree, f"the script {why}"
    imports = [m.matches(line, _IMPORT) for line in tree.body]
    torch = next((i for i, line in enumerate(tree.body) if imports[i] and m.findall(line, _IMPORTS_TORCH)), None)
    if torch is None:
        return tree, "the script does not import torch at its top"
    at = next((i for i in range(torch, len(imports)) if not imports[i]), len(imports))  # after the imports there
    saves = [call for call in m.findall(tree, _SAVE) if isinstance(call, cst.Call)]
    if not saves:
        return tree, "the script calls no torch.save to a path itself"
    if any(len(call.args) != 2 or any(arg.keyword or arg.star for arg in call.args) for call in saves):
        return tree, "its torch.save has options, or its arguments have names"
    if all(_is_used_at_once(tree, call) for call in saves):
        return tree, NO_OVERLAP
    saver = cst.parse_expression("_saver.save")
    changed = m.replace(tree, _SAVE, lambda call, _: call.with_changes(func=saver))
    assert isinstance(changed, cst.Module)
    return changed.with_changes(body=[*changed.body[:at], *cst.parse_module(_MAKES_SAVER).body, *changed.body[at:]]), ""


def _is_used_at_once(tree: cst.Module, save: cst.Call) -> bool:
    """Return whether the statement after a call has its path."""
    path = re.compile(rf"(?<!\w){re.escape(tree.code_for_node(save.args[1].value))}(?!\w)")
    blocks = [tree, *m.findall(tree, m.IndentedBlock())]
    return any(
        m.matches(line, _SAVES) and save in m.findall(line, _SAVE) and bool(path.search(tree.code_for_node(following)))
        for block in blocks
        if isinstance(block, cst.Module | cst.IndentedBlock)
        for line, following in itertools.pairwise(block.body)
    )
