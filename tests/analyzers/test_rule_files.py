"""A rule's file is its page: four sections, a name that is its id, a place in the registry, and few imports."""

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

from diagnose import analyzers
from diagnose.model.diagnosis import Verdict

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "analyzers").glob("*.py") if path.name != "__init__.py")
SECTIONS = ("What it looks for", "Why it costs", "What to do", "How sure")
FORBIDDEN = ("diagnose.analyzers", "diagnose.kernels", "diagnose.reports", "diagnose.trace_reader", "torch", "plotly")


def faults(path: Path) -> list[str]:
    """Return what is wrong with a rule's file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [*section_faults(ast.get_docstring(tree) or ""), *name_faults(tree, path), *import_faults(tree)]


def section_faults(page: str) -> list[str]:
    first, _, rest = page.partition("\n")
    said = [] if first.endswith(".") else ["the first line is no sentence"]
    headings = re.findall(r"^(\S.*)\n    \S", rest, re.MULTILINE)
    return said if tuple(headings) == SECTIONS else [*said, f"the sections with text are {headings}"]


def name_faults(tree: ast.Module, path: Path) -> list[str]:
    ids = [
        keyword.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["META"]
        for keyword in getattr(node.value, "keywords", ())
        if keyword.arg == "id" and isinstance(keyword.value, ast.Constant)
    ]
    return [] if ids == [path.stem.replace("_", "-")] else [f"the id in META is {ids}"]


def import_faults(tree: ast.Module) -> list[str]:
    """Name forbidden imports, also those inside functions; `from diagnose import kernels` counts."""
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    names += [
        f"{'.' * node.level}{node.module or ''}.{a.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for a in node.names
    ]
    names = [n for n in names if not n.startswith("diagnose.analyzers.common.")]
    return [f"imports {n}" for n in names if n.startswith(".") or any(f"{n}.".startswith(f"{f}.") for f in FORBIDDEN)]


def test_the_files_are_whole():
    assert {path.stem: found for path in FILES if (found := faults(path))} == {}


def test_every_file_is_a_rule_with_what_its_kind_needs():
    assert [rule.META.id.replace("-", "_") for rule in sorted(analyzers.RULES, key=lambda rule: rule.META.id)] == [
        path.stem for path in FILES
    ]
    for rule in analyzers.RULES:
        claims = rule.META.kind in ("trust", "idle") and not rule.META.fallback
        assert hasattr(rule, "claim") == claims, rule.META.id
        assert hasattr(rule, "find_in_all") == (rule.META.kind == "rank"), rule.META.id
        if hasattr(rule, "claim_host"):
            assert rule.META.host_order is not None, rule.META.id


def test_rules_of_a_kind_have_different_orders_and_trust_comes_first():
    for registry in (analyzers.IDLE_RULES, analyzers.KERNEL_RULES, analyzers.STATE_RULES, analyzers.RANK_RULES):
        orders = [rule.META.order for rule in registry]
        assert orders == sorted(set(orders))
    orders = [rule.META.host_order for rule in analyzers.HOST_RULES]
    assert orders == sorted(set(orders))
    kinds = [rule.META.kind for rule in analyzers.IDLE_RULES]
    assert kinds == sorted(kinds, reverse=True)
    assert analyzers.FALLBACK_RULE.META.id == "unexplained-host"


def test_every_cause_of_idle_time_has_a_legend():
    causes = {rule.META.id for rule in (*analyzers.IDLE_RULES, analyzers.FALLBACK_RULE)} | {analyzers.WORK}
    assert causes <= set(analyzers.LEGENDS)


def test_every_registered_rule_has_a_test_file():
    files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    untested = {path.stem for path in FILES} - files - {"unexplained_device", "unexplained_host"}
    assert untested == set()
    assert "unexplained" in files


NAMED_ELSEWHERE = {
    ("analyzers/memory_headroom.py", "launch-bound"): "a rule reads the idle time of another, which it may not import",
    ("diagnose/model/rules.py", "straggler"): "reports know the rule of a diagnosis by its id alone",
    ("diagnose/model/rules.py", "lone-rank"): "the same: what other rules see as long steps or a late rank",
    ("diagnose/model/rules.py", "reduced-again"): "the same: what other rules see as a late rank",
    ("diagnose/model/rules.py", "unexplained-host"): "the same",
    ("diagnose/model/job.py", "buffer-broadcast"): "what a collective serves, a word of the JSON as ddp-bucket",
    ("diagnose/ranks/collectives.py", "buffer-broadcast"): "the same",
}
"""Where the id of a rule may stand outside its file, and why."""


def test_what_is_known_of_a_rule_stands_in_its_file():
    found = {
        (str(path.relative_to(ROOT)), rule)
        for folder in ("diagnose", "analyzers", "reports")
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
        for rule in rules_named_in(path.read_text(encoding="utf-8"))
        if path != ROOT / "analyzers" / f"{rule.replace('-', '_')}.py"
    }
    assert found == set(NAMED_ELSEWHERE)


def rules_named_in(source: str) -> set[str]:
    """Return the ids among the constants of a source; the subject of a note left out."""
    ids, tree = {rule.META.id for rule in analyzers.RULES}, ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    left_out = {call.args[1] for call in calls if getattr(call.func, "id", "") == "Note" and len(call.args) == 2}
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in left_out}
    return {value for value in constants if isinstance(value, str)} & ids


def test_an_id_is_found_wherever_it_stands_in_a_source():
    for source in (
        'finding.rule == "host-sync"',
        'match cause:\n    case "host-sync":\n        pass',
        '{"host-sync": 1}',
        'part("host-sync", 1)',
        'Note("host-sync")',
        'Note("text", "host-sync", "host-sync")',
    ):
        assert rules_named_in(source) == {"host-sync"}, source
    for source in ('Note("text", "host-sync")', '"the host-sync rule"', "host_sync.META.id"):
        assert rules_named_in(source) == set(), source


def test_the_causes_that_a_remedy_distinguishes_are_rules_or_verdicts():
    compiling = import_module("diagnose.kernels.compiling")
    known = {rule.META.id for rule in analyzers.RULES} | set(get_args(Verdict))
    assert known >= compiling.BY_LAUNCHES | compiling.BY_KERNELS


GOOD = (
    '"""A sentence.\n\n'
    + "\n\n".join(f"{section}\n    x" for section in SECTIONS)
    + '\n"""\nMETA = RuleMeta(id="some-rule")\n'
)


def test_the_check_itself_can_pass_and_fail(tmp_path):
    path = tmp_path / "some_rule.py"

    def said(text: str) -> int:
        path.write_text(text)
        return len(faults(path))

    assert said(GOOD) == 0
    for section in SECTIONS:
        assert said(GOOD.replace(section, "Remarks")) == 1
        assert said(GOOD.replace(f"{section}\n    x", section)) == 1, "a heading without text"
    assert said(GOOD.replace("A sentence.", "a heading")) == 1
    assert said(GOOD.replace("some-rule", "other-rule")) == 1
    for line in (
        "import torch",
        "import torch.nn as nn",
        "from torch import nn",
        "from diagnose import kernels",
        "from diagnose.analyzers import host_sync",
        "from diagnose.trace_reader.file import read_trace",
        "from . import host_sync",
        "def f():\n    import plotly.graph_objects",
    ):
        assert said(f"{GOOD}{line}\n") == 1, line
    assert said(f"{GOOD}from diagnose.tables import Tables\n") == 0
