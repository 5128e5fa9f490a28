"""The answer in a terminal: the first screen, the code of its first change, and where the rest is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from diagnose.answer.screen import answer
from diagnose.model.diagnosis import PlainSteps
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.text import render, render_answer, terminal_text

FP32 = Path(__file__).parents[2] / "fixtures" / "traces" / "fp32_matmul-planted"
PAGE = Path("out/report.html")


@pytest.mark.parametrize("width", [60, 77, 100])
def test_every_line_of_the_answer_fits(any_form, width):
    lines = render_answer(any_form, width=width, written=[PAGE]).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_the_answer_has_at_most_twenty_lines(any_form, width):
    assert len(render_answer(any_form, width=width, written=[PAGE]).splitlines()) <= 20


@pytest.mark.parametrize("width", [80, 100])
def test_it_has_no_more_with_four_warnings(any_form, width):
    """Of the changes after the first the titles are left, then the first warnings."""
    unstable = PlainSteps(45.7e6, 42.1e6, 37.4e6, None, 30, agree=False)
    source = replace(any_form.source, world_size=8)
    d = replace(any_form, cpu_wait=0.3, plain_steps=unstable, recording_estimate=0.3, profiler_overhead=None)
    text = render_answer(replace(d, source=source), width=width, written=[PAGE])
    assert text.count("\n") <= 20
    shown = re.findall(r"\n  ! (\w+)|\n  and (\d) more warning", text)
    cautions = answer(replace(d, source=source)).cautions
    assert len(cautions) >= 2
    assert sum(int(more or 1) for _, more in shown) == len(cautions)


@pytest.mark.parametrize("width", range(60, 101, 4))
def test_no_number_is_parted_from_its_unit(any_form, width):
    assert not re.search(r"\d\n *(%|×|ns|µs|ms|s)\b", render_answer(any_form, width=width, written=[PAGE]))


def test_what_is_not_needed_to_act_on_the_first_change_gives_way_after_its_code(forms):
    d = forms["trials"]
    text = render_answer(d, width=80)
    assert "\nTrials\n  1.42 × (1.38 to 1.46)  data-stall-fix  numbers: identical\n  0.98 × " in text
    assert "(predicted" not in text
    many = replace(d, trials=(*d.trials, *(replace(d.trials[1], id=f"fix-{i}") for i in range(9))))
    text = render_answer(many, width=80)
    assert text.count("\n") == 20
    assert re.search(r"\n  and \d+ more trials\n", text)


def test_the_changes_after_the_first_have_a_line_each_where_there_is_little_room(forms):
    d = forms["gaps"]
    short = replace(d.prescriptions[0], after="a = 1")
    text = render_answer(replace(d, prescriptions=(short, d.prescriptions[1])), width=100)
    assert "after change 1 (without: up to 2.40 ms) · may change the" in text
    text = render_answer(replace(d, cpu_wait=0.3), width=80)
    assert "     train.py:42  saves 3.00 ms  after change 1 (without: up to 2.40 ms)\n" in text
    assert "may change the numbers: augmentation draws" in text  # of the first change all is said


def test_the_largest_parts_of_the_step_are_named_in_one_line(forms):
    d = forms["gaps"]
    lines = render_answer(d, width=80).splitlines()
    assert "                 computing 38.0 %, idle 54.0 %" in lines
    assert "communication not overlapped 5.0 %, idle 54.0 %" in render_answer(d, width=100)


def test_what_the_answer_is_from_takes_one_line(any_form):
    *_, source, last = render_answer(any_form, width=80, written=[PAGE]).splitlines()
    assert last == "Queue, all findings, code: out/report.html, or --verbose"
    assert source.startswith(("step ", "  "))


def test_the_answer_of_a_capture_with_one_change_has_at_most_twenty_lines():
    d = analyze_paths([FP32])
    assert len(answer(d).cards) == 1
    assert len(render_answer(d, written=[PAGE]).splitlines()) <= 20
    assert len(render(d).splitlines()) > 20


def test_the_answer_leaves_out_what_the_report_has_below_it(forms, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    d = forms["gaps"]
    for title in ("Queue  step", "Where the step goes", "Idle by cause", "Findings", "Kernels", "Critical path"):
        assert title not in render_answer(d)
    assert terminal_text(d) == render_answer(d).rstrip("\n")
    assert terminal_text(d, verbose=True) == render(d, verbose=True).rstrip("\n")


def test_the_code_of_the_first_change_stands_below_it_and_no_other(forms):
    d = forms["gaps"]
    first, second = d.prescriptions
    d = replace(d, prescriptions=(replace(first, after="a = 1"), replace(second, title="Wait less", after="b = 2")))
    text = render_answer(d)
    assert "│ a = 1\n  2  Wait less\n" in text
    assert "b = 2" not in text
    assert "│ a = 1" not in render(d).partition("Findings")[0]  # where the list of findings has it
    assert "│" not in render_answer(forms["low_trust"])


def test_of_long_code_the_answer_has_eight_lines_or_as_many_as_twenty_in_all_leave(forms):
    d = forms["gaps"]
    fix = replace(d.prescriptions[0], after="\n".join(f"line_{i}" for i in range(10)))
    text = render_answer(replace(d, prescriptions=(fix,)))
    assert text.count("│ line_") == 5
    assert "│ line_4\n         │ … 5 more lines\n" in text
    short = render_answer(replace(d, prescriptions=(fix,), trust=(), waterfall=None, findings=d.findings[:1]))
    assert 3 < short.count("│ line_") <= 8
    assert short.count("\n") <= 20


def test_of_a_diff_the_answer_has_the_changed_lines_and_the_file_with_all_of_it(forms):
    d = forms["gaps"]
    diff = "--- a/train.py\n+++ b/train.py\n@@ -1,3 +1,3 @@\n import torch\n-workers = 0\n+workers = 4\n load()\n"
    d = replace(d, prescriptions=(replace(d.prescriptions[0], diff=diff),))
    text = render_answer(d, written=[PAGE])
    assert "│ -workers = 0\n         │ +workers = 4\n         an excerpt; out/report.html has the whole diff\n" in text


def test_the_last_line_names_the_page(forms):
    def last(written):
        return render_answer(forms["gaps"], written=written).splitlines()[-1]

    assert last([Path("report.json"), PAGE]) == "Queue, all findings, code: out/report.html, or --verbose"
    for written in ([], [Path("report.json")]):
        assert last(written) == "Queue, all findings, code: --verbose"
    assert last(None) == "Queue, all findings, code: to_html(path)"  # from Python


def test_trials_are_part_of_the_answer(forms):
    d = forms["trials"]
    assert "not tested  compile-fix  It ended with exit code 1." in render_answer(d)
    text = render_answer(replace(d, trials=d.trials[:1], prescriptions=d.prescriptions[:1], replay_error=None))
    assert "1.42 × (1.38 to 1.46)  data-stall-fix  numbers: identical  step 20.0 ms to 14.1 ms" in text
    assert "│" not in text  # what was measured comes before the code
    assert "\nTrials\n" not in render_answer(forms["gaps"])


def test_what_was_interrupted_is_not_certain_yet(forms):
    d = forms["trials"]
    trial = replace(d.trials[0], interval=(0.9, 1.6), doubt="interrupted")
    assert "(0.90 to 1.60)  data-stall-fix  not certain yet  numbers" in render_answer(replace(d, trials=(trial,)))


def test_of_a_change_by_hand_the_screen_has_the_command_that_measures_the_edit(forms):
    d = forms["gaps"]
    command = "$ diagnose prove --against EDITED.py train.py --epochs 3"

    def shown(**fields):
        fix = replace(d.prescriptions[0], diff="", **fields)
        source = replace(d.source, command="train.py --epochs 3")
        return render(replace(d, prescriptions=(fix,), waterfall=None, findings=d.findings[:1], source=source))

    assert f"To measure your own edit of the script:\n  {command}\n" in shown(trial_method="by hand")
    assert command not in shown(trial_method="patch")
    assert command not in shown(trial_method="by hand", records_again=True)
