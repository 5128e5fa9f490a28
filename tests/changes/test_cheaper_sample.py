"""cheaper-sample: one line computes for most of the loading. Times in µs."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.model.capture import RunSteps
from diagnose.pipeline.rank import analyze_rank
from diagnose.reports.text import render

HOW = "compute in one call, or once if each epoch gives the same"
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def computing(recording, *, lines=(31, 32, 31, 30), running=1, cores=2, file="data.py", loading=800):
    """Return a step of 1000 µs without a device, so many of them loading, in which samples see these lines in turn."""
    r = recording(devices=())
    r.with_info(flags={"cores": cores, "num_threads": 2}, loader={"dataset": "Rows", "num_workers": 0, "batch_size": 8})
    r.step(1, 0, 1000)
    r.annotation(SINGLE, 0, loading)
    r.op("aten::mm", loading, 1000)
    for i in range(16) if lines else ():
        line = lines[i % len(lines)]
        r.sample(20 + 0.06 * loading * i, (file, line, "<genexpr>" if line == 32 else "__getitem__"), running=running)
    return r


def test_a_line_that_takes_most_of_the_loading_is_made_cheaper(recording, presentable):
    finding = computing(recording).find("data-stall")
    assert finding.facts["slow_line"] == {
        "file": "data.py", "line": 31, "share": 1.0, "first": 30, "last": 32,
    }  # fmt: skip
    assert finding.evidence[1].endswith("data.py:30 to 32, most often 31, take 100 % of it.")
    # One worker computes as long as the main process does now: on two threads of one core it does not pay.
    (first,) = computing(recording, cores=3).diagnosis().prescriptions
    presentable(first)
    assert first.title == f"Make the sample cheaper at data.py:30 to 32, which take 100 % of loading: {HOW}"
    assert first.saves_ns == (pytest.approx(400_000, rel=0.1), pytest.approx(890_000, rel=0.01))


def loader_made(r):
    """Record the call that makes the loader, whose workers are a setting of the script's."""
    lines = ["a = 0", "loader = DataLoader(rows, num_workers=args.workers)", "b = 0", "c = 0"]
    r.with_info(
        flags={"cores": 3, "num_threads": 2},
        loader={
            "dataset": "Rows", "num_workers": 0, "batch_size": 8,
            "made": {
                "name": "DataLoader", "file": "train.py", "first": 1, "lines": lines, "begin": (2, 9),
                "end": (2, len(lines[1])), "parameters": ("dataset", "num_workers", "persistent_workers"),
            },
        },
    )  # fmt: skip
    return r


def test_the_alternative_is_shown_with_its_edit_and_what_sets_it(recording):
    d = loader_made(computing(recording, loading=700)).diagnosis()
    assert [p.id for p in d.prescriptions] == ["cheaper-sample", "load-in-workers"]
    shown = render(d, width=160).partition(" or  Load batches in 1 worker process")[2].partition("also possible")[0]
    assert "in the script args.workers sets num_workers: --workers 1" in " ".join(shown.split())
    assert "edit train.py:2" in shown
    assert [line.partition("│ ")[2] for line in shown.splitlines() if "│" in line] == [
        "-loader = DataLoader(rows, num_workers=args.workers)",
        "+loader = DataLoader(rows, num_workers=1, persistent_workers=True)",
    ]
    assert "an excerpt; an HTML or JSON report has the whole diff" in shown


@pytest.mark.parametrize(
    ("draws", "safety"),
    [
        ({}, "same numbers in the first epoch unless samples draw random numbers; "),
        (
            {"data.py": (12,)},
            "may change the numbers: samples draw random numbers at data.py:12, and workers draw others there; ",
        ),
    ],
)
def test_that_workers_draw_other_numbers_is_certain_where_a_line_draws(recording, draws, safety):
    capture = replace(computing(recording, lines=(31,), cores=16).capture(), draws=draws)
    (p,) = [p for p in analyze_rank(capture).prescriptions if p.id == "load-in-workers"]
    assert p.safety.startswith(safety)


