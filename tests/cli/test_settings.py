"""Where an option's value comes from: the command line, the environment, the project, its own default."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from diagnose.cli.commands import cli
from diagnose.cli.main import run
from diagnose.cli.settings import defaults_of
from diagnose.errors import UsageError

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no parser of TOML")

CAPTURE = str(Path(__file__).parents[2] / "fixtures" / "traces" / "slow_dataset-planted")


@pytest.fixture
def every(monkeypatch, tmp_path):
    """Return the function that runs ``diagnose watch`` and returns the value that --every had."""
    seen = []
    monkeypatch.setattr(cli.commands["watch"], "callback", lambda **asked: seen.append(asked["every"]))
    monkeypatch.chdir(tmp_path)

    def value(*args):
        assert run(["watch", *args, "train.py"]) == 0
        return seen.pop()

    return value


def test_the_command_line_beats_the_environment_and_that_the_project(every, tmp_path, monkeypatch):
    assert every() == 50
    (tmp_path / "pyproject.toml").write_text("[tool.diagnose.watch]\nevery = 20\n")
    assert every() == 20
    monkeypatch.setenv("DIAGNOSE_WATCH_EVERY", "30")
    assert every() == 30
    assert every("--every", "40") == 40


@pytest.mark.parametrize(
    ("name", "key", "without"),
    [
        ("YES", "yes", False),
        ("TRUST_COMMAND", "trust_command", False),
        ("LAUNCHER", "launcher", ""),
        ("FORCE", "force", False),
    ],
)
def test_the_environment_gives_no_consent(name, key, without, monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(cli.commands["prove"], "callback", lambda **asked: seen.append(asked[key]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"DIAGNOSE_PROVE_{name}", "1")
    assert run(["prove", "train.py"]) == 0
    assert seen == [without]
    option = f"--{key.replace('_', '-')}"
    assert (
        capsys.readouterr().err == f"diagnose: DIAGNOSE_PROVE_{name} is not used: give {option} on the command line\n"
    )


def rules_left_out(capsys, *words):
    assert run([*words, CAPTURE, "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    return found["ignored"] if words[0] == "compare" else [one["finding"]["rule"] for one in found["ignored"]]


def test_rules_are_left_out_by_the_command_the_environment_and_the_project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert rules_left_out(capsys, "analyze") == []
    (tmp_path / "pyproject.toml").write_text('[tool.diagnose]\nignore = ["data-stall"]\n')
    assert rules_left_out(capsys, "analyze") == ["data-stall"]
    assert rules_left_out(capsys, "compare", CAPTURE) == ["data-stall"]
    monkeypatch.setenv("DIAGNOSE_IGNORE", "launch-bound")
    assert rules_left_out(capsys, "analyze") == ["launch-bound"]
    assert rules_left_out(capsys, "analyze", "--ignore", "launch-bound,data-stall") == ["data-stall", "launch-bound"]
    assert run(["analyze", "--select", "data-stal", CAPTURE]) == 2
    assert "Unknown rule 'data-stal' of --select: the nearest is data-stall." in capsys.readouterr().err


def test_the_nearest_project_with_the_table_counts(tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.diagnose.trace]\nmax-mb = 7\n")
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert defaults_of(cli, below) == {"trace": {"max_mb": 7}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.diagnose.trase]\nsteps = 1\n", "has no table 'trase'"),
        ("[tool.diagnose]\nsteps = 1\n", "has no table 'steps'"),
        ("[tool.diagnose.trace]\nstep = 1\n", "has no 'step'; use one of copy, "),
        ("[tool.diagnose.prove]\nyes = true\n", "cannot set 'yes' for every run; type --yes"),
        ("[tool.diagnose.gate]\nupdate = true\n", "cannot set 'update' for every run; type --update"),
        ("[tool.diagnose]\nignore = 'data-stall'\n", "Invalid ignore of [tool.diagnose]"),
        ("[tool.diagnose.trace\n", "cannot be read"),
        ("[tool.diagnose.watch]\nevery = 'often'\n", "Invalid value for '--every'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_exit_code_2(every, tmp_path, capsys, text, said):
    (tmp_path / "pyproject.toml").write_text(text)
    assert run(["watch", "train.py"]) == 2
    assert said in capsys.readouterr().err


# All options that a table may set: how long and what to measure, how much the analysis may take, and what is shown.
ALLOWED = {
    "trace": "steps skip step-on max-seconds max-mb quick keep-going copy ranks verbose lang select ignore",
    "analyze": "workers no-cache verbose lang select ignore",
    "prove": "apply budget step-on verbose lang select ignore",
    "compare": "tolerance lang select ignore",
    "gate": "tolerance runs lang select ignore",
    "what-if": "apply lang",
    "watch": "name every step-on slow windows window-mb",
}


@pytest.mark.parametrize("command", list(cli.commands))
def test_a_project_sets_what_is_measured_and_shown_and_nothing_else(tmp_path, command):
    options = [each for each in cli.commands[command].params if isinstance(each, click.Option) and not each.hidden]
    names = {name[2:] for each in options for name in each.opts if name.startswith("--")}
    refused = {}
    for name in names:
        (tmp_path / "pyproject.toml").write_text(f"[tool.diagnose.{command}]\n{name} = 1\n")
        try:
            defaults_of(cli, tmp_path)
        except UsageError as error:
            refused[name] = str(error).partition(": ")[2]
    assert names - set(refused) == set(ALLOWED.get(command, "").split())
    assert refused == {
        name: f"[tool.diagnose.{command}] cannot set '{name}' for every run; type --{name}." for name in refused
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell):
    environment = os.environ | {"_DIAGNOSE_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-m", "diagnose"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert "_DIAGNOSE_COMPLETE" in done.stdout


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


def test_one_language_is_set_for_all_commands(lang, tmp_path, monkeypatch):
    assert lang() == "en"
    (tmp_path / "pyproject.toml").write_text('[tool.diagnose]\nlang = "zh"\n[tool.diagnose.watch]\nevery = 20\n')
    assert lang() == "zh"
    assert defaults_of(cli, tmp_path)["watch"]["every"] == 20
    monkeypatch.setenv("DIAGNOSE_LANG", "en")
    assert lang() == "en"
    assert lang("--lang", "zh") == "zh"


def test_a_language_that_is_none_is_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIAGNOSE_LANG", "fr")
    assert run(["analyze", "trace.json"]) == 2
    assert "'fr' is not one of 'en', 'zh'" in capsys.readouterr().err
