"""The first screen: the verdict in two words, what the step consists of, whose it is, and what only a trial shows."""

from dataclasses import replace

import pytest

from diagnose.answer.screen import answer, shown_rank
from diagnose.model.diagnosis import Trial, Where
from diagnose.model.job import Job
from diagnose.model.words import english
from diagnose.reports.text import render

MS = 1_000_000


def test_the_finding_that_answers_makes_it_communication_bound(forms):
    d = forms["gaps"]
    first, *others = d.findings
    found = (replace(first, rule="exposed-communication"), *others)
    p = replace(d.partition, exposed_communication=0.5, idle=0.1)
    assert english(answer(replace(d, partition=p)).pill) == "GPU stalls"
    assert english(answer(replace(d, findings=found, dominant="exposed-communication")).pill) == "Communication-bound"


def test_of_an_answer_without_a_change_the_command_that_shows_more_is_named(forms):
    d = forms["gaps"]
    first, *others = d.findings
    found = (replace(first, where=(Where(op="aten::mm"),)), *others)
    bare = replace(d, findings=found, prescriptions=(), source=replace(d.source, names_lines=False))
    a = answer(bare)
    assert english(a.no_change) == (
        "This trace has no Python stacks. To see the line and the change for it, record again with:"
    )
    assert a.next_command == "diagnose trace train.py"
    assert "diagnose trace train.py" in render(bare)
    recorded = answer(replace(bare, source=d.source))
    assert (english(recorded.no_change), recorded.next_command) == ("No change is known for it.", "")
    one = answer(replace(bare, source=replace(bare.source, world_size=8)))
    assert english(one.no_change) == (
        "The cause may be on another rank, so no predicted step is shown. Analyze the traces of all 8 ranks together:"
    )
    assert one.next_command == "diagnose analyze FOLDER"
    known = answer(replace(d, prescriptions=()))
    assert (english(known.no_change), known.next_command) == (
        "No known change fits what takes the time at train.py:31: make that line cheaper.",
        "",
    )


def test_an_accelerator_whose_tasks_are_not_recorded_leads_the_answer(forms):
    d = replace(forms["no_gpu"], source=replace(forms["no_gpu"].source, accelerator="Apple MPS"))
    assert english(answer(d).pill) == "CPU only"
    assert (
        english(answer(replace(d, dominant=None)).headline)
        == "No Apple MPS tasks are recorded, and nothing was found on the CPU"
    )
    assert answer(d).after is None


@pytest.mark.parametrize(
    ("form", "pill", "tone"),
    [
        ("gaps", "GPU stalls", "bad"),
        ("healthy", "GPU-bound", "good"),
        ("cpu_bound", "CPU-bound", "bad"),
        ("no_gpu", "CPU only", "info"),
        ("low_trust", "No diagnosis", "warn"),
    ],
)
def test_a_verdict_has_one_word(forms, form, pill, tone):
    a = answer(forms[form])
    assert (english(a.pill), a.tone) == (pill, tone)


def test_what_the_device_did_without_records_is_not_called_a_cpu_only_run(forms):
    d = replace(forms["no_gpu"], unseen={"device records": 3})
    a = answer(d)
    assert (english(a.pill), a.tone) == ("No GPU records", "info")
    assert english(a.meaning) == "the GPU worked, but the recording has none of it"


def test_what_the_step_consists_of_leaves_out_less_than_a_fiftieth(forms):
    """0.38 + 0.05 + 0.03 of the device's work, 0.54 idle."""
    d = forms["gaps"]
    computing, communication, copies, idle = (
        ("computing", 0.38), ("communication not overlapped", 0.05), ("copies not overlapped", 0.03), ("idle", 0.54),
    )  # fmt: skip
    assert answer(d).parts == (computing, communication, copies, idle)
    few = replace(d, partition=replace(d.partition, exposed_copy=0.019))
    assert answer(few).parts == (computing, communication, idle)


def test_without_a_device_and_an_answer_the_step_consists_of_what_the_host_does(forms):
    shares = {"data-stall": 0.3, "operators": 0.6, "python-stall": 0.01}
    d = replace(forms["no_gpu"], dominant=None, host_by_cause=shares)
    names = [d.legends[cause].label for cause in ("operators", "data-stall")]
    assert answer(d).parts == ((names[0], 0.6), (names[1], 0.3))
    assert answer(replace(d, legends={})).parts[1] == ("data-stall", 0.3)  # of a plug-in without labels


@pytest.mark.parametrize("worth", [0.309, 0.2])
def test_the_bar_has_the_number_of_the_headline(forms, worth):
    d = forms["no_gpu"]
    first = replace(d.findings[0], rule="data-stall", worth_ns=worth * d.step_ns, share=None)
    d = replace(d, findings=(first,), dominant="data-stall", host_by_cause={"data-stall": 0.3, "operators": 0.6})
    shown = (d.legends["data-stall"].label, worth), ("rest", 1 - worth)
    assert answer(d).parts == tuple((name, pytest.approx(share)) for name, share in shown)
    assert f"costs {100 * worth:.1f} %" in english(answer(d).headline)


def test_what_is_long_now_and_then_is_its_share_of_the_run_and_the_usual_step_the_rest(forms):
    d = forms["gaps"]
    rare = replace(d.findings[0], rule="periodic-stall", share=0.5)
    a = answer(replace(d, dominant="periodic-stall", findings=(rare, *d.findings)))
    assert (english(a.pill), a.run_share) == ("Run stalls", 0.5)
    assert a.parts[:4] == (
        (d.legends["periodic-stall"].label, 0.5), ("computing", 0.19), ("communication not overlapped", 0.025),
        ("idle", 0.27),
    )  # fmt: skip