def test_where_workers_hide_more_they_come_first(recording):
    some = computing(recording, lines=(31, 31, 50, 70, 31), cores=16)
    assert [p.id for p in some.diagnosis().prescriptions][:2] == ["load-in-workers", "cheaper-sample"]


@pytest.mark.parametrize(
    "change",
    [
        {"running": 0},  # it waits
        {"lines": (10, 20, 30, 40)},  # nothing stands out
        {"file": "/usr/lib/python3.11/site-packages/pandas/core/indexing.py"},
    ],
)
def test_no_line_to_make_cheaper(recording, change):
    assert "cheaper-sample" not in [p.id for p in computing(recording, **change).prescribe("data-stall")]


LOOP = (42, 31, 42, 52, 42, 62, 31, 72)  # one of its lines has three eighths


@pytest.mark.parametrize(("lines", "other", "named"), [(LOOP, 0, True), (LOOP[3:], 0, False), (LOOP, 9, False)])
def test_of_a_long_loop_the_function_is_named_where_one_line_stands_out(recording, lines, other, named):
    r = computing(recording, lines=lines)
    for i in range(other):
        r.sample(30 + 85 * i, ("data.py", 142, "decode"))
    slow = r.find("data-stall").facts.get("slow_line", {})
    assert list(slow.values()) == (["data.py", 42, 1.0, 31, 72] if named else [])


def test_at_most_all_of_the_line_is_saved_and_nothing_beside_it(recording):
    r = computing(recording, lines=(31, 31, 31, 50), cores=16)
    for at in (*range(40, 800, 190), *range(805, 1000, 20)):  # collating, and the step itself
        r.sample(at, ("train.py", 12, "main"))
    finding = r.find("data-stall")
    assert finding.facts["slow_line"] == {"file": "data.py", "line": 31, "share": 0.6, "first": 31, "last": 31}
    assert finding.facts["sample_share"] == 0.8
    assert finding.evidence[1].endswith("data.py:31 takes 60 % of it, the whole sample 80 %.")
    (change,) = [p for p in r.prescribe("data-stall") if p.id == "cheaper-sample"]
    # 12 of 20 samples: a share of 0.6 within 1.96 × √(0.6 × 0.4 / 20) = 0.215, and so 652 of the 800 µs
    assert change.saves_ns == (pytest.approx(240_000, rel=0.1), pytest.approx(651_800, rel=1e-3))
    assert change.title == f"Make the sample cheaper at data.py:31, which takes 60 % of loading: {HOW}"


def test_no_more_is_saved_than_the_line_takes_of_the_stall_and_the_rest_gains(recording):
    most = [computing(recording, lines=lines, cores=1).diagnosis().prescriptions[0].saves_ns[1] for lines in _IN_TURNS]
    # 16 of 16 samples, and 12 of 16: 0.75 within 1.96 × √(0.75 × 0.25 / 16) = 0.212; of the rest 0.45 × 200 µs at most
    assert most == [pytest.approx(1.1125 * 800_000), pytest.approx(1.1125 * 0.9622 * 800_000, rel=1e-3)]


_IN_TURNS = ((31, 32), (31, 31, 31, 50))


def test_the_more_samples_the_nearer_the_upper_end_is_to_the_share(recording):
    r = computing(recording, lines=(31, 31, 31, 50), cores=1)
    for i in range(144):
        r.sample(21 + 5 * i, ("data.py", 31 if i % 2 else 50, "__getitem__"))
    assert advised(r).saves_ns[1] == pytest.approx((0.525 + 1.96 * (0.525 * 0.475 / 160) ** 0.5) * 800_000, rel=1e-3)


def test_two_loops_of_a_short_function_are_named_together(recording):
    r = computing(recording, lines=(33, 37, 41, 33), cores=3)
    assert r.find("data-stall").facts["slow_line"]["share"] == 1.0
    assert r.prescribe("data-stall")[0].title.startswith(
        "Make the sample cheaper at data.py:33 to 41, which take 100 %"
    )


