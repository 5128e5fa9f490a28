"""However a script ends, its exit code passes through and what was captured stays usable."""

import json
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
AFTER_TIMING = 24  # steps, as in conftest.py
CODES = {"raise": 1, "exit": 3, "int": 130, "term": 143}
ENDED = {"raise": "raised", "exit": "finished", "int": "interrupted", "term": "killed"}


@pytest.mark.parametrize("event", CODES)
def test_before_the_first_step(captured, event):
    result = captured[event, 0].result
    assert result["kind"] == "CaptureError"
    assert result["exit_code"] == CODES[event]
    assert captured[event, 0].info is None


@pytest.mark.parametrize("event", CODES)
def test_after_the_light_window(captured, event):
    run = captured[event, AFTER_TIMING]
    assert run.result["failure"] == ""
    assert run.result["exit_code"] == CODES[event] == run.info.exit_code
    assert run.info.ended == ENDED[event]
    assert len(run.marks("light")) == len(run.info.light_ms) > 0


def test_the_traceback_is_the_script_s_alone(captured):
    stderr = captured["raise", 0].stderr
    traceback = stderr[stderr.index("Traceback") : stderr.index("ValueError: planted")]
    assert traceback.count("  File ") == 1
    assert "train.py" in traceback


def test_a_missing_script(captured):
    result = captured["missing"].result
    assert (result["kind"], result["exit_code"]) == ("UsageError", 2)


def test_an_occupied_folder_is_not_touched(captured):
    result = captured["occupied"].result
    assert (result["kind"], result["exit_code"]) == ("OutputError", 6)
    assert "--force" in result["failure"]


def test_a_forked_child_neither_captures_nor_stays(captured):
    run = captured["forks"]
    assert run.info.ended == "stopped"
    assert captured["leftovers"] == []
    assert list(run.folder.parent.glob(f"{run.folder.name}.partial*")) == []


def test_a_killed_process_leaves_what_it_had(captured):
    run = captured["killed"]
    assert run.result["codes"] == [-9]
    assert_partial(run)


@pytest.mark.full
def test_a_process_that_ends_itself_leaves_what_it_had(capturing):
    run = capturing("train.py", 1000, "_exit", AFTER_TIMING, steps=6, skip=4)
    assert run.exit_code == 7
    assert_partial(run)


def assert_partial(run):
    (partial,) = run.folder.parent.glob(run.folder.name + ".partial-*")
    info = json.loads((partial / "capture.json").read_text())
    assert info["ended"] == "killed"
    assert (partial / info["light_file"]).exists()


def test_forked_workers_end_with_the_script(captured):
    assert captured["fork"].result["exit_code"] == 0
    assert captured["fork"].info.loader.start_method == "fork"
    assert captured["leftovers"] == []


@pytest.mark.full
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_end_with_the_script(capturing, method):
    run = capturing("load.py", method, "train", steps=4)
    assert run.exit_code == 0, run.stderr
    assert run.info.loader.start_method == method
    assert capturing.leftovers() == []


def test_module(captured):
    run = captured["module"]
    assert run.result["exit_code"] == 0, run.stderr
    assert f"started __main__ ['--flag'] {SCRIPTS} False" in run.stdout
    assert run.info.command == ("-m", "package", "--flag")
    assert run.info.found_steps_by == "optimizer"


def test_two_ranks(captured):
    run = captured["two ranks"]
    assert run.result["codes"] == [0, 0], run.stderr
    assert_two_ranks(run.folder, run.stdout)


@pytest.mark.full
def test_two_ranks_of_torchrun(capturing):
    job = capturing.job("ranks.py", steps=4, skip=6)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = capturing.process([*torchrun, *capturing.command([job])])
    assert done.returncode == 0, done.stderr
    assert_two_ranks(Path(job["options"]["output"]), done.stdout)


def assert_two_ranks(folder, printed):
    assert "not stopped" not in printed
    infos = [json.loads((folder / f"capture.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert infos[0]["run_id"] == infos[1]["run_id"] != ""
    for rank, info in enumerate(infos):
        assert (info["rank"], info["world_size"], info["ended"]) == (rank, 2, "stopped")
        assert (len(info["light_ms"]), len(info["attribution_ms"])) == (4, 2)
        assert info["flags"]["ddp"]["bucket_cap_mb"] == 5
        for name in ("light_file", "attribution_file", "samples_file"):
            assert (folder / info[name]).exists()
    assert not list(folder.parent.glob(f"{folder.name}.partial*"))


def test_a_disk_that_fills_up_keeps_the_light_window(captured):
    run = captured["full disk"]
    assert run.result["exit_code"] == 0, run.stderr
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "capture.json",
        "rank0.dataflow.json.gz",
        "rank0.light.pt.trace.json.gz",
        "rank0.lines.json.gz",
        "rank0.samples.json.gz",
        "rank0.steps.json.gz",
    ]
    assert list(run.folder.parent.glob(f"{run.folder.name}.*")) == []
    assert run.info.attribution_file == ""
    assert any("attribution window could not be written" in note for note in run.info.notes)
    assert len(run.marks("light")) == 6