def test_a_full_device_and_one_with_little_to_gain_show_their_work_by_families_of_kernels(forms):
    """0.968 of the step computes: 3 of 4 parts of it are products."""
    families = {"gemm": 0.75, "elementwise": 0.125, "unclassified kernels": 0.125}
    d = replace(forms["healthy"], kernel_families=families)
    work = (
        ("gemm", pytest.approx(0.726)), ("elementwise", pytest.approx(0.121)),
        ("unclassified kernels", pytest.approx(0.121)),
        ("communication not overlapped", 0.02),
    )  # fmt: skip
    assert answer(d).parts == work
    assert answer(replace(d, verdict="gaps")).parts == work
    stalls = replace(forms["gaps"], kernel_families=families)
    assert answer(stalls).parts[0] == ("computing", 0.38)
    assert answer(replace(stalls, verdict="kernel-bound")).parts[:2] == (
        ("idle", 0.54),
        ("gemm", pytest.approx(0.38 * 0.75)),
    )


def test_a_report_of_a_job_states_whose_step_and_changes_it_shows(forms):
    d, row = forms["ranks"], forms["ranks"].ranks[3]
    d = replace(d, step_ns=row.step_ns, partition=row.partition, job=Job(4, 12, 0.0, (7,), late_ranks=(3,)))
    assert shown_rank(d) == 3
    assert english(answer(d).view) == "Step and changes are those of rank 3, which the other 3 wait for."
    two = replace(d, ranks=d.ranks[-2:])
    assert english(answer(two).view) == "Step and changes are those of rank 3, which the other one waits for."
    slowest = replace(d, job=d.job._replace(late_ranks=()))
    assert english(answer(slowest).view) == "Step and changes are those of rank 3, whose step is the longest of 4."
    unknown = replace(d, step_ns=1.0)
    words = "Step and changes are those of one of 4 ranks, the one waited for or else the slowest."
    assert english(answer(unknown).view) == words
    assert answer(forms["gaps"]).view is None


@pytest.mark.parametrize(
    ("facts", "found_by", "is_stated"),
    [
        ({"phase": "rollout", "regular": True, "period": 4}, "optimizer", True),
        ({"phase": "rollout", "regular": False, "period": 4}, "optimizer", False),
        ({"phase": "checkpoint", "regular": True, "period": 4}, "optimizer", False),
        ({"phase": "rollout", "regular": True, "period": 4}, "marker", False),
    ],
)
def test_what_a_step_is_is_stated_where_several_follow_each_rollout(forms, facts, found_by, is_stated):
    d = forms["gaps"]
    found = replace(d.findings[0], facts=facts)
    d = replace(d, findings=(found, *d.findings[1:]), source=replace(d.source, found_steps_by=found_by))
    words = "A step is one optimizer.step(); 4 of them follow each rollout."
    assert (answer(d).view is not None and english(answer(d).view)) == (words if is_stated else False)


def test_without_a_device_a_command_is_named_that_tries_what_no_recording_judges(forms):
    d = replace(forms["no_gpu"], to_try=("autocast", "compile-model"), host_by_cause={"operators": 0.6})
    a = answer(d)
    assert english(a.to_try) == (
        "Faster kernels or settings may exist, which a recording cannot show. To try autocast, compile-model and time "
        "the step:"
    )
    assert a.try_command == "diagnose prove --apply autocast,compile-model train.py --epochs 1"
    function = answer(replace(d, source=replace(d.source, command="")))
    assert function.try_command == 'diagnose.prove(make_step, apply="autocast,compile-model")'
    ran = Trial("autocast", (1.0,), (1.0,), 1.0, (0.9, 1.1), "identical", ids=("autocast",))
    assert answer(replace(d, trials=(ran,))).try_command.startswith("diagnose prove --apply compile-model ")
    assert answer(replace(d, to_try=())).to_try is None
    assert answer(replace(d, to_try=("data-stall-fix",))).to_try is None  # a prediction judges it


def test_on_a_device_trials_are_only_named_where_little_is_to_be_gained(forms):
    d = replace(forms["healthy"], to_try=("compile-model",))
    assert english(answer(d).to_try) == (
        "Faster kernels or settings may exist, which a recording cannot show. To try compile-model and time the step:"
    )
    assert answer(replace(forms["gaps"], to_try=("compile-model",))).to_try is None


def test_why_no_card_is_for_the_answer_is_stated(forms):
    d = forms["gaps"]
    for shown in (d, forms["healthy"], forms["low_trust"]):
        assert answer(shown).no_change is None
    other = replace(d, prescriptions=d.prescriptions[1:], waterfall=None)
    assert [card.prescription.rule for card in answer(other).cards] == ["host-sync"]
    for shown in (other, replace(d, prescriptions=(), waterfall=None)):
        assert (
            english(answer(shown).no_change)
            == "No known change fits what takes the time at train.py:31: make that line cheaper."
        )
    idle = replace(d.prescriptions[0], saves_ns=(0.0, 0.1 * MS), predicted_step_ns=19.95 * MS)  # of 20 ms
    idle = replace(d, prescriptions=(idle,), waterfall=None)
    assert english(answer(idle).no_change) == "No change for it is predicted to save 1 % of the step."
    slower = Trial("data-stall-fix", (20.0,), (22.0,), 0.9, (0.85, 0.95), "identical", ids=("data-stall-fix",))
    words = "A change that was tried made the step longer; no other is known for it."
    assert english(answer(replace(other, prescriptions=d.prescriptions, trials=(slower,))).no_change) == words
