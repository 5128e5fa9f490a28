"""The terminal report: what it says, how wide it is, and that nothing in it steers a terminal."""

import ast
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from diagnose.analyzers import LEGENDS, OUTSIDE
from diagnose.answer.screen import answer
from diagnose.changes import CHANGES
from diagnose.changes.common.change import Proposal
from diagnose.model.charts import KernelTime
from diagnose.model.diagnosis import Where
from diagnose.model.words import english
from diagnose.reports.format import place
from diagnose.reports.text import render
from diagnose.reports.text_findings import _folded
from diagnose.text.plain_text import one_line

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [60, 77, 100, 140])
def test_every_line_fits(any_form, width):
    lines = render(any_form, width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_narrower_than_sixty_columns_is_laid_out_for_sixty(forms):
    assert render(forms["gaps"], width=10) == render(forms["gaps"], width=60)


def test_the_answer_comes_first(any_form):
    first = answer(any_form)
    words = f"{english(first.pill)} {one_line(english(first.headline))}"
    assert " ".join(render(any_form).split()).startswith(" ".join(words.split()))


def test_one_rank_of_several_is_said(forms):
    d = forms["gaps"]
    assert "1 of 8 ranks" in " ".join(render(replace(d, source=replace(d.source, world_size=8))).split())


def test_code_to_paste_is_folded_not_cut(forms):
    code = "loader = DataLoader(dataset, " + ", ".join(f"option_{i}=True" for i in range(12)) + ")"
    fix = replace(forms["gaps"].prescriptions[0], after=code)
    text = render(replace(forms["gaps"], prescriptions=(fix,)))
    folded = re.findall(r"│ (.*)", text)
    assert "".join(part.strip() for part in folded).replace(" ", "") == code.replace(" ", "")


@pytest.mark.parametrize("width", [68, 88])
def test_code_is_still_code_where_it_is_folded(width):
    """Of all changes: a comment that is too long stays one on each of its lines."""
    asked = 0
    for change in CHANGES.values():
        code = change.proposal.after if isinstance(change.proposal, Proposal) else ""
        try:
            meant = ast.dump(ast.parse(code))
        except SyntaxError:  # a command, or only a part of a block
            continue
        folded = "\n".join(part for line in code.splitlines() for part in _folded(line, width))
        assert ast.dump(ast.parse(folded)) == meant, change.id
        asked += folded != code
    assert asked > 3


def test_a_comment_behind_long_code_goes_before_it():
    line = '    evaluate(model, "#1")   # its DataLoader: a larger batch size and workers that persist'
    assert _folded(line, 50) == [
        "    # its DataLoader: a larger batch size and",
        "    # workers that persist",
        '    evaluate(model, "#1")',
    ]


def test_the_partition_bar_has_cells_in_proportion(forms):
    line = next(line for line in render(forms["gaps"], width=104).splitlines() if "▒░" in line and "▓▒" in line)
    assert [line.count(mark) for mark in "█▓▒░"] == [38, 5, 3, 54]


def test_the_picture_marks_each_gap_with_its_cause(forms):
    lines = render(forms["gaps"]).splitlines()
    row = next(line for line in lines if line.startswith("  cause"))[11:]
    assert row.startswith("a" * 26)  # 30 % of 87 columns
    assert row.endswith("b" * 10)
    assert any(re.match(r"  a  30\.0 % .* the step waited for its next batch$", line) for line in lines)
    assert any(re.match(r"  b  12\.0 % .* the host waited for the device to drain$", line) for line in lines)


def test_a_healthy_trace_is_told_so(forms):
    text = render(forms["healthy"])
    assert "Nothing to fix" in text
    assert "Findings" not in text


def test_without_a_gpu_the_operators_take_the_place_of_the_queue(forms):
    text = render(forms["no_gpu"])
    assert "What takes the host's time  10 steps; the row is step 2" in text
    assert re.search(r"^  cause    a{52}b{35}$", text, re.MULTILINE)  # 60 % and 40 % of 87 columns
    assert re.search(r"  a  60\.0 %  12\.0 ms  █+ +work in operators$", text, re.MULTILINE)
    assert "Host operators by self time" in text
    assert re.search(r"aten::mkldnn_convolution +20 × +4\.00 ms +20\.0 %", text)
    assert "Queue" not in text
    assert "Where the step goes" not in text


def test_several_ranks_take_one_line_each(forms):
    text = render(forms["ranks"])
    assert len(re.findall(r"^  [0-3]  \d\d\.\d ms  gaps  data-stall", text, re.MULTILINE)) == 4
    assert "4 × NVIDIA H100 80GB HBM3" in " ".join(text.split())


def test_trials_show_their_interval(forms):
    text = render(forms["trials"])
    assert "1.42 × (1.38 to 1.46)  data-stall-fix  numbers: identical  step 20.0 ms to 14.1 ms" in text
    assert "(predicted 15.0 ms)" in " ".join(text.split())
    assert "not tested  compile-fix  It ended with exit code 1." in text
    assert "together, without data-stall-fix" in text


def test_what_binds_the_step_after_the_gains_is_said(forms):
    text = render(forms["trials"])
    assert "With the gains applied" in text
    assert english(answer(forms["trials"].after).headline) in " ".join(text.split())


def test_colour_only_where_asked_for(forms):
    assert "\x1b" not in render(forms["gaps"])
    coloured = render(forms["gaps"], colour=True)
    assert "\x1b[" in coloured
    assert ANSI.sub("", coloured).splitlines()[0].rstrip() == render(forms["gaps"]).splitlines()[0]


@pytest.mark.parametrize("colour", [False, True])
def test_hostile_strings_are_printed_as_they_read(forms, colour):
    text = render(forms["hostile"], colour=colour)
    rest = ANSI.sub("", text)
    assert "[red]" in rest
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", rest)
    assert "\x1b[31m{{" not in text  # an escape sequence that a string brought along
    text.encode("utf-8")


def test_the_waterfall_takes_one_line_a_change(forms):
    text = render(forms["gaps"])
    assert re.search(r"^  20\.0 ms  █{30}  now$", text, re.MULTILINE)
    assert re.search(r"^  15\.0 ms  █{22}\S? +with data-stall-fix +14\.0 ms to 16\.0 ms$", text, re.MULTILINE)
    assert "then it is bound by the device's own kernels" in text
    assert "host 60.0 %, compute 37.0 %, latency 3.0 %" in text
    assert "Predicted step time after each change" not in render(forms["healthy"])


def test_a_long_label_squeezes_no_number(forms):
    d = forms["gaps"]
    long = d.legends["data-stall"]._replace(
        label="a label of a cause that is longer than what is left of the line " * 2
    )
    text = render(replace(d, legends={**d.legends, "data-stall": long}), width=100)
    assert re.search(r"^  a  30\.0 %  6\.00 ms  ██████████  a label of a cause that", text, re.MULTILINE)
    assert long.label.strip() in " ".join(text[text.index("Idle by cause") :].split())  # wrapped, not cut


def test_the_first_screen_has_headline_bars_and_actions(forms):
    lines = render(forms["gaps"], width=80).splitlines()
    assert lines[0].startswith("GPU stalls  The step waits for its batch, loaded in the main process (costs")
    bars = [line for line in lines if line.startswith("  step ")]
    assert bars[0] == "  step now        20.0 ms  " + "█" * 30
    assert bars[1] == "  step possible   12.0 ms  " + "█" * 18 + "  1.7 × (1.5 to 1.7 ×)"
    actions = [line for line in lines if re.match(r"  [123]  \S", line)]
    assert len(actions) == 2
    assert "     train.py:31  saves 5.00 ms per step" in lines
    assert "     train.py:42  saves 3.00 ms per step  after change 1 (without: up to" in lines
    assert "     2.40 ms) · may change the numbers" in lines


def test_of_steps_that_are_long_now_and_then_the_bar_is_of_the_mean_step(forms):
    d = forms["gaps"]
    run = replace(d, findings=(replace(d.findings[0], share=0.3), *d.findings[1:]), watched_steps=25)
    for shown in (run, replace(run, waterfall=None, prescriptions=())):
        assert "  step now        20.0 ms" in render(shown)
        assert (
            "\n                 the step waited for its next batch 30.0 %, computing 26.6 %, idle 37.8 %\n"
        ) in render(shown)  # the largest that fit on the line


def test_no_share_of_the_step_is_torn_from_its_sign(forms):
    for width in range(60, 101):
        parts = render(forms["gaps"], width=width).partition("step possible")[0].partition("step now")[2]
        assert not re.search(r"^ *%", parts, re.MULTILINE), width


def test_places_are_links_where_a_terminal_can_follow_them(forms):
    assert "\x1b]8;" in render(forms["gaps"], colour=True)
    assert "file:///home/ada/project/train.py" in render(forms["gaps"], colour=True)
    assert "file://" not in render(forms["gaps"])


KERNELS = (
    KernelTime("volta_sgemm", "gemm", 24.0, 9e6, 0.75, "float32", 0.5, Where("train.py", 12, "step", "aten::mm")),
    KernelTime("7 others", "", 0.5, 3e6, 0.25),
)


def test_a_full_device_lists_its_kernels(forms):
    text = render(replace(forms["gaps"], verdict="kernel-bound", kernels=KERNELS))
    assert "  75.0 %  9.00 ms   24 ×  gemm float32    volta_sgemm\n" in text
    assert "50.0 % of peak  train.py:12 in step\n" in text
    assert "  25.0 %  3.00 ms  0.5 ×                  7 others\n" in text
    assert "Kernels" not in render(replace(forms["gaps"], kernels=KERNELS))
    assert "volta_sgemm" in render(replace(forms["gaps"], kernels=KERNELS, step_ns=18e6))  # half of the step


def test_where_the_recording_carries_no_savings_no_step_after_changes_is_shown(forms):
    d = forms["gaps"]
    assert "Predicted step time after each change" in render(d)
    one_rank = replace(d, source=replace(d.source, world_size=8))
    for limited in (one_rank, replace(d, record_again="The file is cut off.")):
        assert "Predicted step time after each change" not in render(limited)
        assert "step possible" not in render(limited)


def test_without_a_line_a_library_follows_the_operator_in_brackets():
    where = Where(op="aten::mm", library="transformers/x.py:9 in forward")
    assert place(where) == "aten::mm (transformers/x.py:9 in forward)"
    assert place(replace(where, op=None)) == "(transformers/x.py:9 in forward)"


def test_what_a_library_ran_stands_beside_the_line():
    where = Where("src/serve.py", 3, "main", "aten::mm", library="transformers/x.py:9 in forward")
    assert place(where) == "src/serve.py:3 in main · inside it transformers/x.py:9 in forward · aten::mm"


@pytest.mark.parametrize(
    ("computed", "headline"),
    [
        (0.93, "Nothing found: operators take 93 % of the 20.0 ms step, none of it known waste"),
        (0.3, "Nothing to fix: no rule found avoidable time in the 20.0 ms step"),
    ],
)
def test_that_operators_must_compute_what_they_do_is_not_claimed(forms, computed, headline):
    made = replace(forms["healthy"], verdict="no-gpu", queue=None, host_by_cause={"operators": computed})
    assert headline in render(made)


def test_the_label_of_the_time_between_operators_is_never_cut_at_the_widest(forms):
    longest = max(LEGENDS, key=len)
    d = replace(forms["no_gpu"], host_by_cause={OUTSIDE: 0.6, longest: 0.4})
    assert LEGENDS[OUTSIDE].label in render(d, width=100)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_phases_of_the_run_keep_name_and_share_and_wrap_what_they_are(forms, width):
    text = render(replace(forms["healthy"], phases={"training": 0.152, "rollout": 0.848}), width=width)
    table = " ".join(text[text.index("What takes the run's time") :].split("\n\n")[0].split())
    assert "training 15.2 %" in table
    assert table.endswith("█ gradients off several times before the backward pass, and what lies between")
