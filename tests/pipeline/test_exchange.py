"""Ranks that see no disk of each other: what they send is enough for the same answer."""

from __future__ import annotations

import shutil
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.compare.sides import open_side
from diagnose.errors import InputError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.launched import RECEIVED_FILE
from diagnose.model.serialization import pack
from diagnose.pipeline.exchange import Received, gather, own_files, read_received, take_part, write_received
from diagnose.pipeline.job import Workers, analyze_inputs, answer_from_received
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.json import to_dict
from diagnose.text.progress import Progress

CAPTURE = Path("fixtures/captures/barrier_every_step")  # of two ranks
QUIET = Progress(quiet=True)


class Mailbox:
    """What the store of a job is to its ranks."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, data: bytes) -> None:
        with self._changed:
            self.values[key] = data
            self._changed.notify_all()

    def get(self, key: str, wait_s: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self.values, wait_s)
            return self.values.get(key)


@pytest.fixture
def apart(tmp_path) -> list[Path]:
    """Return a folder for each rank with its capture alone."""
    return divided(tmp_path)


@pytest.fixture(scope="module")
def received(tmp_path_factory) -> Received:
    """Return what the first rank has got, of folders that no test touches."""
    return exchanged(divided(tmp_path_factory.mktemp("apart")))


@pytest.fixture(scope="module")
def whole() -> dict[str, object]:
    """Return the answer of all files together."""
    return told(analyze_paths([CAPTURE]))


def divided(above: Path) -> list[Path]:
    folders = []
    for rank in (0, 1):
        folder = above / f"node{rank}"
        folder.mkdir()
        for file in [*CAPTURE.glob(f"rank{rank}.*"), CAPTURE / f"capture.rank{rank}.json"]:
            shutil.copy(file, folder)
        folders.append(folder)
    return folders


def exchanged(folders):
    """Let both ranks exchange, and return what the first one has got."""
    messages = Mailbox()
    other = threading.Thread(target=take_part, args=(own_files(folders[1], 1), 1, messages))
    other.start()
    received = gather(own_files(folders[0], 0), 0, (0, 1), messages)
    other.join()
    return received


def told(diagnosis: Diagnosis) -> dict[str, object]:
    """Return the answer without the places of the files."""
    return {**to_dict(diagnosis), "source": None}


def test_what_ranks_send_gives_the_answer_of_all_files_together(received, whole):
    assert received.ranks == {0, 1}
    assert told(answer_from_received(received)) == whole


def test_what_was_received_is_kept_in_the_capture_and_read_again(apart, received, whole):
    write_received(apart[0], received)
    assert read_received([apart[0]]).ranks == {1}  # what lies here is read from its own files
    again = analyze_inputs([apart[0]], workers=Workers(1), progress=QUIET, draw=True)
    assert told(again) == whole


def test_a_comparison_reads_the_ranks_that_were_received(apart, received):
    write_received(apart[0], received)
    side, whole = open_side(apart[0]), open_side(CAPTURE)
    assert [rank.rank for rank in side.diagnosis.ranks] == [0, 1]
    assert told(side.diagnosis) == told(whole.diagnosis)
    assert (side.runs, side.setups) == (whole.runs, whole.setups)
    assert told(open_side(apart[1]).diagnosis) != told(whole.diagnosis)  # nothing was received there


def test_nothing_is_kept_where_all_ranks_write_into_one_folder(tmp_path, received):
    shared = tmp_path / "shared"
    shutil.copytree(CAPTURE, shared)
    write_received(shared, received)
    assert not (shared / RECEIVED_FILE).exists()


def test_a_rank_of_which_nothing_comes_is_named_and_the_rest_is_answered(apart):
    received = gather(own_files(apart[0], 0), 0, (0, 1), Mailbox(), wait_s=0.01)
    assert (received.ranks, list(received.absent)) == ({0}, [1])
    write_received(apart[0], received)
    answer = to_dict(analyze_inputs([apart[0]], workers=Workers(1), progress=QUIET, draw=False))
    assert "The summary of rank 1 did not come through the job's store." in [n["text"] for n in answer["trust"]]


def test_a_rank_that_cannot_read_its_capture_sends_why(apart):
    for trace in apart[1].glob("*.pt.trace.json.gz"):
        trace.write_bytes(b"")
    received = exchanged(apart)
    assert list(received.absent) == [1]
    assert "rank 1" in received.absent[1]


@pytest.mark.parametrize("data", [b"", b"garbage", zlib.compress(pack((1, 2))), zlib.compress(bytes(65 << 20))])
def test_a_damaged_examination_leaves_the_answer_to_the_summary(received, data):
    damaged = replace(received, examined=dict.fromkeys(received.examined, data))
    answer = to_dict(answer_from_received(damaged))
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]
    assert any("its own findings are missing" in note["text"] for note in answer["trust"])


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x84"])
def test_a_damaged_file_of_summaries_is_a_sentence(apart, content):
    (apart[0] / RECEIVED_FILE).write_bytes(content)
    with pytest.raises(InputError, match=r"received\.ranks is damaged"):
        read_received([apart[0]])
