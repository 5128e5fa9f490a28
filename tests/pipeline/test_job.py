"""A job from its files to the answer: the same whoever reads the ranks, and whatever one of them holds."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from diagnose.cli.main import run
from diagnose.errors import InputError, UsageError
from diagnose.pipeline import job
from diagnose.pipeline import job as workers
from diagnose.pipeline.exchange import list_summaries, read_summaries, write_summaries
from diagnose.pipeline.job import Workers, analyze_inputs, answer_from_summaries, profile_inputs
from diagnose.pipeline.rank_results import Cache
from diagnose.pipeline.run import analyze_paths
from diagnose.ranks.profile import JobProfile
from diagnose.reports.json import to_dict
from diagnose.text.progress import Progress
from diagnose.trace_reader import folders

CAPTURE = Path("fixtures/captures/barrier_every_step")  # of two ranks
QUIET = Progress(quiet=True)


def analyzed(*paths, workers=Workers(1), keep=None):
    return to_dict(analyze_inputs(paths, workers=workers, progress=QUIET, draw=False, keep=keep))


@pytest.fixture
def traces(tmp_path) -> Path:
    """Return a folder with the traces of two ranks and nothing else."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in (0, 1):
        shutil.copy(CAPTURE / f"rank{rank}.light.pt.trace.json.gz", folder / f"rank{rank}.json.gz")
    return folder


def test_the_answer_is_that_of_one_process(monkeypatch):
    expected = to_dict(analyze_paths([CAPTURE]))
    assert analyzed(CAPTURE) == expected
    assert analyzed(CAPTURE, workers=Workers(2)) == expected


def test_only_the_ranks_that_matter_are_examined(traces, monkeypatch):
    trace = json.loads(gzip.decompress((traces / "rank1.json.gz").read_bytes()))
    for rank in range(2, 8):
        trace["distributedInfo"]["rank"] = rank
        (traces / f"rank{rank}.json").write_text(json.dumps(trace))
    examined = []
    work = job.packed_examination
    monkeypatch.setattr(job, "packed_examination", lambda files, **more: examined.append(files) or work(files, **more))
    assert len(analyzed(traces)["ranks"]) == 8
    assert len(examined) <= 3


def test_a_job_of_few_ranks_reads_each_file_once(traces, monkeypatch, tmp_path):
    read = []
    monkeypatch.setattr(
        folders, "read_trace", lambda path, *rest, made=folders.read_trace: read.append(path) or made(path, *rest)
    )
    expected = to_dict(analyze_paths([traces]))
    assert len(read) == 2
    read.clear()
    assert analyzed(traces) == expected
    assert len(read) == 2
    (tmp_path / "cache").mkdir()
    cached = Workers(1, cache=Cache(tmp_path / "cache"))
    assert [analyzed(traces, workers=cached), analyzed(traces, workers=cached)] == [expected, expected]
    assert len(read) == 4
    (traces / "rank1.json.gz").unlink()
    assert analyzed(traces, workers=cached)["ranks"] == []


def test_a_bad_file_is_named_and_the_rest_is_answered(traces):
    (traces / "rank2.json").write_text("")
    (traces / "rank3.json").write_text("{")
    (traces / "labels.json").write_text('{"a": 1}')
    answer = analyzed(traces)
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]
    notes = " ".join(note["text"] for note in answer["trust"])
    assert "rank2.json is empty." in notes
    assert "rank3.json ends before its first event." in notes
    assert "labels.json is JSON, but not a trace of torch.profiler" in notes


