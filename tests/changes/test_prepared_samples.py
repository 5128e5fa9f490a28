"""cheaper-sample: all samples prepared once, by a list in the dataset's place. Times in µs."""

import subprocess
from dataclasses import replace

import pytest
import torch

from diagnose.changes.common.call_arguments import Expression, set_arguments
from diagnose.changes.common.loading import prepared
from diagnose.pipeline.rank import analyze_rank
from diagnose.tables.program import Program
from tests.changes.test_cheaper_sample import advised, computing

SCRIPT = ["seed(0)", "rows = Rows(64)", "loader = DataLoader(rows, shuffle=True)", "model = Model()", "fit()", "end()"]
LOADER = {
    "dataset": "Rows", "num_workers": 0, "batch_size": 8, "sampler": "RandomSampler", "num_batches": 200,
    "batch_bytes": 40_000,
}  # fmt: skip
LIST = "[rows[i] for i in range(len(rows))]"


def made(lines=SCRIPT, at=3):
    """Return the record of the call at a line, which takes the rest of it."""
    begin = lines[at - 1].index("DataLoader(")
    return {
        "name": "DataLoader", "file": "train.py", "first": 1, "lines": lines, "begin": (at, begin),
        "end": (at, len(lines[at - 1])), "parameters": ("dataset", "batch_size", "shuffle", "num_workers"),
        "spread": (),
    }  # fmt: skip


def loading(recording, call=None, **loader):
    """Return the recording of a script whose loader is made by this call."""
    r = computing(recording, lines=(31,), cores=1)
    r.with_info(flags={"cores": 1, "num_threads": 2}, loader={**LOADER, "made": call or made(), **loader})
    return r


def test_a_list_takes_the_datasets_place_as_a_diff_that_git_applies(recording, presentable, tmp_path):
    p = advised(loading(recording))
    presentable(p)
    script = tmp_path / "train.py"
    script.write_text("\n".join(SCRIPT) + "\n")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=p.diff, text=True, check=True)
    assert script.read_text().splitlines() == [*SCRIPT[:2], f"loader = DataLoader({LIST}, shuffle=True)", *SCRIPT[3:]]
    assert p.title == "Prepare all samples once, before training: data.py:31, which takes 100 % of loading"
    assert p.before == SCRIPT[2]
    assert p.after == f"loader = DataLoader({LIST}, shuffle=True)"
    assert p.needs == (
        "memory for all 1,600 samples, about 8.0 MB; the first step begins about 160 ms later: it pays from the "
        "second epoch on"
    )
    assert p.safety == "same numbers if a sample stays the same in each epoch and draws no random numbers"


def test_the_changed_line_gives_the_same_batches():
    class Rows(torch.utils.data.Dataset):
        asked = 0

        def __len__(self):
            return 6

        def __getitem__(self, i):
            self.asked += 1
            return torch.full((2,), float(i)), i

    def batches(line):
        rows = Rows()
        torch.manual_seed(0)
        names = {"rows": rows, "DataLoader": torch.utils.data.DataLoader}
        exec(line, names)
        seen = [[each.tolist() for each in batch] for _ in range(3) for batch in names["loader"]]
        return seen, rows.asked

    line = "loader = DataLoader(rows, 2, shuffle=True)"
    call, why = set_arguments(line[9:], {"dataset": Expression(LIST)}, parameters=("dataset", "batch_size"))
    assert why == ""
    (before, asked), (after, once) = batches(line), batches(f"loader = {call}")
    assert after == before
    assert (asked, once) == (18, 6)


def test_sizes_that_are_not_known_are_not_stated(recording):
    p = advised(loading(recording, num_batches=None, batch_bytes=None))
    assert p.diff
    assert p.needs == (
        "memory for all samples; the first step begins as much later as loading all of them takes: it pays from the "
        "second epoch on"
    )
    ranks = advised(loading(recording, sampler="DistributedSampler"))
    assert ranks.diff
    assert ranks.needs.startswith("memory for all samples; ")  # a rank's batches are a part of them


def test_a_name_with_a_dot_is_a_name(recording):
    lines = [*SCRIPT[:2], "loader = DataLoader(batch_size=8, dataset=self.rows)", *SCRIPT[3:]]
    p = advised(loading(recording, made(lines)))
    assert "dataset=[self.rows[i] for i in range(len(self.rows))])" in p.after


