"""A command of a report, pasted into bash, has the words that the user typed."""

import html
import re
import subprocess
from dataclasses import replace

import pytest

from diagnose.answer.screen import answer
from diagnose.reports.html import render as page
from diagnose.reports.markdown import as_markdown
from diagnose.reports.text import render
from diagnose.text.commands import command_line

BASH = """\
diagnose() { printf '%s\\0' "$@"; printf '\\n'; }
cd "$1" || exit
"""
SCRIPT = ["train.py"]
ENDS = [  # of 40 command lines
    [], [""], ["--weights", ""], ["--weights="], ["", "", "x"],
    ["--shards", "data-{0000..0003}.tar"], ["{a,b}"], ["*"], ["*.py"], ["a?"], ["[ab]"], ["~"], ["~root/x"],
    ["--name", "a b"], ["a  b"], ["  a "], ["tab\there"], ["two\nlines"], ["cr\rhere"], ["bell\x07"], ["\x1b[31mred"],
    ["it's"], ['say "so"'], ["`date`"], ["``a`"], ["$HOME"], ["${HOME}"], ["$(date)"], ["a;b"], ["a&&b", "|", "c"],
    [">out"], ["<in"], ["#comment"], ["!!"], ["back\\slash"], ["trailing\\"], ["ä", "名前", "e\u0301"], ["\u202egnp"],
    ["d\udcff/x"], ["--long", "x" * 1500, "y z" * 100], ["-m", "&lt;b&gt;", "<b>"],
]  # fmt: skip


@pytest.fixture
def run_in_bash(tmp_path):
    """Return the function that gives the words that ``diagnose`` gets from each line, in a folder where globs match."""
    for name in ("a", "ab", "train.py", "data-0000.tar"):
        (tmp_path / name).touch()

    def words(lines):
        done = subprocess.run(
            ["bash", "-c", BASH + "\n".join(lines), "bash", str(tmp_path)], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found = done.stdout.decode("utf-8", "surrogateescape").split("\0\n")[:-1]
        return [each.split("\0") for each in found]

    return words


@pytest.fixture
def diagnoses(recording):
    """Return one diagnosis for each command line, of which only a trial shows what changes would save."""
    r = recording(devices=())
    r.with_info(flags={"bfloat16": True}, command=SCRIPT)
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 900)

    def with_command(words):
        r.with_info(flags={"bfloat16": True}, command=words)
        return r.diagnosis()

    return [with_command([*SCRIPT, *end]) for end in ENDS]


def in_text(d):
    (line,) = (line for line in render(d).splitlines() if line.lstrip().startswith("$ diagnose"))
    return line.lstrip().removeprefix("$ ")


def in_page(d):
    (code,) = re.findall(r"<code>(diagnose (?:prove --apply|trace).*?)</code>", page(d, charts=False), re.DOTALL)
    return html.unescape(code)


def in_markdown(d):
    (line,) = (line for line in as_markdown(d, answer(d)).splitlines() if line.startswith("    diagnose "))
    return line.removeprefix("    ")


@pytest.mark.parametrize("shown", [in_text, in_page, in_markdown])
def test_a_command_survives_a_paste(diagnoses, run_in_bash, shown):
    found = run_in_bash([shown(d) for d in diagnoses])
    options = ["prove", "--apply", "autocast,compile-model"]
    assert found == [[*options, *SCRIPT, *end] for end in ENDS]
    again = [replace(d, record_again="The file is cut off.") for d in diagnoses]
    assert run_in_bash([shown(d) for d in again]) == [["trace", "--quick", *SCRIPT, *end] for end in ENDS]


def test_the_command_of_a_code_span_is_whole_unless_it_is_very_long(diagnoses, run_in_bash):
    lines, ends = [], [end for end in ENDS if sum(map(len, end)) < 1000]
    for d in (d for d in diagnoses if len(d.source.command) < 1000):
        last = as_markdown(d, answer(d)).splitlines()[-1].rpartition(" · ")[0]
        fence = re.match("`+", last)[0]
        assert last.endswith(fence)
        inner = last[len(fence) : -len(fence)]
        assert not re.search(f"(?<!`){fence}(?!`)", inner)
        lines.append("diagnose " + (inner[1:-1] if len(fence) > 1 else inner))
    assert run_in_bash(lines) == [[*SCRIPT, *end] for end in ends]


def test_a_character_of_no_encoding_is_shown_and_lost():
    assert command_line(["\ud800"]) == "$'?'"
