"""What a killed process leaves: what can be read is found and named, the rest is removed."""

import json

import pytest

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process import launch
from diagnose.cli import trace as tracing
from diagnose.cli.ranks import Exchange
from diagnose.cli.trace import TraceRequest
from diagnose.errors import CaptureError
from diagnose.model.launched import Launched

DESCRIBED = json.dumps({"schema_version": 1, "light_file": "rank0.light.pt.trace.json.gz"})


def run_child(monkeypatch, tmp_path, leave, *, failure=""):
    """Run `diagnose trace` up to the diagnosis, with a child that leaves ``leave`` and is killed."""

    def supervise(order, script, *, stdout_to_stderr, with_store, place):
        for name, text in leave.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "c").mkdir(exist_ok=True)  # reserved
        return launch.Ended(pid=7, returncode=6 if failure else -9, failure=failure)

    monkeypatch.setattr(launch, "supervise", supervise)
    monkeypatch.chdir(tmp_path)
    request = TraceRequest(script="train.py", folder="c", quiet=True)
    exchange = Exchange(0, {0}, request.progress)
    return tracing._run(request, CaptureOptions(output=tracing.Path("c")), Launched(), exchange)


def test_pieces_without_a_whole_window_are_removed(monkeypatch, tmp_path):
    with pytest.raises(CaptureError, match="SIGKILL"):
        run_child(
            monkeypatch, tmp_path, {"c.partial-7/.spare": "", "c.partial-7/rank0.light.pt.trace.json.gz.raw": "{"}
        )
    assert list(tmp_path.iterdir()) == []


def test_a_whole_window_is_kept_where_it_is(monkeypatch, tmp_path):
    assert run_child(monkeypatch, tmp_path, {"c.partial-7/capture.json": DESCRIBED}) == (
        137,
        tracing.Path("c.partial-7"),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["c.partial-7"]


def test_a_capture_beside_the_place_is_found(monkeypatch, tmp_path):
    leave = {"c/capture.json": DESCRIBED, "c-7/capture.json": DESCRIBED}
    assert run_child(monkeypatch, tmp_path, leave) == (137, tracing.Path("c-7"))


def test_another_run_s_capture_is_not_taken_for_this_one_s(monkeypatch, tmp_path):
    with pytest.raises(CaptureError, match="Another run"):
        run_child(monkeypatch, tmp_path, {"c/capture.json": DESCRIBED}, failure="Another run is writing there.")
    assert (tmp_path / "c" / "capture.json").exists()


def test_an_earlier_leftover_is_named(monkeypatch, tmp_path, capsys):
    (tmp_path / "c.partial-3").mkdir()
    (tmp_path / "c.partial-3" / "capture.json").write_text(DESCRIBED)
    tracing._capture_folder(TraceRequest(folder=str(tmp_path / "c")), Launched())
    assert f"{tmp_path}/c.partial-3 is the partial capture of an earlier run" in capsys.readouterr().err
