"""The pages of rules, changes and advice, found by name."""

import json

import pytest

from diagnose import analyzers
from diagnose.cli import main as cli
from diagnose.cli.explain import change_page, rule_pages, titles


def test_a_rules_page_is_its_docstring():
    pages = {page.id: page for page in rule_pages()}
    assert set(pages) == set(analyzers.META)
    for page in pages.values():
        assert [heading for heading, _ in page.page.sections] == [
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
    assert [lines.index(h) for h in ("What it looks for", "Why it costs", "What to do", "How sure")] == [4, 7, 11, 15]
    assert max(map(len, lines)) <= 80


def test_a_rule_as_json(capsys):
    assert cli.run(["explain", "gc-pause", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["type"], shown["id"], shown["kind"]) == ("rule", "gc-pause", "idle")
    assert shown["sections"]["How sure"].startswith("The records are exact")


def test_a_change_that_a_trial_makes_is_explained(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.run(["explain", "allow-tf32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["allow-tf32: a change", "", "Allow TF32 for float32 products"]
    facts = {
        heading: lines[lines.index(heading) + 1].strip() for heading in ("Trial", "Patch", "Remedy", "Prescribed by")
    }
    assert facts == {
        "Trial": "prove applies it to the unmodified script if its diff does not apply; needs a GPU. The losses",
        "Patch": "prove --write-patch writes it into the script.",
        "Remedy": "diagnose.kernels.matmul_precision",
        "Prescribed by": "full-precision-matmul",
    }


def test_advice_is_explained_as_such(capsys):
    assert cli.run(["explain", "own-device"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("own-device: advice\n\nRun on a device that no other process uses\n")
    assert "Advice: no trial applies it." in shown
    assert change_page("own-device").rules == ("device-contention",)


def test_every_change_and_every_advice_has_all_its_facts():
    for name in titles():
        page = change_page(name)
        assert page.page.sections or page.is_advice, name
        assert all((page.title, page.numbers, page.trial, page.patch)), name
        assert page.trial.endswith("."), name
        assert not {"{", "}"} & set(page.title), name


def test_a_change_as_json(capsys):
    assert cli.run(["explain", "defer_sync", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["type"], shown["id"], shown["rules"]) == ("change", "defer-sync", ["host-sync"])
    assert shown["numbers"] == "Same numbers, one step later."


def test_no_change_has_the_name_of_a_rule():
    assert set(titles()) & set(analyzers.META) == set()


def test_everything_is_listed_with_one_line_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted([*analyzers.META, *titles()])
    (line,) = (line for line in lines if line.startswith("  load-in-workers "))
    assert line.endswith("  Load batches in worker processes, ahead of the step")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gc-pase", "did you mean gc-pause?"),
        ("data_stal", "did you mean data-stall"),
        ("allow-tf23", "did you mean allow-tf32"),
        ("xyzzy", "diagnose explain lists all of them."),
    ],
)
def test_a_typo_gets_the_closest_names(capsys, name, hint):
    assert cli.run(["explain", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"diagnose: error: Unknown rule or change '{name}': {hint}")
    assert error.count("\n") == 1
