"""One rank's part in the exchange of summaries: what fails in it costs the exchange alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diagnose.capture.process.rank_processes import StoreGone
from diagnose.cli.ranks import Exchange
from diagnose.model.launched import RECEIVED_FILE
from diagnose.pipeline import exchange
from diagnose.text.progress import Progress

CAPTURE = Path("fixtures/captures/barrier_every_step")  # of two ranks


class Store:
    """A store that is gone after some answers."""

    def __init__(self, folder: Path, answers: int) -> None:
        self.folder, self.answers = folder, answers

    def put(self, key: str, data: bytes) -> None:
        self._count()

    def get(self, key: str, wait_s: float) -> bytes | None:
        self._count()
        return None

    def _count(self) -> None:
        self.answers -= 1
        if self.answers < 0:
            raise StoreGone("rank 0 has ended")


@pytest.fixture
def folder(tmp_path) -> Path:
    for file in [*CAPTURE.glob("rank0.*"), CAPTURE / "capture.rank0.json"]:
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.mark.parametrize("answers", [0, 1])
def test_a_store_that_is_gone_leaves_what_is_here_to_be_answered(folder, answers, capsys):
    part = Exchange(0, (0, 1), Progress(quiet=True))
    part.run(Store(folder, answers))
    assert part.received.ranks == {0}
    assert part.is_cut
    assert part.received.absent == {}  # their captures may still come into the folder
    assert not (folder / RECEIVED_FILE).exists()


def test_a_rank_whose_capture_is_not_there_is_a_sentence(tmp_path, capsys):
    (tmp_path / "capture.rank3.json").write_text("{}")
    part = Exchange(0, (0, 1), Progress())
    part.run(Store(tmp_path, 9))
    assert part.received is None
    assert "holds no capture of rank 0" in capsys.readouterr().err


def test_a_fault_of_ours_is_a_sentence_and_no_traceback(folder, monkeypatch, capsys):
    def gather(*_args: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(exchange, "gather", gather)
    monkeypatch.delenv("DIAGNOSE_DEBUG", raising=False)
    part = Exchange(0, (0, 1), Progress())
    part.run(Store(folder, 9))
    assert part.received is None
    assert "could not be exchanged (ZeroDivisionError: division by zero)." in capsys.readouterr().err
