"""Options behind the script are the script's; one hint names those that diagnose has too."""

import pytest

from diagnose.cli import commands
from diagnose.cli.help import shared_names

OPTIONS = {"--steps", "--json", "-o", "--output", "-h", "--help"}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs a command up to its body and returns what it was called with."""
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        command = commands.cli.commands[argv[0]]
        seen = {}
        monkeypatch.setattr(command, "callback", lambda **asked: seen.update(asked))
        commands.cli.main(list(argv), prog_name="diagnose", standalone_mode=False)
        return seen

    return call


def test_an_option_behind_the_script_gets_a_hint_and_reaches_the_script(run, capsys):
    assert run("trace", "train.py", "--steps", "5")["args"] == ("--steps", "5")
    assert capsys.readouterr().err == (
        "diagnose: --steps after the script goes to the script; put it before train.py to set diagnose's own\n"
    )


def test_several_options_get_one_hint(run, capsys):
    run("prove", "train.py", "--json", "--budget=5m", "--lr", "1", "--json")
    assert capsys.readouterr().err == (
        "diagnose: --json, --budget after the script go to the script; put them before train.py to set diagnose's own\n"
    )


def test_the_gate_has_the_hint_too(run, capsys):
    run("gate", "base.json", "train.py", "--tolerance", "5%")
    assert "--tolerance after the script goes to the script; put it before train.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ("trace", "--steps", "5", "train.py", "--epochs", "3"),  # the names are the script's alone
        ("trace", "train.py", "--help"),
        ("trace", "--", "train.py", "--steps", "5"),
        ("trace", "train.py", "--", "--steps", "5"),
        ("trace", "--quiet", "train.py", "--steps", "5"),
        ("gate", "base.json", "report.json", "--junit", "x"),  # no script; the command itself refuses it
    ],
)
def test_there_is_no_hint_where_it_would_not_help(run, capsys, argv):
    run(*argv)
    assert capsys.readouterr().err == ""


def test_other_ranks_give_no_hint(run, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run("trace", "train.py", "--steps", "5")
    assert capsys.readouterr().err == ""


def test_a_script_that_mentions_the_option_takes_it(run, capsys, tmp_path):
    (tmp_path / "train.py").write_text("parser.add_argument('--steps', type=int)\n")
    run("trace", "train.py", "--steps", "5", "--json")
    assert capsys.readouterr().err == (
        "diagnose: --json after the script goes to the script; put it before train.py to set diagnose's own\n"
    )


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ((), []),
        (("--steps=5", "-o", "x"), ["--steps", "-o"]),
        (("5", "steps", "--step"), []),
        (("--json", "--", "--steps"), ["--json"]),
    ],
)
def test_names_that_both_have(args, names):
    assert shared_names(args, OPTIONS, "") == names


def test_a_script_that_cannot_be_read_is_left_to_the_command(tmp_path):
    assert shared_names(["--json"], OPTIONS, str(tmp_path)) == ["--json"]
    assert shared_names(["--steps"], {"--steps"}, "no\0name") == ["--steps"]
