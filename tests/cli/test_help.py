"""Every help page: its width, its groups, its examples, and one meaning for each option."""

import re
import shlex

import click
import pytest

from diagnose.cli.commands import cli
from diagnose.cli.help import RARE
from diagnose.cli.main import run

WORK = ["trace", "analyze", "explain", "prove", "what-if", "compare", "gate", "watch", "lint", "doctor"]
INTEGRATED = ["completion", "mcp"]
ORDER = WORK + INTEGRATED
MAX_LINES = 40  # of a page: it is read in one glance
PAGES = [[], *([name] for name in ORDER)]


@pytest.fixture
def page(monkeypatch, capsys):
    """Return the function that returns a command's help as a terminal of ``width`` columns shows it."""

    def shown(command, width):
        monkeypatch.setenv("COLUMNS", str(width))
        assert run([*command, "--help"]) == 0
        return capsys.readouterr().out

    return shown


def options_of(name):
    command = cli.commands[name]
    return [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", PAGES, ids=lambda names: " ".join(names) or "diagnose")
def test_no_line_is_longer_than_the_terminal_and_no_example_is_joined(command, width, page):
    text = page(command, width)
    assert [line for line in text.splitlines() if len(line) > width] == []
    assert len(text.splitlines()) <= MAX_LINES
    examples = (cli.commands[command[0]] if command else cli).examples
    assert 2 <= len(examples) <= 3
    assert text.rstrip().endswith("Examples:\n" + "\n".join(f"  {example}" for example in examples))


def test_commands_are_listed_in_the_order_of_use_each_on_one_line(page):
    text = page([], 80)
    listed = text.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == ORDER
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
    assert list(cli.commands) == ORDER


def test_all_pages_are_printed_one_after_the_other(page, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help-all"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("diagnose ")] == [f"diagnose {n}" for n in ORDER]
    assert text.startswith(page([], 80))
    assert run(["gate", "--help-all"]) == 0
    assert capsys.readouterr().out.partition("\n\n")[2].rstrip() in text


@pytest.mark.parametrize("name", ORDER)
def test_what_few_need_is_shown_upon_request(name, page, monkeypatch, capsys):
    flags = {flag for option in options_of(name) for flag in option.opts if flag.startswith("--")}
    short = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", page([name], 80), re.MULTILINE))
    assert short & RARE == set()
    assert flags - short == flags & RARE
    monkeypatch.setenv("COLUMNS", "80")
    assert run([name, "--help-all"]) == (0 if flags & RARE else 2)
    assert flags & RARE <= set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))


def test_every_option_that_few_need_is_one_of_a_command():
    assert {flag for name in ORDER for option in options_of(name) for flag in option.opts} >= RARE


@pytest.mark.parametrize("name", ORDER)
def test_a_page_begins_with_one_sentence(name):
    first = cli.commands[name].help.split("\n\n")[0]
    assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", " ".join(first.split())), first


@pytest.mark.parametrize("name", ORDER)
def test_every_option_is_described_in_a_sentence_and_has_a_group(name):
    assert [option.opts for option in options_of(name) if not re.match(r"[A-Za-z].*[.\]]$", option.help or "")] == []
    assert [option.opts for option in options_of(name) if not hasattr(option, "group")] == []


@pytest.mark.parametrize("name", WORK)
def test_every_command_that_prints_a_result_sends_it_the_same_way(name):
    assert {"--json", "--output", "--force", "--quiet"} <= {flag for option in options_of(name) for flag in option.opts}


def test_an_option_means_the_same_everywhere():
    meanings = {}
    for name in ORDER:
        for option in options_of(name):
            with click.Context(cli.commands[name]) as ctx:
                spelled, text = option.get_help_record(ctx)
            if option.name == "ids":  # what is done with the changes is the command's; they are named alike
                text = "changes"
            text = text.split(": .")[0]  # which formats a command has
            meanings.setdefault(max(option.opts, key=len), set()).add((spelled, text))
    assert {flag: found for flag, found in meanings.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    "example", [example for command in (cli, *cli.commands.values()) for example in command.examples]
)
def test_an_example_is_a_command_line_that_is_accepted(example):
    words = shlex.split(example)
    name, *args = words[words.index("diagnose") + 1 :]
    assert len(example) <= 78
    cli.commands[name].make_context(name, args)
