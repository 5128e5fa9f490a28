"""A job from its files to the answer: the same whoever reads the ranks, and whatever one of them holds."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from diagnose.cli.main import run
from diagnose.errors import InputError
from diagnose.pipeline import job
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


def test_a_second_look_reads_no_trace(traces, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    first = analyzed(traces, workers=Workers(1, Cache(tmp_path / "cache")))
    monkeypatch.setattr("diagnose.trace_reader.folders.read_rank", None)
    assert analyzed(traces, workers=Workers(1, Cache(tmp_path / "cache"))) == first


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


def test_summaries_of_parts_give_the_answer_of_the_whole(traces, tmp_path):
    kept: list[JobProfile] = []
    expected = analyzed(traces, keep=kept.append)
    for rank in (1, 0):
        part = profile_inputs([traces / f"rank{rank}.json.gz"], workers=Workers(1), progress=QUIET)
        write_summaries(tmp_path / f"{rank}.ranks", part, force=False)
    profile = read_summaries(list_summaries([str(tmp_path)]))
    assert [p.to_bytes() for p in profile.ranks] == [p.to_bytes() for p in kept[0].ranks]
    answer = to_dict(answer_from_summaries(profile, workers=Workers(1), draw=False))
    assert answer == expected


def test_without_the_traces_the_summaries_answer_what_they_can(traces, tmp_path):
    profile = profile_inputs([traces], workers=Workers(1), progress=QUIET)
    expected = analyzed(traces)
    shutil.rmtree(traces)
    answer = to_dict(answer_from_summaries(profile, workers=Workers(1), draw=False))
    assert [rank["waits_ms"] for rank in answer["ranks"]] == [rank["waits_ms"] for rank in expected["ranks"]]
    assert any("is not at hand: its own findings are missing" in note["text"] for note in answer["trust"])


def test_summaries_are_merged_in_levels(traces, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in (0, 1):
        assert run(["analyze", str(traces / f"rank{rank}.json.gz"), "--partial", f"{rank}.ranks", "-q"]) == 0
    assert run(["analyze", "--merge", "0.ranks", "--keep", "a.ranks", "-q"]) == 0
    capsys.readouterr()
    assert run(["analyze", "--merge", "a.ranks", "1.ranks", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out) == analyzed(traces)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        (
            "a.ranks",
            b"x",
            r"a\.ranks is damaged, or no file of summaries\. Make it again with diagnose analyze --partial\.$",
        ),
        ("a.ranks", b"\x83\xa6format\xa1x\xa5ranks\x90\xa7missing\x90", r"a\.ranks was made by another version"),
        ("a.ranks", b"", r"a\.ranks is empty\."),
        (
            "a.txt",
            b"x",
            r"a\.txt holds no summaries \(\.ranks\)\. Make them with diagnose analyze --partial\.$",
        ),
    ],
)
def test_what_is_no_file_of_summaries(tmp_path, name, data, sentence):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=sentence):
        read_summaries(list_summaries([str(tmp_path / name)]))


@pytest.mark.parametrize("option", ["--keep=job.csv", "--partial=job.csv", "--cluster=x", "--cluster=slurm"])
def test_options_are_checked_before_the_work_begins(option, capsys):
    assert run(["analyze", "absent", option]) == 2
    assert "absent" not in capsys.readouterr().err


def test_timelines_are_there_without_the_traces_too(traces):
    profile = profile_inputs([traces], workers=Workers(1), progress=QUIET)
    expected = analyzed(traces)["job"]["aligned_step"]
    shutil.rmtree(traces)
    answer = to_dict(answer_from_summaries(profile, workers=Workers(1), draw=False))
    assert answer["job"]["aligned_step"] == expected
    assert sorted(rank["rank"] for rank in expected["ranks"]) == [0, 1]
    assert all(rank["collectives"] for rank in expected["ranks"])
    assert min(c["waiting_ms"] for rank in expected["ranks"] for c in rank["collectives"]) == 0.0
