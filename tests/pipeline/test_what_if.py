"""What the step would take if: questions to the replay, through the function behind `diagnose what-if`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.errors import UsageError
from diagnose.model.events import Device
from diagnose.pipeline import what_if
from diagnose.pipeline import what_if as what_if_asked
from diagnose.pipeline.find import find_in_rank
from diagnose.pipeline.run import analyze_captures, analyze_paths
from diagnose.pipeline.what_if import WhatIfRequest, run_what_if

A100 = Device(0, "NVIDIA A100-SXM4-40GB", 40 << 30, 108, (8, 0))


@pytest.fixture
def asked(recording, monkeypatch):
    """A step of 1400 µs: gemm to 300, Python to 690, relu from 700 to 1400; the host is done at 800."""
    r = recording()
    r.step(1, 0, 800)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.op("aten::relu", 690, 700)
    r.kernel("relu", 700, 1400, launched=(691, 695))
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    return lambda **changes: run_what_if("trace.json", WhatIfRequest(**changes))


def test_without_a_change_the_step_is_the_measured_one(asked):
    answer = asked()
    assert (answer.baseline_ns, answer.after_ns) == (1_400_000, pytest.approx(1_400_000))
    assert sum(share for _, share in answer.path) == pytest.approx(1)


def test_a_kernel_at_the_end_gives_back_what_it_loses(asked):
    assert asked(scale=(("relu", 0.5),)).after_ns == pytest.approx(1_050_000)


def test_a_kernel_that_ends_while_the_host_is_late_gives_nothing_back(asked):
    assert asked(scale=(("gemm", 0.5),)).after_ns == pytest.approx(1_400_000)


def test_without_the_stall_the_step_is_shorter(asked):
    answer = asked(without=("python-stall",))
    assert 1_000_000 <= answer.after_ns <= 1_020_000
    assert "shorter" in answer.text()


def test_a_further_change_is_predicted_where_it_is_asked_for(recording, monkeypatch):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.op("aten::relu", 300, 1000)
    r.kernel("relu", 700, 1000, launched=(691, 695))
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    answer = run_what_if("trace.json", WhatIfRequest(apply=("capture-step",)))
    assert answer.after_ns < 0.9 * answer.baseline_ns


@pytest.fixture
def now_and_then(recording, run_steps, monkeypatch):
    """Steps of 10 ms, of which every sixteenth saves a checkpoint for 390 ms more and was not recorded."""
    r = recording()
    r.step(1, 0, 10_000)
    r.op("aten::mm", 0, 10_000)
    took = [400.0 if i % 16 == 15 else 10.0 for i in range(160)]
    r.run = run_steps(took, backwards=[1] * 160, checkpoint=[390.0 * (t > 10) for t in took])
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    return analyze_captures([r.capture()], draw=False)


def test_what_lies_outside_of_the_recorded_steps_is_a_part_of_the_step(now_and_then):
    (card,) = [p for p in now_and_then.prescriptions if p.id == "save-in-background"]
    answer = run_what_if("trace.json", WhatIfRequest(apply=(card.id,)))
    assert answer.baseline_ns == now_and_then.step_ns == pytest.approx(34.4e6, rel=0.01)  # 15 of 10 ms, one of 400
    assert answer.after_ns == pytest.approx(card.predicted_step_ns)
    saved = answer.baseline_ns - answer.forecasts[1].high_ns, answer.baseline_ns - answer.forecasts[1].low_ns
    assert saved == pytest.approx(card.saves_ns)
    assert saved[1] > 10e6
    assert answer.text().startswith("step now   34.68 ms\n  with save-in-background ")
    assert answer.text().endswith(
        "Not replayed: what is saved lies in steps that were not recorded, and their cost bounds it."
    )
    assert json.loads(answer.to_json())["replay"] == {"error_share": None}


def test_with_a_change_of_the_recorded_steps_both_are_predicted(now_and_then):
    """The operator takes 10 of the 34.7 ms: half of it is 5."""
    request = WhatIfRequest(apply=("save-in-background",), scale=(("mm", 0.5),))
    now, saved, both = run_what_if("trace.json", request).forecasts
    assert now.step_ns == now_and_then.step_ns
    assert (saved.low_ns - both.low_ns, saved.high_ns - both.high_ns) == pytest.approx((5e6, 5e6))


def test_refusals_of_prescriptions_name_what_is_predicted(now_and_then):
    with pytest.raises(UsageError, match=r"no prescription none-such; there are: .*save-in-background"):
        run_what_if("trace.json", WhatIfRequest(apply=("none-such",)))


def test_what_saves_an_unknown_amount_is_refused_with_what_is_predicted(on_the_host, monkeypatch):
    monkeypatch.setattr(
        what_if_asked, "find_in_rank", lambda *of: without_predictions(find_in_rank(*of), "load-in-workers")
    )
    with pytest.raises(
        UsageError, match=r"load-in-workers saves what this recording does not show, .* predicted are: cache"
    ):
        on_the_host(apply=("load-in-workers",))


def without_predictions(found, name):
    """Return the findings of a rank whose recording does not show what one change saves."""
    prescribed = (replace(p, predicted_step_ns=None) if p.id == name else p for p in found.prescribed)
    return found._replace(prescribed=tuple(prescribed))


def test_changes_are_replayed_together(asked):
    both = asked(without=("python-stall",), scale=(("relu", 0.5),)).after_ns
    assert both < min(asked(without=("python-stall",)).after_ns, asked(scale=(("relu", 0.5),)).after_ns)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"without": ("no-such-rule",)}, "Invalid --without no-such-rule: use a rule of idle time"),
        ({"without": ("gc-pause",)}, "takes no time in this trace"),
        ({"scale": (("conv", 0.5),)}, "No kernel"),
    ],
)
def test_what_cannot_be_asked(asked, changes, words):
    with pytest.raises(UsageError, match=words):
        asked(**changes)


def test_of_several_ranks_the_one_that_the_report_shows_is_replayed(late, monkeypatch):
    captures = [late.capture(), late.capture()]
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: captures)
    answer = run_what_if("folder", WhatIfRequest())
    assert answer.baseline_ns == pytest.approx(analyze_captures(captures).step_ns)
    assert answer.text().startswith("step now, rank 0 of 2 ")


@pytest.fixture
def on_the_host(recording, monkeypatch):
    """Two steps of 100 without a device: 60 of loading in the training process, 40 of operators."""
    r = recording(devices=())
    for i in range(2):
        r.step(i + 1, 100 * i, 100 * i + 100)
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100 * i, 100 * i + 60)
        r.op("aten::mm", 100 * i + 60, 100 * i + 100)
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    return lambda **changes: run_what_if("trace.json", WhatIfRequest(**changes))


def test_without_a_device_the_host_is_replayed(on_the_host):
    assert on_the_host().after_ns == pytest.approx(100_000)
    assert on_the_host(without=("data-stall",)).after_ns == pytest.approx(40_000)


def test_workers_hide_loading_as_far_as_they_are_fast_enough(on_the_host):
    # One worker delivers a batch every 60, of which the rest of the step hides 40.
    assert on_the_host(workers=1).after_ns == pytest.approx(60_000)
    two = on_the_host(workers=2).forecasts[-1]
    assert (two.low_ns, two.high_ns) == pytest.approx((40_000, 49_000))  # 0.85 of the stall of 60, at least


def loading_on(recording, monkeypatch, *, cores, loading_ms=60):
    """Return what asks two steps of 100 ms whose batch of ``loading_ms`` the training process computes."""
    r = recording(devices=())
    for i in range(2):
        start = 100_000 * i
        r.step(i + 1, start, start + 100_000)
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 1000 * loading_ms)
        r.op("aten::mm", start + 1000 * loading_ms, start + 100_000)
    r.with_info(flags={"num_threads": 1, "cores": cores}, loader={"batch_tensors": 2, "batch_bytes": 6_000})
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    return lambda **changes: run_what_if("trace.json", WhatIfRequest(**changes))


def test_workers_leave_the_training_its_core(recording, monkeypatch):
    # One of two cores is left to load on: a batch of 60 ms, and 0.7 to 2.1 ms for handing it over. Two processors may
    # be threads of one core: then either takes 1.5 times as long while the other computes.
    asked = loading_on(recording, monkeypatch, cores=2)
    one, two = (asked(workers=num) for num in (1, 2))
    assert one.forecasts[-1].low_ns == two.forecasts[-1].low_ns == pytest.approx(60.7e6, rel=0.001)
    assert one.forecasts[-1].high_ns == pytest.approx(62.1e6 + 0.5 * 42.1e6, rel=0.001)
    assert two.forecasts[-1].high_ns == pytest.approx(100e6)
    words = "The training keeps one of 2 cores, which leaves 1 for 2 workers: they load no faster than 1 would"
    assert words in two.text()
    assert "Taking a batch from a worker costs up to 2.10 ms." in two.text()
    assert json.loads(two.to_json())["assumes"] == list(two.assumptions)
    assert asked().assumptions == ()


def test_workers_with_a_core_each_need_no_warning(recording, monkeypatch):
    asked = loading_on(recording, monkeypatch, cores=8)
    assert asked(workers=2).forecasts[-1].high_ns < 52e6  # the training has 42 ms a step
    assert "Assumes a free core for each worker, besides the training's." in asked(workers=2).text()


@pytest.mark.parametrize(("cores", "loading_ms"), [(1, 60), (2, 98)])
def test_workers_that_save_nothing_are_refused(recording, monkeypatch, cores, loading_ms):
    asked = loading_on(recording, monkeypatch, cores=cores, loading_ms=loading_ms)
    words = f"the step would hardly be shorter: loading a batch takes {loading_ms:.1f} ms, of {cores} core"
    with pytest.raises(UsageError, match=words):
        asked(workers=2)


@pytest.mark.parametrize(("cores", "words"), [(2, "Of 8 workers no more than 2 find a core"), (16, "Assumes at most")])
def test_further_workers_need_cores_too(recording, monkeypatch, cores, words):
    r = recording(devices=())
    for i in range(2):
        r.step(i + 1, 100_000 * i, 100_000 * i + 100_000)
        r.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100_000 * i, 100_000 * i + 60_000)
        r.op("aten::mm", 100_000 * i + 60_000, 100_000 * i + 100_000)
    r.with_info(flags={"cores": cores}, loader={"num_workers": 1, "workers_busy": 0.9})
    monkeypatch.setattr(what_if, "open_captures", lambda _paths: [r.capture()])
    answer = run_what_if("trace.json", WhatIfRequest(workers=8))
    assert words in answer.text()
    low, high = answer.forecasts[-1].low_ns, answer.forecasts[-1].high_ns
    expected = (55e6, 100e6) if cores == 2 else (40e6, 49e6)  # a batch every 100 / 2 ms, of which 0.9 may come true
    assert (low, high) == pytest.approx(expected)


def test_a_prescription_is_applied_between_its_bounds(on_the_host):
    answer = on_the_host(apply=("load-in-workers",))
    now, then = answer.forecasts
    assert now.step_ns == pytest.approx(100_000)
    assert then.low_ns == pytest.approx(34_000)  # all of the stall of 60, and a tenth of that which the rest gains
    assert then.low_ns < then.step_ns < then.high_ns < 100_000
    assert "with load-in-workers: " in answer.text()
    written = json.loads(answer.to_json())["forecasts"][1]["range_ms"]
    assert written == [round(ns / 1e6, 6) for ns in (then.low_ns, then.high_ns)]


def test_without_a_device_operators_are_scaled(on_the_host):
    answer = on_the_host(scale=(("mm", 0.5),))
    assert answer.after_ns == pytest.approx(80_000)
    assert answer.forecasts[1].title == "operators ~ mm in 0.5 of their time"


@pytest.mark.parametrize(
    ("changes", "possible"),
    [
        ({"scale": (("gemm", 0.5),)}, "the costliest are: aten::mm"),
        ({"without": ("operators",)}, "--scale 'addmm=0.5'.*there are: data-stall"),
        ({"without": ("gc-pause",)}, "takes no time in this trace.*there are: data-stall"),
        ({"without": ("straggler",)}, "In this trace these take time: data-stall"),
        ({"bucket_mb": 25.0}, "--without: data-stall"),
    ],
)
def test_a_refusal_names_what_can_be_asked(on_the_host, changes, possible):
    with pytest.raises(UsageError, match=possible):
        on_the_host(**changes)


@pytest.mark.parametrize("name", ["barrier_every_step", "slow_dataset"])
def test_what_a_report_without_a_device_predicts_can_be_asked(name):
    folder = Path(__file__).parents[2] / "fixtures" / "captures" / name
    report = analyze_paths([folder])
    assert report.prescriptions
    for p in report.prescriptions:
        assert run_what_if(folder, WhatIfRequest(apply=(p.id,))).after_ns == pytest.approx(p.predicted_step_ns)
    ids = report.waterfall.forecasts[-1].ids
    assert run_what_if(folder, WhatIfRequest(apply=ids)).after_ns == pytest.approx(
        report.waterfall.forecasts[-1].step_ns
    )


def test_an_unknown_prescription_names_those_that_there_are(on_the_host):
    with pytest.raises(UsageError, match="no prescription nonsense; there are: cache-samples, load-in-workers"):
        on_the_host(apply=("nonsense",))
