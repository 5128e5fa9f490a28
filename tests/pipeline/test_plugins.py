"""The example package, installed and run; one that cannot be used becomes a sentence of the diagnosis."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.model.plugins import load_plugins
from diagnose.model.rules import RuleMeta

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "fixtures" / "traces" / "emptied_cache-planted"
BROKEN = "[diagnose.analyzers]\nbroken = no_such_module\nthrottled = slow_steps.rule\nodd = slow_steps.rule\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return a folder with the example package and, beside it, one with entry points that are wrong."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for file in (ROOT / "fixtures" / "plugin_example").rglob("*.[pt]*"):
        if file.is_file():
            copy = source / file.relative_to(ROOT / "fixtures" / "plugin_example")
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=300)
    broken = target / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text(BROKEN)
    return target


def run(folder, *args, **environment):
    command = [sys.executable, "-m", "diagnose", *args]
    known = {**os.environ, "PYTHONPATH": str(folder), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=known, check=True, timeout=300)
    return json.loads(done.stdout)


def test_a_rule_and_a_change_of_another_package_are_applied_and_broken_ones_named(installed):
    answer = run(installed, "analyze", "-q", "--json", str(TRACE))
    assert [f["title"] for f in answer["findings"] if f["rule"] == "slow-steps"] == ["Steps are above their budget"]
    notes = [note["text"] if isinstance(note, dict) else note for note in answer["trust"]]
    left_out = sorted(note for note in notes if note.startswith("The plug-in"))
    assert [note.split(":")[0] for note in left_out] == [
        "The plug-in broken (no_such_module) is left out",
        "The plug-in odd (slow_steps.rule) is left out",
        "The plug-in throttled (slow_steps.rule) is left out",
    ]
    page = run(installed, "explain", "slow-steps", "--json")
    assert (page["summary"], page["changes"]) == ("Steps are above the budget of this project.", ["shorten-steps"])
    assert run(installed, "explain", "shorten-steps", "--json")["rules"] == ["slow-steps"]


def test_the_package_that_the_page_makes_finds_what_it_states(tmp_path):
    """Each ``aten::item`` of a bundled trace becomes an annotation: the page's call of a service."""
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    rule, change = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "site" / "ours").mkdir(parents=True)
    for name, text in (("__init__", ""), ("feature_fetch", rule), ("fetch_ahead", change)):
        (tmp_path / "site" / "ours" / f"{name}.py").write_text(text, encoding="utf-8")
    metadata = tmp_path / "site" / "ours-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 0.1\n")
    groups = re.findall(r'^\[project\.entry-points\."(.+)"\]\n(.+) = "(.+)"\n', page, re.MULTILINE)
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]\n{id} = {module}\n" for group, id, module in groups))
    capture = shutil.copytree(TRACE.with_name("item_every_step-planted"), tmp_path / "capture")
    for file in capture.glob("*.trace.json.gz"):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        for event in trace["traceEvents"]:
            if event.get("name") == "aten::item":
                event.update(name="features/fetch", cat="user_annotation")
        file.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    answer = run(tmp_path / "site", "analyze", "-q", "--json", str(capture))
    (finding,) = [finding for finding in answer["findings"] if finding["rule"] == "feature-fetch"]
    assert finding["title"] == "The step waits for the feature service"
    assert [p["id"] for p in answer["prescriptions"] if p["rule"] == "feature-fetch"] == ["fetch-ahead"]
    assert [note for note in answer["trust"] if "plug-in" in str(note)] == []


def test_the_reader_of_metadata_is_loaded_only_where_a_package_or_an_archive_may_name_rules(tmp_path):
    code = "import diagnose.analyzers, diagnose.changes, sys; print('importlib.metadata' in sys.modules)"
    named, other, archive = tmp_path / "named", tmp_path / "other", tmp_path / "archive.egg"
    for folder, header in ((named, "[diagnose.changes]"), (other, "[console_scripts]")):
        (folder / "some-1.0.dist-info").mkdir(parents=True)
        (folder / "some-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
        (folder / "some-1.0.dist-info" / "entry_points.txt").write_text(f"{header}\n")
    archive.write_bytes(b"PK\x05\x06" + bytes(18))

    def loads(folder):
        known = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=known, check=True)
        return done.stdout.strip()

    assert [loads(folder) for folder in (named, other, archive)] == ["True", "False", "True"]


def test_plug_ins_can_be_left_out(monkeypatch):
    monkeypatch.setenv("DIAGNOSE_NO_PLUGINS", "1")
    assert load_plugins("diagnose.analyzers", "META", RuleMeta, frozenset()).modules == {}
