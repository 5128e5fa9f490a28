"""Simulated runs as files: every dialect is read without damage, and answers are scored by the written rules."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from simulation.cases import draw_case
from simulation.command import below_floors, run_simulated
from simulation.dialects import DIALECTS
from simulation.kineto import trace_of, write_run
from simulation.scoring import Answer, Claim, _judge, names_of
from simulation.tables import dialect_agreement

from diagnose import analyze_trace

CASES = {"nvidia": 7, "amd": 2}  # small ones of seed 1
EXPECTED_NOTES = (
    "Recording ",
    "no step marks",
    "Neither Python frames",
    "shapes were recorded",
    "have no launch in the file",
)


@pytest.fixture(scope="module")
def recorded():
    found = {}
    for vendor, index in CASES.items():
        situation = draw_case(1, index).situation
        assert situation.machine.gpu.vendor == vendor
        found[vendor] = replace(situation, steps=3).recorded()
    return found


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_dialect_is_read_whole(recorded, dialect, tmp_path):
    run = recorded[dialect.vendor]
    diagnosis = analyze_trace(*write_run(run, dialect, tmp_path))
    damage = [note.text for note in diagnosis.trust if not any(part in note.text for part in EXPECTED_NOTES)]
    if dialect.correlated:  # launches and tasks linked by arrows alone are not joined yet
        assert not damage
        assert diagnosis.queue.launches_per_step > 0
    if dialect.marks:
        assert diagnosis.steps == 3
        assert diagnosis.step_ns == pytest.approx(run.step_ns, rel=0.05)


def test_a_dialect_changes_words_and_not_times(recorded):
    def kernels(name, category):
        dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
        events = trace_of(recorded["nvidia"], dialect, 0)["traceEvents"]
        return [event for event in events if event.get("cat") == category]

    old, new = kernels("kineto-2021", "Kernel"), kernels("kineto-2024", "kernel")
    assert [event["name"] for event in old] == [event["name"] for event in new]
    assert all(abs(a["dur"] - b["dur"]) <= 1 for a, b in zip(old, new, strict=True))
    assert old[0]["tid"] == "stream 7"
    assert new[0]["tid"] == 7
    json.dumps(new)


def truth(without, step=100.0, graphed=0.0, fused=0.0):
    savings = {kind: 1 - ns / step for kind, ns in without.items()}
    return SimpleNamespace(
        without=without, saving=savings.get, best_saving=max(savings.values(), default=0), graphed=graphed, fused=fused
    )


PLAIN, STACKS = DIALECTS[3], DIALECTS[4]


@pytest.mark.parametrize(
    ("dominant", "wanted"),
    [
        ("data-stall", (True, False)),
        ("host-sync", (True, False)),  # 15 of 20 %: at least 70 % of the best
        ("allocator-stall", (False, False)),  # 5 of 20 %
        ("launch-bound", (False, True)),  # not planted, but graphs would save 30 %
        ("unfused-optimizer", (False, False)),
        ("slow-kernel", (False, False)),
    ],
)
def test_a_cause_is_right_that_saves_nearly_as_much_as_the_best(dominant, wanted):
    true = truth({"few-workers": 80, "item-every-step": 85, "allocator": 95}, graphed=0.3, fused=0.1)
    assert _judge(Answer("", "gaps", dominant), true, PLAIN, (), "few-workers") == wanted


def test_silence_has_one_name_without_stacks():
    assert "python-stall" in names_of("collector", PLAIN)
    assert "python-stall" not in names_of("collector", STACKS)


def test_a_healthy_run_is_judged_by_its_false_alarms():
    true = truth({"few-workers": 99.5})
    small, false, founded = (
        Claim("host-sync", 0.01, 0.05, 0.0, 0.0),
        Claim("host-sync", 0.05, 0.09, 0.0, 0.01),
        Claim("host-sync", 0.05, 0.09, None, 0.2),
    )
    answer = Answer("", "kernel-bound", "")
    assert _judge(answer, true, PLAIN, (small, founded), None) == (True, False)
    assert _judge(answer, true, PLAIN, (small, false), None) == (False, False)


def test_dialects_agree_where_only_the_name_of_silence_differs():
    def case(*answers):
        return SimpleNamespace(others=tuple(Answer("", verdict, rule) for verdict, rule in answers))

    same = case(("gaps", "gc-pause"), ("gaps", "python-stall"))
    different = case(("gaps", "gc-pause"), ("cpu-bound", "gc-pause"))
    assert dialect_agreement([same, different, case()]) == (1, 2)


def test_cases_are_scored_and_their_tables_written(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- simulated -->\nold\n<!-- /simulated -->\nafter\n")
    assert run_simulated(1, 1, table=page, verbose=True) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| best waste | cases |" in text
    assert capsys.readouterr().out.startswith("1:0 ")


@pytest.mark.parametrize(
    ("named", "alarms", "error", "missed"),
    [(19, 1, 0.09, 0), (18, 1, 0.09, 1), (19, 2, 0.09, 1), (18, 2, 0.09, 2), (19, 1, 0.11, 1)],
)
def test_a_slice_has_floors(named, alarms, error, missed):
    waste = SimpleNamespace(kind="barrier", claimed=error, saving=0.0, certain=True)
    cases = [
        SimpleNamespace(best="barrier", right=i < named, by_nature=False, false_alarms=(), wastes=(waste,))
        for i in range(20)
    ]
    for case in cases[:alarms]:
        case.false_alarms = ("launch-bound",)
    assert len(below_floors(cases)) == missed
