"""A capture's command is data from a file: what cannot be run is one sentence, and nothing runs unread."""

import json
import os
import sys

import click
import pytest

from diagnose.cli.prove import ProveRequest, prove_and_answer
from diagnose.errors import UsageError
from diagnose.trials.runs import recorded_command


@pytest.fixture
def capture(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit(9)")
    (tmp_path / "capture").mkdir()

    def write(**fields):
        recorded = {"schema_version": 1, "command": ["train.py", "--lr", "1"], "cwd": str(tmp_path), "world_size": 1}
        (tmp_path / "capture" / "capture.json").write_text(json.dumps(recorded | fields))
        return tmp_path / "capture"

    return write


def test_ranks_are_started_as_they_were(capture, tmp_path):
    command = recorded_command(capture(world_size=2), ())
    assert (command.script, command.cwd) == (("train.py", "--lr", "1"), tmp_path)
    assert command.launcher[:2] == (sys.executable, "-m")
    assert command.launcher[-1] == "--nproc-per-node=2"
    assert recorded_command(capture(world_size=2), ("mine",)).launcher == ("mine",)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"schema_version": 2}, "written by a newer diagnose"),
        ({"rank": 3}, "its rank 3 is not below its world_size 1"),
        ({"command": "rm -rf"}, "its field command is wrong"),
        ({"command": ["train.py", 7]}, r"its field command\[1\] is wrong"),
        ({"command": ["train.py", "a\0b"]}, "no command"),
        ({"command": ["train.py", "\ud800"]}, "no command"),
        ({"command": ["<notebook>"]}, "not captured from a script"),
        ({"command": ["nowhere.py"]}, "does not exist here"),
        ({"command": ["train.py", "x" * 40_000]}, "longer than 32,000"),
        ({"cwd": "/nowhere/at/all"}, "does not exist here"),
        ({"cwd": ["."]}, "its field cwd is wrong"),
        ({"cwd": "a\0b"}, "does not exist here"),
        ({"world_size": 1_025}, "from 1 to 1,024"),
        ({"world_size": -1}, "its field world_size is wrong"),
        ({"world_size": 10**9}, "its field world_size is wrong"),
        ({"world_size": "2"}, "its field world_size is wrong"),
        ({"world_size": None}, "its field world_size is wrong"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(capture, fields, why):
    with pytest.raises(UsageError, match=why) as caught:
        recorded_command(capture(**fields), ())
    assert "\n" not in str(caught.value)


def test_a_description_that_is_none_is_one_sentence(tmp_path):
    path = tmp_path / "capture.json"
    for text in ("[" * 100_000, "[]", "{", "\xff", "{}", '{"schema_version": 2}'):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(UsageError, match="name the script instead"):
            recorded_command(tmp_path, ())
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="not a description of a capture"):
        recorded_command(tmp_path, ())


def test_yes_alone_does_not_agree_to_it_and_it_is_shown_without_what_steers_a_terminal(capture, capsys):
    folder = capture(command=["train.py", "\x1b[2J\u202egone\nsecond line"])
    with pytest.raises(UsageError, match="pass --trust-command") as caught:
        prove_and_answer(ProveRequest(script=str(folder), yes=True))
    assert r"python train.py '\x1b[2J\u202egone second line'" in str(caught.value)
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert r"python train.py '\x1b[2J\u202egone second line' repeatedly" in shown


def test_asked_on_a_terminal_no_is_the_default(capture, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("click.confirm", lambda text, **options: asked.append((text, options["default"])))
    with pytest.raises(UsageError, match="nothing was run"):
        prove_and_answer(ProveRequest(script=str(capture()), yes=True))
    assert asked == [("Run python train.py --lr 1?", False)]


def test_an_input_that_ends_at_the_question_is_a_sentence_with_a_remedy(capture, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def ended(*_args, **_options):
        raise click.Abort

    monkeypatch.setattr("click.confirm", ended)
    with pytest.raises(UsageError, match=r"nothing was run.* pass --yes --trust-command to run"):
        prove_and_answer(ProveRequest(script=str(capture())))


def test_trusted_beside_yes_it_runs(capture, monkeypatch):
    class ReachedError(Exception):
        pass

    def reached():
        raise ReachedError

    monkeypatch.setattr("diagnose.cli.prove.run_folder", reached)
    with pytest.raises(ReachedError):
        prove_and_answer(ProveRequest(script=str(capture()), yes=True, trust_command=True))


def test_a_shared_folder_is_announced_with_what_it_risks(capture, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--yes"):
        prove_and_answer(ProveRequest(script="train.py", cwd_mode="same"))
    assert "may overwrite, append to and remove files" in capsys.readouterr().err


def test_a_launcher_that_is_not_there_is_one_sentence(capture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for launcher, why in (("no-such-launcher 2", "command no-such-launcher was not found"), ("torchrun '", "quotes")):
        with pytest.raises(UsageError, match=why):
            prove_and_answer(ProveRequest(script="train.py", launcher=launcher, yes=True))
