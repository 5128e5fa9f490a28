"""Former names, other names, and what stands where a command belongs."""

import json
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from diagnose.cli.commands import cli
from diagnose.cli.main import run

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
ONE, RANKS = str(TRACES / "healthy-planted"), str(TRACES / "barrier_every_step-planted")


@pytest.fixture
def answer(monkeypatch, tmp_path, capsys):
    """Return the function that runs a command in an empty folder and returns its output and its errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        assert run(list(words)) == 0
        return capsys.readouterr()

    return call


def note(name, now):
    return f"diagnose: {name} is deprecated: use {now}\n"


def test_summarize_and_reduce_write_and_read_summaries(answer):
    assert answer("summarize", "-q", RANKS, "-o", "a.ranks").err == note("summarize", "analyze --partial FILE")
    assert answer("analyze", "-q", RANKS, "--partial", "b.ranks") == ("", "")
    assert Path("a.ranks").read_bytes() == Path("b.ranks").read_bytes()
    shown = answer("reduce", "-q", "--json", "a.ranks")
    assert shown.err == note("reduce", "analyze --merge")
    assert shown.out == answer("analyze", "--merge", "-q", "--json", "b.ranks").out
    assert len(json.loads(shown.out)["ranks"]) == 2


def test_history_lists_watched_runs(answer):
    run_folder = Path("diagnose-runs") / "resnet" / "2026-01-31T09-15-00-4711"
    run_folder.mkdir(parents=True)
    (run_folder / "run.json").write_text(json.dumps({"name": "resnet", "started_at": "2026-01-31T09:15:00", "pid": 1}))
    (run_folder / "rows.jsonl").write_text("")
    assert answer("history") == ("resnet\n", note("history", "watch --list"))
    listed = answer("watch", "--list", "resnet", "--json").out
    assert answer("history", "resnet", "--json") == (listed, note("history", "watch --list"))
    assert json.loads(listed)["name"] == "resnet"


def test_export_writes_the_forms_of_other_tools(answer):
    shown = answer("export", "-q", ONE, "--markdown", "a.md", "--kernels", "a.csv", "--tensorboard", "log")
    now = answer("analyze", "-q", ONE, "--export", "markdown=b.md", "--export", "kernels=b.csv")
    assert shown == (now.out, note("export", "analyze --export KIND=FILE"))
    assert Path("a.md").read_text() == Path("b.md").read_text()
    assert Path("a.csv").read_text() == Path("b.csv").read_text()
    assert len(list(Path("log").iterdir())) == 2


def test_former_names_are_in_no_list(answer):
    assert not {"summarize", "reduce", "history", "export"} & set(answer("--help-all").out.split())


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
        (["analyze", "--workers", "2", "--cluster", "tcp://h:1", "x"], "--workers is for this machine"),
        (["analyze", "--cluster", "h:1", "x"], "Invalid --cluster 'h:1': use tcp://HOST:PORT, file:SCHEDULER.json or"),
        (["analyze", "--cluster", "slurm", "x"], "--cluster slurm needs an allocation: run it inside sbatch or salloc"),
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