def test_nothing_but_bad_files_is_an_error(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text("")
    with pytest.raises(InputError, match=r"rank0\.json is empty\."):
        analyzed(tmp_path)
    with pytest.raises(InputError, match="There is nothing to analyse"):
        analyzed()


def test_a_second_look_reads_nothing_but_bytes(traces, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    workers = Workers(1, cache=Cache(tmp_path / "cache"))
    first = analyzed(traces, workers=workers)
    monkeypatch.setattr("diagnose.trace_reader.folders.read_rank", None)
    assert analyzed(traces, workers=workers) == first


def test_a_second_look_at_a_job_compares_nothing_unless_a_rank_that_was_examined_has_changed(
    traces, tmp_path, monkeypatch
):
    (tmp_path / "cache").mkdir()
    workers = Workers(1, cache=Cache(tmp_path / "cache"))
    first = analyzed(traces, workers=workers)
    assert analyzed(CAPTURE, workers=workers)["ranks"] != first["ranks"]
    with monkeypatch.context() as patch:
        patch.setattr("diagnose.pipeline.run.answer_of", None)
        assert analyzed(traces, workers=workers) == first
        (traces / "rank2.json").write_text("")
        with pytest.raises(TypeError):
            analyzed(traces, workers=workers)
        (traces / "rank2.json").unlink()
        with (traces / "rank0.json.gz").open("ab") as file:
            file.write(b"padding")  # the events and so the summary stay the same
        with pytest.raises(TypeError):
            analyzed(traces, workers=workers)
    assert analyzed(traces, workers=workers) == first


@pytest.mark.parametrize("suffix", [".ranks", ".parquet"])
def test_summaries_of_parts_give_the_answer_of_the_whole(traces, tmp_path, suffix):
    kept: list[JobProfile] = []
    expected = analyzed(traces, keep=kept.append)
    for rank in (1, 0):
        part = profile_inputs([traces / f"rank{rank}.json.gz"], workers=Workers(1), progress=QUIET)
        write_summaries(tmp_path / f"{rank}{suffix}", part, force=False)
    profile = read_summaries(list_summaries([str(tmp_path)]))
    assert [p.to_bytes() for p in profile.ranks] == [p.to_bytes() for p in kept[0].ranks]
    answer = to_dict(answer_from_summaries(profile, workers=Workers(1), progress=QUIET, draw=False))
    assert answer == expected


def test_without_the_traces_the_summaries_answer_what_they_can(traces, tmp_path):
    profile = profile_inputs([traces], workers=Workers(1), progress=QUIET)
    expected = analyzed(traces)
    shutil.rmtree(traces)
    answer = to_dict(answer_from_summaries(profile, workers=Workers(1), progress=QUIET, draw=False))
    assert [rank["waits_ms"] for rank in answer["ranks"]] == [rank["waits_ms"] for rank in expected["ranks"]]
    assert any("is not at hand: its own findings are missing" in note["text"] for note in answer["trust"])


def test_summaries_are_merged_in_levels(traces, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in (0, 1):
        assert run(["analyze", str(traces / f"rank{rank}.json.gz"), "--partial", f"{rank}.ranks", "-q"]) == 0
    assert run(["analyze", "--merge", "0.ranks", "--keep", "a.parquet", "-q"]) == 0
    capsys.readouterr()
    assert run(["analyze", "--merge", "a.parquet", "1.ranks", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out) == analyzed(traces)


def test_a_table_can_be_queried(traces, tmp_path):
    from pyarrow import parquet

    analyzed(traces, keep=lambda profile: write_summaries(tmp_path / "job.parquet", profile, force=False))
    table = parquet.read_table(tmp_path / "job.parquet").to_pydict()
    assert table["rank"] == [0, 1]
    assert table["num_steps"] == [2, 2]


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        (
            "a.ranks",
            b"x",
            r"a\.ranks is damaged, or no file of summaries\. Make it again with diagnose analyze --partial\.$",
        ),
        ("a.ranks", b"\x83\xa6format\xa1x\xa5ranks\x90\xa7missing\x90", r"a\.ranks was made by another version"),
        ("a.parquet", b"PAR1", r"a\.parquet is damaged, or no table that --keep wrote\."),
        ("a.ranks", b"", r"a\.ranks is empty\."),
        (
            "a.txt",
            b"x",
            r"a\.txt holds no summaries \(\.ranks, \.parquet\)\. Make them with diagnose analyze --partial\.$",
        ),
    ],
)
def test_what_is_no_file_of_summaries(tmp_path, name, data, sentence):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=sentence):
        read_summaries(list_summaries([str(tmp_path / name)]))


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        (Workers(4, 512 << 20), r"--max-memory is too little: each process needs 256M\."),
        (Workers(2, cluster="tcp://h:1"), r"--workers and --max-memory are for this machine"),
        (Workers(cluster="h:1"), r"Invalid --cluster 'h:1': use tcp://HOST:PORT, file:SCHEDULER\.json or slurm\."),
        (Workers(cluster="slurm"), r"--cluster slurm needs an allocation: run it inside sbatch or salloc"),
    ],
)
def test_workers_that_cannot_be_had(workers, sentence):
    with pytest.raises(UsageError, match=sentence):
        workers.check()


@pytest.mark.parametrize(
    ("option", "code"), [("--max-memory=lots", 2), ("--keep=job.csv", 2), ("--partial=job.csv", 2), ("--cluster=x", 2)]
)
def test_options_are_checked_before_the_work_begins(option, code, capsys):
    assert run(["analyze", "absent", option]) == code
    assert "absent" not in capsys.readouterr().err


def test_less_memory_means_fewer_processes(traces):
    ranks = job.list_inputs([traces]).ranks
    assert workers._processes(Workers(8, 4 << 30), ranks) == (8, 512 << 20)
    assert workers._processes(Workers(None, 300 << 20), ranks) == (1, 300 << 20)


def test_timelines_are_there_without_the_traces_too(traces):
    profile = profile_inputs([traces], workers=Workers(1), progress=QUIET)
    expected = analyzed(traces)["job"]["aligned_step"]
    shutil.rmtree(traces)
    answer = to_dict(answer_from_summaries(profile, workers=Workers(1), progress=QUIET, draw=False))
    assert answer["job"]["aligned_step"] == expected
    assert sorted(rank["rank"] for rank in expected["ranks"]) == [0, 1]
    assert all(rank["collectives"] for rank in expected["ranks"])
    assert min(c["waiting_ms"] for rank in expected["ranks"] for c in rank["collectives"]) == 0.0