def advised(r):
    return next(p for p in r.prescribe("data-stall") if p.id == "cheaper-sample")


def test_the_training_loop_is_no_sample(recording):
    """Its line is the innermost outside of torch while torch puts a batch together."""
    r = computing(recording, lines=())
    for i in range(16):
        r.sample(20 + 48 * i, ("train.py", 22, "main"))
    for i in range(4):
        r.sample(810 + 40 * i, ("train.py", 24 + i, "main"))
    assert "slow_line" not in r.find("data-stall").facts
    assert "cheaper-sample" not in {p.id for p in r.prescribe("data-stall")}


@pytest.mark.parametrize(
    ("text", "running", "offered"),
    [
        ("row = json.loads(line)", 1, False),
        ("row = json.loads(line)", 0, True),  # it waits
        ('image = Image.open(path).convert("RGB")', 1, True),
        (None, 1, True),
    ],
)
def test_no_thread_is_offered_for_loading_that_holds_the_lock(recording, text, running, offered):
    r = computing(recording, running=running)
    for line in (30, 31, 32) if text else ():
        r.lines["data.py", line] = text
    assert ("load-on-thread" in [p.id for p in r.diagnosis().also_possible]) == offered


@pytest.mark.parametrize(("head", "offered"), [("for k in range(20_000):", False), ("for k in tensors:", True)])
def test_no_thread_is_offered_for_the_arithmetic_of_a_plain_loop(recording, head, offered):
    r = computing(recording, lines=(31,))
    r.lines["data.py", 30], r.lines["data.py", 31] = head, "t += k * i % 7"
    recorded = r.capture
    r.capture = lambda attribution=None: replace(recorded(attribution), loops={"data.py": ((30, 31),)})
    assert ("load-on-thread" in [p.id for p in r.diagnosis().also_possible]) == offered


def test_samples_at_the_head_of_a_streams_loop_belong_to_its_body(recording):
    r = computing(recording, lines=())
    for i in range(16):
        r.sample(20 + 48 * i, ("data.py", 31 if i % 3 else 32, "__iter__"))
    r.lines["data.py", 31] = "for line in f:"
    r.lines["data.py", 32] = "row = json.loads(line)"
    facts = r.find("data-stall").facts
    assert facts["holds_lock"]


def test_samples_of_other_steps_count_in_functions_that_mostly_load(recording):
    """A collate function is no call of the dataset: in recorded steps its samples lie within loading."""
    r = computing(recording, lines=(30,), file="train.py", cores=3)
    r.sampled = [(at, ("train.py", 30, "mask_tokens"), running) for at, _, running in r.sampled[:4]]
    assert "slow_line" not in r.find("data-stall").facts
    path = (("train.py", 30, "mask_tokens"), ("train.py", 54, "main"))
    steps = np.arange(20) * 1_000_000
    r.run = RunSteps(steps, np.diff(steps, append=20_000_000), np.zeros(20, np.int8), {}, (path,), steps, steps * 0)
    assert r.find("data-stall").facts["slow_line"]["line"] == 30


@pytest.mark.parametrize(("is_repeated", "how"), [(True, HOW), (False, "compute in one call")])
def test_what_differs_each_time_that_a_sample_is_loaded_is_not_kept(recording, is_repeated, how):
    r = computing(recording, cores=3)
    row = {"file": "data.py", "line": 31, "text": "np.power(x, gamma)", "is_repeated": is_repeated}
    r.with_info(
        flags={"cores": 3, "num_threads": 2},
        loader={"dataset": "Rows", "num_workers": 0, "batch_size": 8},
        loaded={"samples": 8, "total_ns": 100, "expressions": [row]},
    )
    capture = replace(r.capture(), draws={"data.py": (60,)})  # in another function of the sample
    (first,) = (p for p in analyze_rank(capture).prescriptions if p.id == "cheaper-sample")
    assert first.title.endswith(f"loading: {how}")
