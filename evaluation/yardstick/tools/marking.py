"""Training scripts with their steps marked, as tools ask for that want a `with` around the loop's body.

The body of the loop that trains is put under one `with`, after the statements that the tool's documentation has for a
loop of one's own. Lines move by it, so this is for tools that name none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from yardstick.answer import NoAnswerError

__all__ = ["mark"]

Loop = ast.For | ast.While
NO_MODEL = "__import__('torch').nn.Identity()"  # if the script's own is not found


def mark(script: Path, setup: str, step: str, source: str, loader: str = "") -> None:
    """Put ``setup`` after the script's imports and ``step`` around each step; ``{model}`` in it becomes the model.

    ``source`` is a function that gets what the loop runs over, ``loader`` one that gets each DataLoader.

    Raises:
        NoAnswerError: no loop of the script has both a backward pass and the step of an optimizer.
    """
    tree = ast.parse(script.read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    training = [node for node in ast.walk(tree) if isinstance(node, Loop) and _trains(node, functions)]
    if not training:
        raise NoAnswerError("no loop with a backward pass and an optimizer's step, so no step could be marked")
    loop = min(training, key=lambda node: sum(1 for _ in ast.walk(node)))
    owner = next((fn for fn in functions.values() if loop in list(ast.walk(fn))), tree)
    home = next((each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and owner in each.body), None)
    model = next(_models(owner), None) or next(_of_self(home), NO_MODEL)
    head = ast.parse(f"with {step.format(model=model)}: pass").body[0]
    assert isinstance(head, ast.With), "the statement is written above"
    head.body, loop.body = loop.body, [head]
    if isinstance(loop, ast.For):
        loop.iter = ast.Call(ast.Name(source), [loop.iter], [])
    imports = [place for place, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom)]
    after = max(imports, default=-1) + 1
    tree.body[after:after] = ast.parse(setup).body
    if loader:
        tree = _Wrapped(loader).visit(tree)
    script.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")


class _Wrapped(ast.NodeTransformer):
    """Puts a call around each DataLoader that the script makes."""

    def __init__(self, function: str) -> None:
        self.function = ast.parse(function, mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Wrap a call of DataLoader."""
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return ast.Call(self.function, [node], []) if name == "DataLoader" else node


def _trains(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> bool:
    names = set(_called(node, functions, set()))
    return {"backward", "step"} <= names


def _called(node: ast.AST, functions: dict[str, ast.FunctionDef], seen: set[str]) -> Iterator[str]:
    """Yield the names that a node calls, those in the script's own functions included."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        yield name
        if name in functions and name not in seen:
            seen.add(name)
            yield from _called(functions[name], functions, seen)


def _models(scope: ast.AST) -> Iterator[str]:
    """Yield what is asked for its parameters, as an optimizer's arguments are; it may be an attribute."""
    inside = {ast.unparse(each.target) for each in ast.walk(scope) if isinstance(each, ast.comprehension)}
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
            named = ast.unparse(node.value)
            if named.replace(".", "").isidentifier() and named.partition(".")[0] not in inside and named != "self":
                yield named


def _of_self(home: ast.ClassDef | None) -> Iterator[str]:
    """Yield the models that are attributes of the object whose method has the loop."""
    return (named for named in (_models(home) if home else ()) if named.startswith("self."))