def test_a_dataset_that_is_made_in_the_call_is_looked_through_there(recording):
    p = advised(loading(recording, made([*SCRIPT[:2], "loader = DataLoader(Rows(64), shuffle=True)", *SCRIPT[3:]])))
    every = "[samples[i] for samples in [Rows(64)] for i in range(len(samples))]"
    assert p.after.splitlines()[0] == f"loader = DataLoader({every}, shuffle=True)"
    assert eval(every, {"Rows": lambda num: [str(i) for i in range(num)]}) == [str(i) for i in range(64)]


IN_A_LOOP = ["rows = Rows(64)", "for epoch in range(3):", "    loader = DataLoader(rows)", "    fit(loader)"]


@pytest.mark.parametrize(
    ("loader", "lines"),
    [
        ({"sampler": "Buckets"}, SCRIPT),  # which may give anything
        ({"batch_size": None}, SCRIPT),
        ({"batch_bytes": 80_000_000}, SCRIPT),  # 16 GB
        ({}, IN_A_LOOP),
    ],
)
def test_where_the_edit_is_not_certain_the_line_is_shown(recording, presentable, loader, lines):
    p = advised(loading(recording, made(lines), **loader))
    presentable(p)
    assert (p.diff, p.edits) == ("", ())
    assert p.title.startswith("Make the sample cheaper at data.py:31, which takes 100 % of loading: ")
    assert p.after.splitlines()[:2] == [
        f"rows = {LIST}   # every sample once, before training",
        "# above the line that makes the DataLoader, train.py:3",
    ]
    assert p.needs.startswith("memory for all ")
    assert "the first step begins about " in p.needs


def test_a_loop_below_the_call_or_before_its_function_is_not_around_it(recording):
    for above in (["for name in names:", "    use(name)"], ["def make(rows):", "    rows = Rows(rows)"]):
        lines = [*above, "loader = DataLoader(rows)", "for epoch in range(3):"]
        assert advised(loading(recording, made(lines))).diff


@pytest.mark.parametrize(
    ("loader", "given"),
    [
        ({}, "rows[0]"),
        ({}, "*settings"),
        ({"sampler": "_InfiniteConstantSampler"}, "rows"),
        ({"num_workers": 2}, "rows"),
        ({"collate_fn": "pad"}, "rows"),
    ],
)
def test_what_to_do_is_said_in_words_where_no_list_can_be_made(recording, loader, given):
    lines = [*SCRIPT[:2], f"loader = DataLoader({given})", *SCRIPT[3:]]
    r = loading(recording, made(lines), **loader)
    if "collate_fn" in loader:
        r.sampled = [(at, ("data.py", 31, "collate"), running) for at, _, running in r.sampled]
    p = advised(r)
    assert p.diff == ""
    assert p.title.endswith("compute in one call, or once if each epoch gives the same")
    assert p.after == ""


def test_a_run_of_inference_sees_each_sample_once(recording):
    facts = loading(recording).find("data-stall").facts
    assert prepared(facts, Program(trains=True)).edit is not None
    assert prepared(facts, Program(trains=False)) is None


def test_all_of_the_sample_is_saved_where_it_is_prepared(recording):
    def most(call):
        r = loading(recording, made([*SCRIPT[:2], f"loader = {call}", *SCRIPT[3:]]))
        r.sampled = [
            (at, ("data.py", 90 if i % 3 == 0 else 31, "crop" if i % 3 == 0 else "__getitem__"), running)
            for i, (at, _, running) in enumerate(r.sampled)
        ]
        return advised(r).saves_ns[1]

    assert most("DataLoader(rows)") > 1.1 * most("DataLoader(*settings)")  # of it two thirds, and crop


def test_a_collate_function_beside_a_slow_getitem_stands_in_nobodys_way(recording):
    assert advised(loading(recording, collate_fn="pad")).diff


@pytest.mark.parametrize("file", ["data.py", "train.py"])  # of the dataset, and where its transforms may be made
def test_no_sample_that_draws_at_random_is_kept(recording, file):
    capture = replace(loading(recording).capture(), draws={file: (7,)})
    (p,) = [p for p in analyze_rank(capture).prescriptions if p.id == "cheaper-sample"]
    assert p.diff == ""
    assert "range(len(" not in p.after
