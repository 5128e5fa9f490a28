"""A change's file is its page and its object: what is known of it stands there once, and everything agrees with it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from diagnose import analyzers
from diagnose.changes import CHANGES, any_compiles, by_hand, patch_of, trial_method
from diagnose.changes.common.change import (
    AddStatement,
    Advice,
    ByHand,
    EditLoop,
    Numerics,
    Patch,
    SetArguments,
    identical,
    reduced,
    rounding,
)
from diagnose.changes.common.inventory import BUILDING_BLOCKS, provable, public_modules
from diagnose.changes.common.prescribe import prescribe
from diagnose.changes.patches import compiling, distributed
from diagnose.model.diagnosis import Finding

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "diagnose" / "changes").glob("*.py") if path.name != "__init__.py")
SECTIONS = ("What it does", "What to watch")
every_change = pytest.mark.parametrize("change", [pytest.param(CHANGES[name], id=name) for name in CHANGES])


def test_every_file_is_a_change_with_its_name():
    assert [CHANGES[name].id.replace("-", "_") for name in CHANGES] == [path.stem for path in FILES]


def test_rules_and_changes_name_each_other():
    named = {name for rule in analyzers.RULES for name in (*rule.META.changes, *rule.META.also)}
    assert not any(set(rule.META.changes) & set(rule.META.also) for rule in analyzers.RULES)
    assert named == {name for name in CHANGES if CHANGES[name].advice is not None}  # the others are asked for by name


@every_change
def test_its_page_has_both_sections(change):
    page = import_module(f"diagnose.changes.{change.id.replace('-', '_')}").__doc__
    first, _, rest = page.partition("\n")
    assert first.endswith(".")
    assert tuple(re.findall(r"^(\S.*)\n    \S", rest, re.MULTILINE)) == SECTIONS


@every_change
def test_a_trial_can_make_it_or_there_is_a_reason(change):
    if isinstance(change.patch, ByHand):
        assert_clause(change.patch.reason)
        assert by_hand(change.id) == change.patch.reason
        assert patch_of(change.id) is None
    else:
        assert callable(change.patch.install) != bool(change.patch.environment)
        assert by_hand(change.id) == ""
        assert patch_of(change.id) is change.patch
        assert change.numerics.promise is not None, "a trial compares losses"


@every_change
def test_it_can_be_written_into_a_script_or_there_is_a_reason(change):
    if isinstance(change.edit, ByHand):
        assert_clause(change.edit.reason)
    elif isinstance(change.edit, EditLoop):
        assert callable(getattr(import_module("diagnose.trials.script_edits"), change.edit.function))
    elif isinstance(change.edit, SetArguments):
        assert set(change.edit.takes) <= set(change.edit.given)
    else:
        assert isinstance(change.edit, AddStatement)
        ast.parse(change.edit.code)


@every_change
def test_its_remedy_is_a_module_or_there_is_a_reason(change):
    assert bool(change.remedy) != bool(change.without_remedy)
    if change.remedy:
        path = ROOT.joinpath(*change.remedy.split(".")[1:])
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@every_change
def test_text_and_promise_come_from_one_field(change):
    numerics = change.numerics
    assert numerics.safety.startswith("same numbers") == (numerics.promise == "identical")
    if numerics.promise != "identical":
        assert numerics.safety == f"may change the numbers: {numerics.detail}"
        assert numerics.detail


def assert_clause(reason: str) -> None:
    """Check that a reason goes on after a colon: no capital at its begin, no full stop at its end."""
    assert reason
    assert not reason.endswith(".")
    assert reason[0].islower()


def test_the_words_of_a_prescription():
    assert identical().safety == "same numbers"
    assert identical(", one step later").safety == "same numbers, one step later"
    assert identical("where it rains").safety == "same numbers where it rains"
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
    assert isinstance(change.advice, Advice)
    assert (p.id, p.title, p.safety, p.remedy) == (change.id, change.title, "same numbers", change.remedy)
    assert (p.after, p.needs) == (change.advice.after, change.advice.needs)
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


def test_unknown_changes_have_neither_patch_nor_reason():
    assert (patch_of("nonsense"), by_hand("nonsense")) == (None, "")
    with pytest.raises(KeyError):
        CHANGES["nonsense"]


# Facts that a change needs in several forms, each of which has one home.


def literals(path: Path) -> list[object]:
    return [n.value for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Constant)]


def test_no_id_of_a_change_stands_outside_of_its_file_and_of_the_rules_that_name_it():
    elsewhere = {
        f"{path.relative_to(ROOT)}: {text}"
        for folder in ("diagnose", "analyzers", "reports")
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
        for text in literals(path)
        if text in set(CHANGES) - {"autocast", "sham"}  # words of their own
        and path != ROOT / "diagnose" / "changes" / f"{text.replace('-', '_')}.py"
        and not (path.parent.name == "analyzers" and text in (*import_rule(path).changes, *import_rule(path).also))
    }
    assert elsewhere == set()


def test_one_change_records_what_is_missing_and_one_what_comes_later():
    kinds = {name: CHANGES[name].records for name in CHANGES if CHANGES[name].records}
    assert sorted(kinds.values()) == ["later", "more"]
    assert all(by_hand(name) == "it changes the recording, not the script" for name in kinds)


def import_rule(path: Path):
    return import_module(f"diagnose.analyzers.{path.stem}").META


def test_no_id_of_a_rule_stands_in_the_replay():
    rules = {rule.META.id for rule in analyzers.RULES}
    paths = (ROOT / "diagnose" / "replay").glob("*.py")
    assert {text for path in paths for text in literals(path) if text in rules} == set()


def test_buckets_have_one_size(monkeypatch):
    given = {}
    monkeypatch.setattr(distributed, "_arguments", lambda _log, edit, options: given.update(edit.values(options)))
    change, edit = CHANGES["overlap-gradients"], CHANGES["overlap-gradients"].edit
    assert isinstance(change.patch, Patch)
    change.patch.install(None, {})
    facts = {"ddp": {"bucket_cap_mb": 500.0}, "has_device": True}
    p = prescribe(Finding("exposed-communication", "", 1e6, facts=facts), 1e7)[0]
    assert p.arguments["bucket_cap_mb"] == edit.given["bucket_cap_mb"] == given["bucket_cap_mb"] == 25
    assert "bucket_cap_mb=25" in p.after


def test_code_to_paste_imports_names_that_are_there():
    pairs = {
        pair
        for path in FILES
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
    for name in CHANGES:
        path = ROOT / "diagnose" / "changes" / f"{name.replace('-', '_')}.py"
        code = " ".join(text for text in literals(path) if isinstance(text, str))
        taken = set(re.findall(r"from (diagnose\.kernels\.[\w.]+) import", code))
        assert taken <= {CHANGES[name].remedy, *CHANGES[name].modules}, name


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
        "clip-in-update", "defer-sync", "eight-bit-optimizer", "make-on-device", "no-contiguous", "remove-synchronize",
        "save-in-background", "shard-optimizer", "stay-on-device",
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
    assert CHANGES["embedding-lookup"].remedy == ""
    assert CHANGES["stay-on-device"].remedy == "diagnose.kernels.indexing"
