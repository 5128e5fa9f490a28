"""data-stall: what the sampler takes of loading, in the process that trains. Times in µs."""

from dataclasses import replace

import pytest

from diagnose.analyzers.common.loading import loading_facts

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OF_TORCH = "torch/utils/data/dataloader.py"
SAMPLER, DATASET, LOOP = (
    ("/a/b/train.py", 56, "__iter__"),
    ("/a/b/train.py", 30, "__getitem__"),
    ("/a/b/train.py", 90, "main"),
)
QUICK = {"processes": 4.0, "user_ms_per_sample": 0.002, "system_ms_per_sample": 0.0005}  # of 32 80 µs
DRAW = "picked = self.rng.choice(len(self.p), size=768, p=self.p)"


def loaded(recording, name=WORKERS, *, at=(SAMPLER,), chosen=600, wrapped="", **loader):
    """Return two steps of 10 ms, 8 of which load, with samples at these places in turn; frames show what ran inside."""
    r = recording(devices=())
    known = {"num_workers": 0 if name == SINGLE else 4, "batches_ready": None if name == SINGLE else 1.0}
    r.with_info(flags={"cores": 64}, loader={**known, **loader})
    r.lines[SAMPLER[:2]] = DRAW
    for step in (0, 1):
        begin = 10_000 * step
        r.step(step + 1, begin, begin + 10_000)
        r.annotation(name, begin, begin + 8000)
        if wrapped:
            r.frame(f"train.py(70): {wrapped}", begin, begin + 9000)
        r.frame(f"{OF_TORCH}(736): __next__", begin, begin + 8000)
        r.frame(f"{OF_TORCH}(730): _next_index", begin + 10, begin + 10 + chosen)
        r.frame("train.py(57): __iter__", begin + 11, begin + 9 + chosen)
        if name == SINGLE:
            r.frame("torch/utils/data/_utils/fetch.py(40): fetch", begin + 7000, begin + 8000)
            r.frame("train.py(28): __getitem__", begin + 7100, begin + 7900)
        r.op("aten::mm", begin + 8000, begin + 10_000)
        for i in range(16):
            r.sample(begin + 300 + 480 * i, at[i % len(at)])
        r.sample(begin + 9000, LOOP)
    return r


@pytest.mark.parametrize("name", [SINGLE, WORKERS])
def test_a_sampler_that_takes_most_of_loading_is_named_with_its_line(recording, presentable, name):
    r = loaded(recording, name)
    finding = r.find("data-stall")
    assert finding.title == "The sampler takes 8.00 ms for each batch in the main process, at train.py:56"
    assert (finding.where[0].file, finding.where[0].line, finding.where[0].code) == (*SAMPLER[:2], DRAW)
    takes = "The sampler, which runs in the training process, takes 100 % of loading, most often at train.py:56."
    assert finding.evidence[-1].endswith(takes)
    (first,) = [p for p in r.prescribe("data-stall") if p.saves_ns[1]]
    presentable(first)
    assert (first.id, first.after) == ("cheaper-line", "")  # where the weights are made the recording does not hold
    assert first.title == "Add up the weights once, and look each draw up (train.py:56)"


def test_workers_that_wait_for_it_are_neither_taken_away_nor_added_to(recording):
    others = [
        loaded(recording, at=at, batch_size=32, counters=QUICK).prescribe("data-stall") for at in ((LOOP,), (SAMPLER,))
    ]
    assert [[p.id for p in found] for found in others] == [["load-in-process"], ["cheaper-line"]]


def test_what_the_sampler_takes_stays_with_workers_or_without(recording):
    r = loaded(recording, at=(SAMPLER, LOOP, LOOP, LOOP), batch_size=32, counters=QUICK)
    most = {p.id: p.saves_ns[1] for p in r.prescribe("data-stall")}
    assert most == {"load-in-process": pytest.approx(6e6 - 40_000), "cheaper-line": pytest.approx(2e6)}
    mixed, alone = (loaded(recording, SINGLE, at=at, batch_size=32) for at in ((SAMPLER, DATASET), (DATASET,)))
    most = [{p.id: p.saves_ns[1] for p in r.prescribe("data-stall")}["load-in-workers"] for r in (mixed, alone)]
    assert most == [pytest.approx(4e6), pytest.approx(7.4e6)]  # no sample of the latter's 600 µs: by frames alone


