"""Where results go: JSON and files in the same way in every command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.cli import main as cli
from diagnose.cli.output import ResultRequest, answer_text, plan_text, print_result
from diagnose.errors import OutputError, UsageError
from diagnose.pipeline import what_if


@pytest.fixture
def replayed(monkeypatch, tmp_path):
    """Let what-if predict the same for every recording."""

    class Answer:
        def text(self):
            return "step now   1.00 ms"

        def to_json(self):
            return '{"now_ms": 1.0}'

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(what_if, "run_what_if", lambda path, request: Answer())
    return tmp_path


def test_json_is_all_of_standard_output_and_a_file_is_written_besides(replayed, capsys):
    assert cli.run(["what-if", "a.json", "--json", "-o", "r.txt"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"now_ms": 1.0}
    assert shown.err == "diagnose: wrote r.txt\n"
    assert (replayed / "r.txt").read_text() == "step now   1.00 ms\n"
    assert cli.run(["what-if", "a.json", "-q", "-o", "r.json"]) == 0
    assert capsys.readouterr() == ("step now   1.00 ms\n", "")
    assert json.loads((replayed / "r.json").read_text()) == {"now_ms": 1.0}


def test_text_has_the_language_that_was_asked_for_and_json_has_one(replayed, capsys):
    assert cli.run(["what-if", "a.json", "--lang", "zh", "-q", "-o", "r.json"]) == 0
    assert capsys.readouterr().out == "当前步时   1.00 ms\n"
    assert json.loads((replayed / "r.json").read_text()) == {"now_ms": 1.0}
    assert cli.run(["what-if", "a.json", "-q"]) == 0
    assert capsys.readouterr().out == "step now   1.00 ms\n"


def test_an_existing_file_needs_force(replayed, capsys):
    (replayed / "r.json").write_text("mine")
    assert cli.run(["what-if", "a.json", "-o", "r.json"]) == 6
    assert (replayed / "r.json").read_text() == "mine"
    assert cli.run(["what-if", "a.json", "-o", "r.json", "--force"]) == 0
    assert (replayed / "r.json").read_text() == '{"now_ms": 1.0}\n'


@pytest.mark.parametrize(
    "argv", [["what-if", "a.json"], ["compare", "a.json", "b.json"], ["explain"], ["gate", "a", "b"]]
)
def test_a_suffix_without_a_format_is_refused_in_the_same_words(replayed, capsys, argv):
    assert cli.run([argv[0], "-o", "r.md", *argv[1:]]) == 2
    formats = ".json or .txt" if argv == ["explain"] else ".html, .json or .txt"
    error = f"diagnose: error: Invalid --output 'r.md': the name must end in {formats}.\n"
    assert capsys.readouterr().err.endswith(error)


def test_an_input_is_no_output(tmp_path):
    (tmp_path / "a.json").write_text("mine")
    request = ResultRequest(output=str(tmp_path / "a.json"), force=True)
    with pytest.raises(UsageError, match="which is read"):
        plan_text(request, inputs=[tmp_path / "a.json"])


def test_a_file_that_cannot_be_written_costs_no_answer(tmp_path, capsys):
    path = tmp_path / "r.txt"
    path.write_text("of another process")
    with pytest.raises(OutputError, match="exists already"):
        answer_text(lambda: "text", lambda: "{}", ResultRequest(output=str(path)), [path])
    assert capsys.readouterr().out == "text\n"


def test_a_reader_that_goes_away_is_no_fault():
    code = "from diagnose.cli import main; import sys; sys.exit(main.run(['explain', '--json']))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], check=False, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


CLOSED = "diagnose: error: Standard output is closed, so the result has no place to go; leave it open, or "
SLOW_DATASET = Path(__file__).parents[2] / "fixtures" / "captures" / "slow_dataset"


def with_closed_output(*argv):
    """Return exit code and standard error of a command that starts without a standard output."""
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "diagnose", *map(str, argv)]
    done = subprocess.run(shell, check=False, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "argv", [["analyze", "-q", SLOW_DATASET], ["what-if", "-q", SLOW_DATASET], ["explain", "--json"]]
)
def test_a_closed_standard_output_is_one_sentence_and_its_code(argv):
    code, errors = with_closed_output(*argv)
    assert code == 6
    assert errors.startswith(CLOSED)
    assert errors.count("\n") == 1


@pytest.mark.parametrize("argv", [["analyze", "-q", SLOW_DATASET], ["explain", "-q", "data-stall"]])
def test_a_file_needs_no_standard_output(tmp_path, argv):
    path = tmp_path / "r.txt"
    assert with_closed_output(*argv, "-o", path) == (0, "")
    assert "data-stall" in path.read_text()


def test_a_terminal_without_the_characters_gets_replacements(monkeypatch, tmp_path):
    path = tmp_path / "out.txt"
    with path.open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        print_result("1 \u00b5s \u00d7 \u2588\u2588\u2593\u2592\u2591\u00b7 \u2581\u2584\u2587 \u6f22")
    assert path.read_text() == "1 us x ##=-., _-* ?\n"


def test_files_are_written_although_the_reader_of_standard_output_has_gone(tmp_path, monkeypatch):
    def gone(_text, **_options):
        raise SystemExit(141)

    monkeypatch.setattr("diagnose.cli.output.print_result", gone)
    request = ResultRequest(output=str(tmp_path / "a.json"), html=str(tmp_path / "a.html"), quiet=True)
    files = plan_text(request, has_page=True)
    with pytest.raises(SystemExit):
        answer_text(lambda: "text", lambda: "{}", request, files, page=lambda: "<p>")
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "{}\n"
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == "<p>\n"
