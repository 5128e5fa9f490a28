"""Other names, and what stands where a command belongs."""

import pytest
from click.shell_completion import BashComplete

from diagnose.cli.commands import cli
from diagnose.cli.main import run


@pytest.mark.parametrize("name", ["profile", "run", "record"])
def test_trace_has_other_names(name, monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(cli.commands["trace"], "callback", lambda **asked: seen.append((asked["steps"], asked["args"])))
    monkeypatch.chdir(tmp_path)
    assert run([name, "--steps", "7", "train.py", "--lr", "1"]) == 0
    assert (seen, capsys.readouterr().err) == ([(7, ("--lr", "1"))], "")


def test_a_script_in_the_place_of_a_command_is_answered_with_one_sentence(capsys):
    assert run(["my train.py", "--lr", "1"]) == 2
    told = "diagnose: error: my train.py is a script: record it with diagnose trace 'my train.py' --lr 1.\n"
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["analyze", "--partial", "a.ranks", "--html", "r.html", "x"], "--partial and --html exclude each other"),
        (["analyze", "--partial", "a.ranks", "--merge", "x"], "--partial and --merge exclude each other"),
        (["analyze", "--partial", "a.ranks", "-o", "r.txt", "x"], "--partial and --output exclude each other"),
        (["analyze", "--merge", "--export", "markdown=m.md", "x"], "--merge and --export exclude each other"),
        (["watch"], "Missing argument 'SCRIPT'."),
        (["watch", "--json", "train.py"], "--json, --output and --force go with --list"),
        (["watch", "--list", "resnet", "train.py"], "Unexpected argument after --list resnet: train.py."),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, sentence, capsys):
    assert run(words) == 2
    assert sentence in capsys.readouterr().err


def test_list_behind_the_script_is_the_script_s(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("diagnose.cli.watch.watch_and_answer", lambda request: seen.append(request.args) or 0)
    monkeypatch.chdir(tmp_path)
    assert run(["watch", "train.py", "--list", "--json"]) == 0
    assert seen == [("--list", "--json")]


@pytest.mark.parametrize(("words", "completed"), [("train.py --", ""), ("profile --ste", "--steps")])
def test_a_shell_that_completes_gets_options_and_no_errors(words, completed, monkeypatch, capsys):
    monkeypatch.setenv("COMP_WORDS", f"diagnose {words}")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert BashComplete(cli, {}, "diagnose", "_DIAGNOSE_COMPLETE").complete().find(completed) >= 0
    assert capsys.readouterr() == ("", "")
