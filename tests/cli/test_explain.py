"""The pages of rules and changes, found by name, without importing what they explain."""

import json
import subprocess
import sys

import pytest

from diagnose import analyzers
from diagnose.cli import main as cli
from diagnose.cli.explain import rule_pages


def test_what_is_read_from_the_sources_is_what_the_rules_state():
    pages = {page.id: page for page in rule_pages()}
    assert set(pages) == set(analyzers.META)
    for name, meta in analyzers.META.items():
        assert (pages[name].kind, pages[name].changes) == (meta.kind, meta.changes)
        assert [heading for heading, _ in pages[name].page.sections] == [
            "What it looks for",
            "Why it costs",
            "What to do",
            "How sure",
        ]


@pytest.mark.parametrize("name", ["gc-pause", "gc_pause", "GC-Pause"])
def test_a_rule_is_explained(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["explain", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gc-pause: a rule about idle time"
    assert lines[2] == "Python's garbage collector stops the training thread."
    assert [lines.index(h) for h in ("What it looks for", "Why it costs", "What to do", "How sure")] == [4, 9, 14, 18]
    assert max(map(len, lines)) <= 80


def test_a_rule_as_json(capsys):
    assert cli.run(["explain", "gc-pause", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["type"], shown["id"], shown["kind"]) == ("rule", "gc-pause", "idle")
    assert shown["sections"]["How sure"].startswith("The records are exact")


def test_everything_is_listed_with_one_line_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= set(analyzers.META)
    assert "  memset-traffic         Memory is filled with zeros, or another number, over and over." in lines


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gc-pase", "did you mean gc-pause?"),
        ("data_stal", "did you mean data-stall"),
        ("xyzzy", "diagnose explain lists all of them."),
    ],
)
def test_a_typo_gets_the_closest_names(capsys, name, hint):
    assert cli.run(["explain", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"diagnose: error: Unknown rule or change '{name}': {hint}")
    assert error.count("\n") == 1


def test_explaining_imports_nothing_heavy():
    code = (
        "import sys; from diagnose.cli import main; main.run(['explain', 'gc-pause']); main.run(['explain']);"
        "print(sorted({'torch', 'numpy', 'rich', 'msgspec', 'diagnose.analyzers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
