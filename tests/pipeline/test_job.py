"""A job from its files to the answer: the same whoever reads the ranks, and whatever one of them holds."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.pipeline import job
from diagnose.pipeline.job import Workers, analyze_inputs
from diagnose.pipeline.rank_results import Cache
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.json import to_dict
from diagnose.text.progress import Progress
from diagnose.trace_reader import folders

CAPTURE = Path("fixtures/captures/barrier_every_step")  # of two ranks
QUIET = Progress(quiet=True)


def analyzed(*paths, workers=Workers(1)):
    return to_dict(analyze_inputs(paths, workers=workers, progress=QUIET, draw=False))


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