def test_workers_that_are_late_are_what_is_waited_for(recording):
    r = loaded(recording, at=(SAMPLER, LOOP), batches_ready=0.3, workers_busy=0.1)
    assert r.find("data-stall").title == "The step waits for the DataLoader's workers"
    most = {p.id: p.saves_ns[1] for p in r.prescribe("data-stall")}
    assert most["more-workers"] == pytest.approx(4e6)  # the sampler's half stays
    assert "cheaper-line" not in most


@pytest.mark.parametrize(("known", "share"), [((), 0.06), ((("/a/b/train.py", 50, 60, "__iter__"),), 0.5)])
def test_of_functions_of_one_name_the_samplers_own_lines_count(recording, known, share):
    """A wrapper of the loader has an ``__iter__`` too, at whose line batches are waited for."""
    wrapper = ("/a/b/train.py", 70, "__iter__")
    r = loaded(recording, at=(SAMPLER, wrapper), wrapped="__iter__", chosen=480, chosen_by=known)
    facts = r.find("data-stall").facts
    assert facts["order_share"] == pytest.approx(share)
    assert ("order_line" in facts) == bool(known)


def test_a_library_that_chooses_is_named_without_a_line(recording):
    r = loaded(recording, at=(LOOP,), chosen=6000)
    r.rows = [
        replace(row, name=row.name.replace("train.py(57)", "/lib/site-packages/samplers/by_class.py(9)"))
        for row in r.rows
    ]
    finding = r.find("data-stall")
    assert finding.title == "The sampler takes 6.00 ms for each batch in the main process"
    assert finding.where[0].line == LOOP[1]


def test_a_line_of_the_dataset_is_no_sampler(recording):
    facts = loaded(recording, SINGLE, at=(DATASET, DATASET, SAMPLER)).find("data-stall").facts
    assert (facts["slow_line"]["line"], facts["by_sampler"]) == (30, False)
    assert facts["slow_line"]["share"] + facts["order_share"] == pytest.approx(1.0)


def test_a_line_outside_of_the_loaders_call_is_none_of_loading(recording):
    """A wrapper that loads in a line of its own: what runs there is torch's."""
    wrapper = ("/a/b/feed.py", 12, "__iter__")
    facts = loaded(recording, SINGLE, at=(wrapper,)).find("data-stall").facts
    assert "slow_line" not in facts


def test_a_draw_in_a_sampler_of_the_scripts_is_no_restart(recording):
    r = loaded(recording, SINGLE)
    for step in range(2, 6):
        begin = 10_000 * step
        r.step(step + 1, begin, begin + 10_000)
        r.annotation(SINGLE, begin, begin + 8000)
        r.frame(f"{OF_TORCH}(736): __next__", begin, begin + 8000)
    for step in range(6):
        r.op("aten::randperm", 10_000 * step + 100, 10_000 * step + 7000)
    assert r.find("data-stall").facts["restart_share"] is None
    for step in range(6):
        r.frame(f"{OF_TORCH}(400): _get_iterator", 10_000 * step - 1, 10_000 * step)
    assert r.find("data-stall").facts["restart_share"] == pytest.approx(1.0)


def test_a_draw_of_the_sampler_is_none_of_the_samples(recording):
    assert "draws" not in loading_facts(loaded(recording, SINGLE).tables())
    drawn = loaded(recording, SINGLE, at=(DATASET,))
    drawn.lines[DATASET[:2]] = DRAW
    assert loading_facts(drawn.tables())["draws"]["line"] == 30


@pytest.mark.parametrize(("size", "least"), [(768, 0.8), (None, 0.0), (900, 0.0)])
def test_draws_that_cost_hardly_more_than_a_search_may_save_nothing(recording, size, least):
    r = loaded(recording, **({} if size is None else {"batch_size": size}))  # 8 ms: 10.4 and 8.9 µs for each
    (advice,) = [p for p in r.prescribe("data-stall") if p.id == "cheaper-line"]
    assert advice.saves_ns == (pytest.approx(least * 8e6), pytest.approx(8e6))
