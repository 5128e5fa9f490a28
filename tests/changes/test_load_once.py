"""load-once: all samples of a library's dataset in a list, where none draws random numbers. Times in µs."""

from dataclasses import replace

import pytest

from diagnose.pipeline.rank import analyze_rank
from tests.changes.test_cheaper_sample import computing
from tests.changes.test_prepared_samples import LOADER, made

LOADS_ONCE = {
    "single_process": True, "batches_drew": False, "batch_size": 8, "batch_ns": 1e6, "batch_bytes": 4000,
    "num_batches": 20, "sampler": "RandomSampler",
    "made": {
        "name": "DataLoader", "file": "train.py", "first": 1, "lines": ["loader = DataLoader(dataset, batch_size=8)"],
        "begin": (1, 9), "end": (1, 42), "parameters": ("dataset", "batch_size"), "spread": (),
    },
}  # fmt: skip
"""Facts of a finding that the change is prescribed for."""
LIST = "[rows[i] for i in range(len(rows))]"


def loading(recording, *, lines=(), **loader):
    """Return a step of 1000 µs, 800 of them loading 8 samples of 5 kB, none of whose lines are the script's."""
    r = computing(recording, lines=lines, cores=1)
    known = {**LOADER, "made": made(), "collate_fn": "default_collate", "batches_drew": False}
    r.with_info(flags={"cores": 1, "num_threads": 2}, loader={**known, **loader})
    return r


def advised(r):
    return next((p for p in r.prescribe("data-stall") if p.id == "load-once"), None)


def test_a_list_takes_the_datasets_place(recording, presentable):
    p = advised(loading(recording))
    presentable(p)
    assert p.title == "Load all samples once, before training, into about 8.0 MB of memory"
    assert p.after == f"loader = DataLoader({LIST}, shuffle=True)"
    assert p.diff
    assert p.needs.startswith("memory for all 1,600 samples, about 8.0 MB; the first step begins about 160 ms later: ")
    together_us = 8 * 3 + 40_000 / 2000
    assert p.saves_ns == (pytest.approx(0.75 * (800 - together_us) * 1000), 800_000)


@pytest.mark.parametrize(
    "change",
    [
        {"batches_drew": True},
        {"comes_again": False},  # one epoch
        {"batches_drew": None},  # of a capture that did not look
        {"num_workers": 2},
        {"sampler": "Buckets"},  # may ask for anything
        {"sampler": "_InfiniteConstantSampler"},
        {"batch_bytes": None},
        {"num_batches": 300_000},  # 12 GB
        {"batch_bytes": 900_000},  # of 800 µs 450 to put them together
        {"batch_size": 200},  # 600
        {"collate_fn": "pad"},  # which may take the time
        {"made": None},
    ],
)
def test_it_is_left_where_a_list_may_not_do_or_saves_little(recording, change):
    assert advised(loading(recording, **change)) is None


def test_a_line_of_the_scripts_own_that_takes_the_time_is_named_instead(recording):
    found = [p.id for p in loading(recording, lines=(31,)).prescribe("data-stall")]
    assert "cheaper-sample" in found
    assert "load-once" not in found


def test_the_head_of_a_loop_over_batches_is_no_line_of_a_sample(recording):
    r = computing(recording)
    r.lines["eval.py", 97] = "for data in loader:"
    r.sampled = [(at, ("eval.py", 97, "test"), running) for at, _, running in r.sampled]
    assert "slow_line" not in r.find("data-stall").facts
    r.lines["eval.py", 97] = "rows = parse(text)"  # a function that only runs within loading
    assert r.find("data-stall").facts["slow_line"]["line"] == 97


def test_a_draw_known_from_the_source_is_one(recording):
    capture = replace(loading(recording).capture(), draws={"train.py": (2,)})
    assert "load-once" not in [p.id for p in analyze_rank(capture).prescriptions]
