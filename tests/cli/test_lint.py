"""diagnose lint: what a source shows by itself."""

import json
import textwrap

from click.testing import CliRunner

from diagnose.cli.main import cli

DATA = """
import numpy as np
from torch.utils.data import Dataset


class Clips(Dataset):
    def __init__(self, table):
        self.table = table.reset_index()
        self.kept = [name for name in self.table["name"]]
        for name in self.kept:
            print(name, self.table.iloc[0]["label"])

    def __getitem__(self, i):
        return float(self.table.iloc[i]["label"]), known(self.kept, i)


def known(names, i):
    names = list(names)
    while names:
        names.pop(0)


def main(model, opt, loader):
    shown = []
    for x in loader:
        model(x).backward()
        opt.step()
        shown.append(x)
        if len(shown) > 10:
            shown.pop(0)
"""


def lint(tmp_path, text, *options):
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return CliRunner().invoke(cli, ["lint", str(file), *options])


def test_lines_of_samples_of_training_loops_and_of_what_they_call_are_named(tmp_path):
    result = lint(tmp_path, DATA)
    named = [line for line in result.output.splitlines() if line.startswith(str(tmp_path))]
    assert [line.split(":")[1] for line in named] == ["14", "20", "30"]
    assert result.output.splitlines()[-1] == (
        "3 lines with a faster form. Not measured: diagnose trace shows what a line costs."
    )
    assert result.exit_code == 0


def test_json_has_the_edits_and_says_that_nothing_was_measured(tmp_path):
    remarks = json.loads(lint(tmp_path, DATA, "--json").output)["remarks"]
    assert [one["line"] for one in remarks] == [14, 20, 30]
    assert not any(one["measured"] for one in remarks)
    assert remarks[2]["code"] == "shown.pop(0)"


def test_a_source_without_such_lines(tmp_path):
    result = lint(tmp_path, "def main():\n    return [i for i in range(3)]\n")
    assert result.output == "No line with a known faster form. Not measured: diagnose trace shows what a line costs.\n"


def test_bad_input_is_one_sentence(tmp_path):
    for text, words in (("def f(:\n", "is not Python"), ("\0", "is not Python")):
        result = lint(tmp_path, text)
        assert (result.exit_code, words in str(result.output) + str(result.exception)) == (1, True)
    missing = CliRunner().invoke(cli, ["lint", str(tmp_path / "none.py")])
    assert "Cannot read" in str(missing.output) + str(missing.exception)
