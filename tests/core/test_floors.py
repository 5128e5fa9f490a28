"""The floors of the house: what may import what (DESIGN, section 1)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("analyzers", "kernels", "reports")
# The floor of each module or package, from the ground up; a module of `diagnose` that is not named is on EXAMINATION.
GROUND, TYPES, TABLES, EXAMINATION, RULES, PIPELINE, FACES, COMMAND = range(8)
FLOORS = {
    "errors": GROUND,
    "files": GROUND,
    "trace": GROUND,
    "marker": GROUND,
    "masking": GROUND,
    "plain_text": GROUND,
    "progress": GROUND,
    "reservation": GROUND,
    "findings": TYPES,
    "figures": TYPES,
    "outlook": TYPES,
    "intervals": TYPES,
    "captures": TYPES,
    "decoding": TYPES,
    "records": TYPES,
    "tables": TABLES,
    "reading": TABLES,
    "capture": TABLES,
    "kernels": GROUND,
    "reports": TABLES,
    "analyzers": RULES,
    "examine": PIPELINE,
    "pipeline": PIPELINE,
    "output": FACES,
    "answering": FACES,
    "api": FACES,
    "proving": FACES,
    "proving_steps": FACES,
    "monitoring": FACES,
    "comparing": FACES,
    "gating": FACES,
    "tracing": FACES,
    "child": FACES,
    "launch": FACES,
    "ranks": FACES,
    "what_if": FACES,
    "cli": COMMAND,
    "__main__": COMMAND,
    "__init__": COMMAND,
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of the package: its dotted name below `diagnose`, and its tree."""
    for folder in ("diagnose", *LINKED):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield (
                    ".".join(parts[1:] if folder == "diagnose" else parts),
                    ast.parse(path.read_text(encoding="utf-8")),
                )


def imported(tree: ast.Module, *, lazy: bool) -> set[str]:
    """Return the dotted names that a module imports; with ``lazy`` also inside functions and for types only."""
    nodes = list(ast.walk(tree)) if lazy else tree.body
    names = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    names |= {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) and n.module for a in n.names}
    return names


def within(names: set[str], *packages: str) -> set[str]:
    return {n for n in names if any(f"{n}.".startswith(f"{p}.") for p in packages)}


MODULES = dict(sources())


def floor(name: str) -> int:
    return FLOORS.get(name.partition(".")[0], EXAMINATION)


def test_every_named_floor_still_has_its_module():
    assert set(FLOORS) <= {name.split(".")[0] for name in MODULES}


@pytest.mark.parametrize("name", MODULES)
def test_nothing_imports_upward(name):
    above = {
        other
        for other in within(imported(MODULES[name], lazy=False), "diagnose")
        if other.count(".") and other != "diagnose.__version__" and floor(other.split(".", 1)[1]) > floor(name)
    }
    assert above == set()


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith("reports")])
def test_reports_know_neither_rules_nor_readers(name):
    names = imported(MODULES[name], lazy=True)
    assert within(names, "diagnose.analyzers", "diagnose.trace_reader", "diagnose.tables", "torch") == set()


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith("kernels")])
def test_remedies_know_nothing_of_the_tool(name):
    names = within(imported(MODULES[name], lazy=True), "diagnose")
    assert names - within(names, "diagnose.kernels") == set()


@pytest.mark.parametrize(
    "name", [n for n in MODULES if n.split(".")[0] in {"tables", "reading", "analyzers", "examine"}]
)
def test_the_examination_needs_neither_torch_nor_frames(name):
    assert within(imported(MODULES[name], lazy=True), "torch", "plotly", "pandas", "polars") == set()


def test_the_check_itself_can_fail():
    tree = ast.parse(
        "from diagnose import tables\nimport torch.nn\n\ndef f():\n    from diagnose.analyzers import REST\n"
    )
    assert within(imported(tree, lazy=False), "diagnose") == {"diagnose.tables"}
    assert within(imported(tree, lazy=True), "diagnose.analyzers", "torch") == {"diagnose.analyzers.REST", "torch.nn"}
    assert floor("examine") < floor("cli")
