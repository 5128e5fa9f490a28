"""The documentation of the commands: generated where it lists options, accepted by the commands where it shows them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from diagnose.cli.commands import cli
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.text import render_answer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = {name: command for name, command in cli.commands.items() if not command.hidden}
NAMES = "|".join(COMMANDS)
COMMAND_LINE = re.compile(rf"^    (?:[^#\n]* )?diagnose ((?:{NAMES})\b[^#\n]*)", re.MULTILINE)
IN_A_TABLE = re.compile(rf"^\|.*\| `(?:[^`\n]* )?diagnose ((?:{NAMES}) [^`\n]+)` \|", re.MULTILINE)
SHOWN = [
    pytest.param(shlex.split(line.split(" | ")[0].split(" > ")[0]), id=f"{path.name}-{line.strip()}")
    for path in PAGES
    for form in (COMMAND_LINE, IN_A_TABLE)
    for line in form.findall(path.read_text(encoding="utf-8"))
    if not re.search(r"\[|…", line)  # a form with placeholders
]
OF_DIAGNOSE = {flag for command in COMMANDS.values() for option in command.params for flag in option.opts}


def test_the_page_of_the_commands_is_generated():
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "commands.py"), "--check"], check=False)
    assert done.returncode == 0, "run scripts/commands"


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_line_in_the_documentation_is_accepted(words):
    cli.commands[words[0]].make_context(words[0], words[1:])


def test_command_lines_are_found():
    assert {words.values[0][0] for words in SHOWN} == set(COMMANDS)


OWN_OPTIONS = ("cookbook", "prove", "trials", "compare", "report", "commands", "json", "limits", "watch")


@pytest.mark.parametrize("page", [f"{name}.md" for name in OWN_OPTIONS])
def test_no_page_names_an_option_that_is_not_there(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`([^`\n]+)`", text))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code))
    assert named - OF_DIAGNOSE - {"--help", "--help-all", "--nproc-per-node", "--standalone"} == set()


def test_every_option_is_in_the_section_of_its_command():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `([^`]+)` \|", text.split("## Common options\n")[1].split("\n## ")[0], re.MULTILINE)
    for name, command in COMMANDS.items():
        section = text.split(f"## diagnose {name}\n")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
        common = [
            row for line in re.findall(r"^\[Common\].*", section, re.MULTILINE) for row in re.findall("`(.+?)`", line)
        ]
        assert set(common) <= set(described)
        options = [o for o in command.params if isinstance(o, click.Option) and not o.hidden]
        named = [tuple(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row)) for row in (*rows, *common)]
        assert sorted(named) == sorted(tuple(option.opts) for option in options)


def test_what_the_readme_shows_is_how_the_output_begins():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```\n(.*?)```", text, re.DOTALL)
    printed = render_answer(analyze_paths([ROOT / "fixtures" / "traces" / "slow_dataset-planted"]), width=100)
    assert shown is not None
    assert printed.startswith(shown[1])
