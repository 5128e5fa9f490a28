"""Prints the size of the product and of each room: files, lines, decisions, constants, private functions.

    scripts/python evaluation/house.py [--names]

A decision is a condition, a further operand of ``and`` or ``or``, or the filter of a comprehension. A constant is an
upper-case name of a module with a number as its value, or with a tuple of numbers. ``--names`` lists the constants that
have several values.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("diagnose", "analyzers", "reports")
ROOMS = {
    "tables": ("diagnose/tables/",),
    "changes": ("diagnose/changes/",),
    "capture": ("diagnose/capture/",),
    "pipeline and answer": ("diagnose/pipeline/", "diagnose/answer/"),
    "reports": ("reports/",),
    "trials": ("diagnose/trials/",),
    "analyzers": ("analyzers/",),
    "cli": ("diagnose/cli/",),
    "monitor": ("diagnose/monitor/",),
    "ranks": ("diagnose/ranks/",),
    "model and text": ("diagnose/model/", "diagnose/text/"),
    "trace_reader": ("diagnose/trace_reader/",),
    "replay and perf_model": ("diagnose/replay/", "diagnose/perf_model/"),
    "dataflow": ("diagnose/dataflow/",),
    "compare, integrations": ("diagnose/compare/", "diagnose/integrations/"),
    "kernels": ("kernels/",),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--names", action="store_true", help="list the constants that have several values")
    names = parser.parse_args().names
    files = sorted(_files(*PRODUCT))
    trees = {file: ast.parse(text) for file, text in files}
    lines = sum(text.count("\n") for _, text in files)
    values = constants(trees)
    several = {name: found for name, found in values.items() if len({value for _, value in found}) > 1}
    print(f"source files without kernels                {len(files):7,}")
    print(f"lines without kernels                       {lines:7,}")
    print(f"decisions per 100 lines                     {100 * sum(map(decisions, trees.values())) / lines:7.1f}")
    print(f"private functions called once               {sum(map(called_once, trees.values())):7,}")
    print(f"constants                                   {sum(map(len, values.values())):7,}")
    print(f"names of constants with several values      {len(several):7,}")
    print(f"\n{'room':24}{'files':>7}{'lines':>8}{'decisions/100':>15}{'called once':>13}{'constants':>11}")
    for room, folders in ROOMS.items():
        own = dict(_files(*folders))
        room_trees = {file: ast.parse(text) for file, text in own.items()}
        room_lines = sum(text.count("\n") for text in own.values())
        share = 100 * sum(map(decisions, room_trees.values())) / room_lines
        num = sum(map(len, constants(room_trees).values()))
        once = sum(map(called_once, room_trees.values()))
        print(f"{room:24}{len(own):7,}{room_lines:8,}{share:15.1f}{once:13,}{num:11,}")
    if names:
        for name, found in sorted(several.items()):
            print(f"{name}: " + ", ".join(f"{value} in {file}" for file, value in found))


def _files(*folders: str) -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name.endswith(".py") and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def decisions(tree: ast.AST) -> int:
    """Return the number of conditions, of operands after the first, and of filters."""
    num = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.match_case):
            num += 1
        elif isinstance(node, ast.BoolOp):
            num += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            num += len(node.ifs)
    return num


def called_once(tree: ast.Module) -> int:
    """Return the number of private functions of a module that it names once."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("_")}
    named = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in own)
    return sum(named[name] == 1 for name in own)


def constants(trees: dict[str, ast.Module]) -> dict[str, list[tuple[str, str]]]:
    """Return by name the file and the value of each constant."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for file, tree in trees.items():
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for name, part in _pairs(targets[0], value):
                if name.strip("_").isupper() and _is_number(part):
                    found[name].append((file, ast.unparse(part)))
    return found


def _pairs(target: ast.expr | None, value: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, part)
    elif isinstance(target, ast.Name) and value is not None:
        yield target.id, value


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_number, node.elts))
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


if __name__ == "__main__":
    main()
