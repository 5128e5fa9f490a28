"""The floors of the house: which package may import which, lazy imports included (docs/architecture.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINKED = ("analyzers", "kernels", "reports")
GROUND = {"text", "errors", "model"}
# What each package, or module at the top, may import of the others; a new one has to be entered.
ALLOWED: dict[str, set[str]] = {
    "text": set(),
    "errors": {"text"},
    "model": {"text", "errors"},
    "perf_model": {"model", "text"},
    "trace_reader": GROUND,
    "capture": GROUND,
    "dataflow": GROUND,
    "tables": {*GROUND, "perf_model", "dataflow"},
    "kernels": set(),
    "ranks": {*GROUND, "perf_model", "tables"},
    "replay": {*GROUND, "perf_model", "tables"},
    "analyzers": {*GROUND, "perf_model", "dataflow", "tables", "ranks", "replay"},
    "answer": GROUND,
    "reports": {*GROUND, "answer"},
    "changes": {*GROUND, "perf_model", "tables", "analyzers", "replay", "kernels"},
    "pipeline": {*GROUND, "trace_reader", "dataflow", "tables", "ranks", "analyzers", "replay", "changes", "answer"},
    "compare": {*GROUND, "trace_reader", "tables", "pipeline", "reports"},
    "monitor": {*GROUND, "capture", "dataflow", "tables", "reports"},
    "trials": {*GROUND, "capture", "analyzers", "changes", "answer", "pipeline", "reports"},
    "api": {*GROUND, "capture", "monitor", "pipeline", "reports", "trials"},
    "integrations": {*GROUND, "tables", "pipeline", "reports", "monitor", "api"},
    "cli": {
        *GROUND,
        "ranks",
        "analyzers",
        "trace_reader",
        "capture",
        "pipeline",
        "answer",
        "reports",
        "compare",
        "monitor",
        "changes",
        "trials",
        "api",
        "integrations",
    },
    "__main__": {"cli"},
    "__init__": {"api", "capture", "errors", "integrations", "model", "monitor", "trials"},
}
WITHOUT_TORCH = (
    "model",
    "perf_model",
    "trace_reader",
    "dataflow",
    "tables",
    "ranks",
    "analyzers",
    "replay",
    "pipeline",
    "reports",
    "compare",
)
FRAMES = ("pandas", "polars")
FILE_WRITER = "diagnose.kernels._atomic_write"  # of Python's library only: what writes a file, on any floor


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of the package: its dotted name below ``diagnose``, and its tree."""
    for folder in ("diagnose", *LINKED):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                parts = path.relative_to(ROOT).with_suffix("").parts
                name = ".".join(parts[1:] if folder == "diagnose" else parts)
                yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    """Return the dotted names that a module imports anywhere, also inside functions and for types only."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def arrows(name: str, tree: ast.Module) -> set[tuple[str, str]]:
    """Return (package, package) for each import of another package of ours."""
    own = name.split(".", maxsplit=1)[0]
    ours = {other for other in imported(tree) if other.startswith("diagnose.") and not other.startswith(FILE_WRITER)}
    others = {other.split(".")[1] for other in ours}
    return {(own, other) for other in others - {own, "__version__"}}


def outside(names: set[str], *packages: str) -> set[str]:
    return {name for name in names if name.split(".")[0] in packages}


MODULES = dict(sources())


def test_every_arrow_is_allowed_and_every_package_is_known():
    assert {name.split(".")[0] for name in MODULES} == set(ALLOWED)
    wrong = {
        f"{name} imports {other}"
        for name, tree in MODULES.items()
        for own, other in arrows(name, tree)
        if other not in ALLOWED[own]
    }
    assert wrong == set()


PATTERNS = re.compile(r"re\.\w+$|AnyCase$")  # calls of which the first argument is a pattern
MIN_PATTERN = 6  # characters: a shorter one is no fact of its own


def test_a_pattern_is_written_once():
    homes: dict[str, list[str]] = {}
    for name, tree in MODULES.items():
        set_here = {
            target.id: node.value for node in tree.body if isinstance(node, ast.Assign)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        written = {
            id(pattern): pattern
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and node.args and PATTERNS.match(ast.unparse(node.func))
            for pattern in (set_here.get(getattr(node.args[0], "id", ""), node.args[0]),)
        }
        for pattern in written.values():
            if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
                homes.setdefault(pattern.value, []).append(name)
    assert len(homes) > 150
    assert {pattern: names for pattern, names in homes.items() if len(names) > 1 and len(pattern) >= MIN_PATTERN} == {}


def test_what_several_stages_share_is_set_in_the_model_alone():
    shared = {"TABULAR", "BUS_FACTORS", "WORK", "OUTSIDE", "LATE_RANKS", "BUSY"}
    shared |= names_set_in(MODULES["model.limits"])
    homes = {
        constant: sorted(name for name, tree in MODULES.items() if constant in names_set_in(tree))
        for constant in shared
    }
    others = {name: [home for home in found if not home.startswith("kernels.")] for name, found in homes.items()}
    assert {name: found for name, found in others.items() if len(found) != 1} == {}


def names_set_in(tree: ast.Module) -> set[str]:
    """Return the names that a module gives a value at its top."""
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign) and node.value is not None]
    names = [leaf for target in targets for leaf in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {name.id for name in names if isinstance(name, ast.Name) and name.id != "__all__"}


def test_the_package_shows_at_most_twenty_two_rooms():
    shown = {path.name for path in (ROOT / "diagnose").iterdir()} - {"__init__.py", "__main__.py", "__pycache__"}
    shown.discard("py.typed")  # a mark for type checkers, and no room
    assert len(shown) <= 22, sorted(shown)


def test_the_allowed_arrows_form_no_circle():
    left = dict(ALLOWED)
    while left:
        lowest = {name for name, below in left.items() if not below & set(left)}
        assert lowest, f"a circle among {sorted(left)}"
        left = {name: below for name, below in left.items() if name not in lowest}


def test_rules_import_no_other_rule():
    rules = {name for name in MODULES if name.count(".") == 1 and name.startswith("analyzers.")} - {
        "analyzers.__init__"
    }
    wrong = {
        f"{name} imports {other}"
        for name in MODULES
        if name.startswith("analyzers.") and name != "analyzers.__init__"
        for other in imported(MODULES[name])
        if ".".join(other.split(".")[1:3]) in rules
    }
    assert wrong == set()


def test_the_analysis_needs_neither_torch_nor_frames():
    wrong = {
        f"{name} imports {other}"
        for name, tree in MODULES.items()
        if name.split(".")[0] in WITHOUT_TORCH
        for other in outside(imported(tree), "torch", *FRAMES)
    }
    assert wrong == set()


def test_the_check_itself_can_fail():
    tree = ast.parse(
        "from diagnose import tables\nimport torch.nn\n\ndef f():\n    from diagnose.analyzers import META\n"
    )
    assert arrows("model.events", tree) == {("model", "tables"), ("model", "analyzers")}
    assert outside(imported(tree), "torch") == {"torch.nn"}
