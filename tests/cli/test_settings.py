"""Where an option's value comes from: the command line, for the language the environment too, its own default."""

import json
from pathlib import Path

import pytest

from diagnose.cli.commands import cli
from diagnose.cli.main import run

CAPTURE = str(Path(__file__).parents[2] / "fixtures" / "traces" / "slow_dataset-planted")


def rules_left_out(capsys, *words):
    assert run([*words, CAPTURE, "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    return found["ignored"] if words[0] == "compare" else [one["finding"]["rule"] for one in found["ignored"]]


def test_rules_are_left_out_by_the_command(capsys):
    assert rules_left_out(capsys, "analyze") == []
    assert rules_left_out(capsys, "compare", CAPTURE, "--ignore", "data-stall") == ["data-stall"]
    assert rules_left_out(capsys, "analyze", "--ignore", "launch-bound,data-stall") == ["data-stall", "launch-bound"]
    assert run(["analyze", "--select", "data-stal", CAPTURE]) == 2
    assert "Unknown rule 'data-stal' of --select: the nearest is data-stall." in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell, capsys):
    assert run(["completion", shell]) == 0
    assert "_DIAGNOSE_COMPLETE" in capsys.readouterr().out


@pytest.fixture
def lang(monkeypatch, tmp_path):
    """Return the function that runs ``diagnose analyze`` and returns the value that --lang had."""
    seen = []
    monkeypatch.setattr(cli.commands["analyze"], "callback", lambda **asked: seen.append(asked["lang"]))
    monkeypatch.chdir(tmp_path)

    def value(*args):
        assert run(["analyze", *args, "trace.json"]) == 0
        return seen.pop()

    return value


def test_one_language_is_set_for_all_commands(lang, monkeypatch):
    assert lang() == "en"
    monkeypatch.setenv("DIAGNOSE_LANG", "zh")
    assert lang() == "zh"
    assert lang("--lang", "en") == "en"


def test_a_language_that_is_none_is_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIAGNOSE_LANG", "fr")
    assert run(["analyze", "trace.json"]) == 2
    assert "'fr' is not one of 'en', 'zh'" in capsys.readouterr().err
