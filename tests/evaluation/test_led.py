"""Which cases led to which rules: the file names what is there, and its cases are left out of a row of the tables."""

import importlib
from dataclasses import replace

import pytest
from yardstick.answer import Answer
from yardstick.case import Case, Recording, Truth
from yardstick.led import SILENCE, Led, read_led
from yardstick.page import table
from yardstick.scoring import judge
from yardstick.sets import read_sets
from yardstick.tools import TOOLS

from diagnose.analyzers import RULES

LED = read_led()
SETS = {each.name: each for each in read_sets()}
NAMED = {case for part in LED for cases in part.values() for case in cases}
SLOW = Truth("loads in one process", healthy=False, names=("data-stall",))
HEALTHY = Truth("", healthy=True, names=(SILENCE,))
STALL = Answer("waits for data", ("data-stall",))


def test_every_rule_has_an_entry_and_so_has_silence():
    assert set(LED.rules) == {rule.META.id for rule in RULES} | {SILENCE}


@pytest.mark.parametrize("name", LED.limits)
def test_every_limit_is_a_number_of_the_product(name):
    parts = name.split(".")
    constant = next(place for place, part in enumerate(parts) if part.isupper())
    found = importlib.import_module(".".join(parts[:constant]))
    for part in parts[constant:]:
        found = getattr(found, part)
    assert isinstance(found, int | float)
    assert LED.limits[name]


@pytest.mark.parametrize("name", sorted({case.partition("/")[0] for case in NAMED}))
def test_every_case_that_is_named_is_one_of_its_set(name):
    if not SETS[name].cases:
        pytest.skip(SETS[name].absent)
    assert SETS[name].opened
    assert {case for case in NAMED if case.startswith(f"{name}/")} <= {case.id for case in SETS[name].cases}


def mark(name, truth=SLOW, answer=STALL):
    return judge(TOOLS["diagnose"], Case("some", name, Recording(), lambda: truth), answer, 2.0)


@pytest.fixture
def made(monkeypatch):
    led = Led({"data-stall": frozenset({"some/led"}), SILENCE: frozenset({"some/calm"})}, {"a.MIN_SHARE": frozenset()})
    monkeypatch.setitem(TOOLS, "diagnose", replace(TOOLS["diagnose"], led=led))


@pytest.mark.parametrize(
    ("name", "truth", "answer", "is_led"),
    [
        ("led", SLOW, STALL, True),
        ("new", SLOW, STALL, False),
        ("led", SLOW, Answer("waits", ("host-sync",)), True),  # to the rule that is right
        ("led", Truth("slow", healthy=False), STALL, True),  # to the rule that answers
        ("led", Truth("slow", healthy=False), Answer("waits", ("host-sync",)), False),
        ("calm", HEALTHY, Answer(), True),
        ("calm", Truth("slow", healthy=False), Answer(), True),
        ("new", HEALTHY, Answer(), False),
    ],
)
@pytest.mark.usefixtures("made")
def test_a_case_led_to_its_answer_or_to_what_is_right_for_it(name, truth, answer, is_led):
    assert mark(name, truth, answer).is_led == is_led


def test_a_limit_may_decide_any_answer():
    led = Led({}, {"a.MIN_SHARE": frozenset({"some/led"})})
    assert led.holds("some/led", ["host-sync"])
    assert not led.holds("some/new", ["host-sync"])


@pytest.mark.usefixtures("made")
def test_a_row_of_each_table_is_without_these_cases():
    _, every, rest = table([mark("led"), mark("new"), mark("other", answer=Answer())])
    assert every.startswith("| diagnose | 3 of 3 | 2 of 3 (")
    assert rest.startswith("| diagnose, without the cases that led to its rules | 2 of 2 | 1 of 2 (")
    assert every.count("|") == rest.count("|")
    assert table([mark("led")])[2].startswith("| diagnose, without the cases that led to its rules | 0 of 0 | – |")


def test_what_others_wrote_has_no_such_row():
    judged = judge(TOOLS["hta"], Case("some", "led", Recording(), lambda: SLOW), STALL, 2.0)
    assert len(table([judged])) == 2
