"""Modules that were renamed are importable under their old names, with a deprecation warning that has the term."""

import importlib
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch

from diagnose import kernels

RENAMED = [
    ("garbage", "gc_schedule", "scheduled_gc"),
    ("background", "background_loader", "BackgroundLoader"),
    ("metrics", "deferred_metrics", "DeferredMetrics"),
    ("ops.scaffold", "ops.custom_op", "operator"),
    ("distributed.one_process", "distributed.single_process_parity", "compare_with_one_process"),
]

POLICY = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
TERM = re.search(r"It stays for (.+), whichever is longer", POLICY)[1]


def run(line):
    """Execute an import as a script would; return its names."""
    names = {"__name__": "user_script"}
    exec(compile(line, "train.py", "exec"), names)
    return names


@pytest.mark.parametrize(("old", "new", "name"), RENAMED)
def test_the_old_name_gives_the_same_objects_and_warns(monkeypatch, old, new, name):
    monkeypatch.delitem(sys.modules, f"diagnose.kernels.{old}", raising=False)
    # pytest loads packages that hold a plugin of its through its own code, which would be named in the script's place
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if type(f).__name__ != "AssertionRewritingHook"])
    message = rf"diagnose\.kernels\.{old} is now diagnose\.kernels\.{new}; the old name goes after {TERM}\.$"
    with pytest.warns(DeprecationWarning, match=message) as warned:
        names = run(f"from diagnose.kernels.{old} import {name}")
    assert names[name] is getattr(importlib.import_module(f"diagnose.kernels.{new}"), name)
    assert [w.filename for w in warned] == ["train.py"]  # a script sees a warning that is its own


@pytest.mark.parametrize(("old", "new", "name"), RENAMED)
def test_nothing_public_is_missing_under_the_old_name(monkeypatch, old, new, name):
    monkeypatch.delitem(sys.modules, f"diagnose.kernels.{old}", raising=False)
    with pytest.warns(DeprecationWarning, match="is now"):
        before = importlib.import_module(f"diagnose.kernels.{old}")
    after = importlib.import_module(f"diagnose.kernels.{new}")
    assert before.__all__ == after.__all__
    assert [n for n in after.__all__ if getattr(before, n) is not getattr(after, n)] == []


def test_a_module_is_importable_from_the_package_by_its_old_name(monkeypatch):
    monkeypatch.delitem(sys.modules, "diagnose.kernels.metrics", raising=False)
    monkeypatch.delattr(kernels, "metrics", raising=False)
    with pytest.warns(DeprecationWarning, match="deferred_metrics"):
        names = run("from diagnose.kernels import metrics")
    assert names["metrics"].DeferredMetrics is kernels.DeferredMetrics


def test_old_names_are_listed():
    assert {old.split(".")[-1] for old, _, _ in RENAMED} == kernels._OLD_NAMES


def test_a_patched_model_pickled_under_the_old_name_is_read():
    patched = pickle.dumps(importlib.import_module("diagnose.kernels._module_matching")._gelu, protocol=0)
    old = patched.replace(b"_module_matching", b"_stand_ins")
    assert torch.equal(pickle.loads(old)(None, "none", torch.zeros(2)), torch.zeros(2))
