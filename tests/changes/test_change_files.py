"""A change's file is its page and its object: what is known of it stands there once, and everything agrees with it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from diagnose import analyzers
from diagnose.analyzers.common.advice import SHARED
from diagnose.changes import CHANGES, FAMILIES, any_compiles, patch_of, trial_method
from diagnose.changes.common.change import (
    AddStatement,
    EditLoop,
    Log,
    Numerics,
    Patch,
    Proposal,
    SetArguments,
    identical,
    reduced,
    rounding,
)
from diagnose.changes.common.prescribe import prescribe
from diagnose.changes.patches import compiling, distributed
from diagnose.model.diagnosis import Finding

sys.path.append(str(Path(__file__).parents[2] / "evaluation"))
from remedy_inventory import BUILDING_BLOCKS, provable, public_modules

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "diagnose" / "changes").glob("*.py") if path.name != "__init__.py")
SECTIONS = ("What it does", "What to watch")
ADVISED = {
    name: tuple(dict.fromkeys(e for listed in analyzers.ADVICE.values() for e in listed.get(name, ())))
    for name in sorted({name for listed in analyzers.ADVICE.values() for name in listed})
}
every_change = pytest.mark.parametrize("change", [pytest.param(CHANGES[name], id=name) for name in CHANGES])


def test_every_file_is_a_change_with_its_name_or_a_family():
    files = {name.replace("-", "_") for name in CHANGES} - {n.replace("-", "_") for f in FAMILIES.values() for n in f}
    assert files | FAMILIES.keys() == {path.stem for path in FILES}
    for family, names in FAMILIES.items():
        assert tuple(change.id for change in import_module(f"diagnose.changes.{family}").CHANGES) == names
    assert all(CHANGES[name].id == name for name in CHANGES)


def test_rules_and_changes_name_each_other():
    named = {name for rule in analyzers.RULES for name in (*rule.META.changes, *rule.META.also)}
    assert not any(set(rule.META.changes) & set(rule.META.also) for rule in analyzers.RULES)
    asked_for = {name for name in CHANGES if CHANGES[name].proposal is None}  # by name
    assert named == ADVISED.keys() | CHANGES.keys() - asked_for
    assert not ADVISED.keys() & CHANGES.keys()


@pytest.mark.parametrize("name", ADVISED)
def test_every_advice_is_named_by_a_rule_and_explains_itself(name):
    for entry in ADVISED[name]:
        assert entry.least <= entry.most <= 1
        assert not entry.watch or entry.watch.endswith((".", "`."))
        assert isinstance(entry.numerics, Numerics)
        for module in filter(None, (entry.remedy, *entry.modules)):
            assert is_module(module)


def test_what_several_rules_advise_stands_once():
    own = [entry for rule in analyzers.RULES for entry in getattr(rule, "ADVICE", ())]
    texts = [(entry.title, entry.after) for entry in (*own, *SHARED)]
    assert len(texts) - len(set(texts)) <= 7  # forms that differ by another field alone
    named = Counter(name for rule in analyzers.RULES for name in (*rule.META.changes, *rule.META.also))
    assert {entry.id for entry in SHARED if named[entry.id] < 2} == set()


@every_change
def test_its_page_has_both_sections(change):
    page = CHANGES.page(change.id)
    first, _, rest = page.partition("\n")
    assert first.endswith(".")
    assert tuple(re.findall(r"^(\S.*)\n    \S", rest, re.MULTILINE)) == SECTIONS


@every_change
def test_it_can_be_applied(change):
    assert change.patch or change.edit is not None or change.edits_expressions
    if change.patch is not None:
        assert callable(change.patch.install) != bool(change.patch.environment)
        assert patch_of(change.id) is change.patch
        assert change.numerics.promise is not None, "a trial compares losses"


@every_change
def test_its_edit_can_be_made(change):
    if isinstance(change.edit, EditLoop):
        assert callable(getattr(import_module("diagnose.changes.edits.script_edits"), change.edit.function))
    elif isinstance(change.edit, SetArguments):
        assert set(change.edit.takes) <= set(change.edit.given)
    elif isinstance(change.edit, AddStatement):
        ast.parse(change.edit.code)


@every_change
def test_its_remedies_are_modules(change):
    assert all(map(is_module, filter(None, (change.remedy, *change.modules))))


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@every_change
def test_text_and_promise_come_from_one_field(change):
    numerics = change.numerics
    assert numerics.safety.startswith("same numbers") == (numerics.promise == "identical")
    if numerics.promise != "identical":
        assert numerics.safety == f"may change the numbers: {numerics.detail}"
        assert numerics.detail


def test_the_words_of_a_prescription():
    assert identical().safety == "same numbers"
    assert identical(", one step later").safety == "same numbers, one step later"
    assert identical("if it rains").safety == "same numbers if it rains"
    assert rounding("sums").safety == reduced("sums").safety == "may change the numbers: sums"
    assert Numerics(None, "it trains on").safety == "may change the numbers: it trains on"


@pytest.mark.parametrize(
    ("name", "promise"),
    [("no-buffer-broadcast", "identical"), ("overlap-gradients", "rounding"), ("bucket-gradients", "rounding")],
)
def test_what_once_contradicted_itself(name, promise):
    assert CHANGES[name].numerics.promise == promise
    assert CHANGES[name].numerics.safety.startswith("same numbers") == (promise == "identical")


def test_a_prescription_is_made_of_its_change():
    (p,) = prescribe(Finding("gc-pause", "", 1e6), 1e7)
    change = CHANGES["schedule-gc"]
    assert isinstance(change.proposal, Proposal)
    assert (p.id, p.title, p.safety, p.remedy) == (change.id, change.title, "same numbers", change.remedy)
    assert (p.after, p.needs) == (change.proposal.after, change.proposal.needs)
    assert p.saves_ns == pytest.approx((0.95e6, 1e6))
    assert p.predicted_step_ns == pytest.approx(1e7 - 0.975e6)


def test_what_saves_nothing_predicts_nothing():
    (p,) = prescribe(Finding("warm-up", "", 1e6), 1e7)
    assert (p.saves_ns, p.predicted_step_ns) == ((0.0, 0.0), None)


def test_only_changes_that_compile_compile():
    patched = {name: patch.install for name in CHANGES if (patch := patch_of(name)) is not None}
    by_compiling = {name for name, install in patched.items() if install and install.__module__ == compiling.__name__}
    assert {name for name in CHANGES if any_compiles((name,))} == by_compiling
    assert by_compiling
    assert not any_compiles(())


def test_unknown_changes_have_no_patch():
    assert patch_of("nonsense") is None
    with pytest.raises(KeyError):
        CHANGES["nonsense"]


# Facts that a change needs in several forms, each of which has one home.


def literals(path: Path) -> list[object]:
    return [n.value for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Constant)]


HOMES = {name: name.replace("-", "_") for name in (*CHANGES, *ADVISED)} | {
    name: family for family, names in FAMILIES.items() for name in names
}


def test_no_id_of_a_change_stands_outside_of_its_file_and_of_the_rules_that_name_it():
    elsewhere = {
        f"{path.relative_to(ROOT)}: {text}"
        for folder in ("diagnose", "analyzers", "reports")
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
        for text in literals(path)
        if text in {*CHANGES, *ADVISED} - {"autocast", "sham"}  # words of their own
        and path not in (ROOT / "diagnose" / "changes" / f"{name}.py" for name in (HOMES[text], "__init__"))
        and path != ROOT / "analyzers" / "common" / "advice.py"
        and not (path.parent.name == "analyzers" and text in (*import_rule(path).changes, *import_rule(path).also))
    }
    assert elsewhere == set()


def test_one_advice_records_what_is_missing_and_one_what_comes_later():
    again = {entry.id: entry.records_more for entries in ADVISED.values() for entry in entries if entry.records_again}
    assert sorted(again.values()) == [False, True]


def import_rule(path: Path):
    return import_module(f"diagnose.analyzers.{path.stem}").META


def test_no_id_of_a_rule_stands_in_the_replay():
    rules = {rule.META.id for rule in analyzers.RULES}
    paths = (ROOT / "diagnose" / "replay").glob("*.py")
    assert {text for path in paths for text in literals(path) if text in rules} == set()


def test_buckets_have_one_size(monkeypatch):
    given = {}
    monkeypatch.setattr(distributed, "_around_init", lambda change, _made: change(given))
    change, edit = CHANGES["overlap-gradients"], CHANGES["overlap-gradients"].edit
    assert isinstance(change.patch, Patch)
    change.patch.install(Log(), {})
    facts = {"ddp": {"bucket_cap_mb": 500.0}, "has_device": True}
    p = prescribe(Finding("exposed-communication", "", 1e6, facts=facts), 1e7)[0]
    assert p.arguments["bucket_cap_mb"] == edit.given["bucket_cap_mb"] == given["bucket_cap_mb"] == 25
    assert "bucket_cap_mb=25" in p.after


def test_code_to_paste_imports_names_that_are_there():
    pairs = {
        pair
        for path in (*FILES, *(ROOT / "analyzers").glob("*.py"), ROOT / "analyzers" / "common" / "advice.py")
        for text in literals(path)
        if isinstance(text, str)
        for pair in re.findall(r"from (diagnose\.kernels\.[\w.]+) import (\w+)", text)
    }
    assert len(pairs) >= 5
    for module, name in sorted(pairs):
        path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
        assert path.is_file()
        assert hasattr(import_module(module), name), f"{module} has no {name}"


def test_a_change_names_every_module_that_its_code_takes():
    for path in FILES:
        here = [CHANGES[name] for name in CHANGES if HOMES[name] == path.stem]
        code = " ".join(text for text in literals(path) if isinstance(text, str))
        taken = set(re.findall(r"from (diagnose\.kernels\.[\w.]+) import", code))
        assert taken <= {module for change in here for module in (change.remedy, *change.modules)}, path.name
    for entry in (entry for entries in ADVISED.values() for entry in entries):
        taken = set(re.findall(r"from (diagnose\.kernels\.[\w.]+) import", entry.after))
        assert taken <= {entry.remedy, *entry.modules}, entry.id


def test_every_public_module_is_prescribed_or_a_building_block():
    modules = public_modules()
    assert [m.name for m in modules if bool(m.changes) == bool(m.building_block)] == []
    assert [m.name for m in modules if m.changes and not m.rules] == [], "a change that no rule prescribes"
    assert len(modules) >= 53
    assert set(BUILDING_BLOCKS) <= {m.name for m in modules}


def test_most_changes_can_be_proved():
    assert len(provable()) >= 40
    # Named one by one: of these a trial runs a copy of the script with the diff applied, so each is reviewed
    # once. Derived from patch and edit, the set would repeat `trial_method`.
    assert {name for name in CHANGES if trial_method(name) == "edited copy"} == {
        "call-once", "cheaper-line", "cheaper-sample", "compute-first", "compute-in-branch", "defer-sync",
        "detach-inputs", "one-backward",
        "eight-bit-optimizer", "load-once", "make-on-device", "no-contiguous", "remove-synchronize",
        "reorder-product", "reuse-result",
        "save-in-background", "shard-optimizer", "single-precision", "skip-frozen", "skip-zero-term", "stay-on-device",
    }  # fmt: skip


def test_the_process_of_a_trial_imports_them_without_numpy_or_torch():
    code = (
        "import sys\nfrom diagnose.changes import CHANGES\nlist(CHANGES.values())\n"
        "print({'numpy', 'torch', 'diagnose.analyzers', 'diagnose.replay'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_no_module_is_named_that_does_something_else():
    """`indexing` selects rows by masks; the backward of a look-up is torch's own."""
    assert [entry.remedy for entry in ADVISED["embedding-lookup"]] == [""]
    assert CHANGES["stay-on-device"].remedy == "diagnose.kernels.indexing"
