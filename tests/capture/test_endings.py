"""However a script ends, its exit code passes through and what was captured stays usable."""

import json
import socket
from pathlib import Path

import pytest

AFTER_TIMING = 24  # steps: the timing window of six steps is over, the script has many to go


@pytest.fixture(scope="module")
def endings(tmp_path_factory, capturing_in):
    """Scripts that do not end the process, one after the other."""
    capturing = capturing_in(tmp_path_factory.mktemp("endings"))
    jobs = {"module": capturing.job("package", "--flag", module=True, steps=4)}  # torch is not imported yet
    jobs |= {
        (event, when): capturing.job("train.py", 1000, event, when, steps=6, skip=4)
        for event in ("raise", "exit", "int", "term")
        for when in (0, AFTER_TIMING)
    }
    jobs["missing"] = capturing.job("nothing.py")
    jobs["occupied"] = {**capturing.job("train.py"), "options": jobs["raise", AFTER_TIMING]["options"]}
    jobs["fork"] = capturing.job("train.py", 1_000_000, "fork", 3, steps=6, skip=4)
    jobs["workers"] = capturing.job("load.py", "fork", "train", steps=4)
    jobs["full disk"] = capturing.job("train.py", 1_000_000, "full", AFTER_TIMING, steps=6, skip=4)
    results = dict(zip(jobs, capturing.run(list(jobs.values())), strict=True))
    results["leftovers"] = capturing.leftovers()
    return results


CODES = {"raise": 1, "exit": 3, "int": 130, "term": 143}
ENDED = {"raise": "raised", "exit": "finished", "int": "interrupted", "term": "killed"}


@pytest.mark.parametrize("event", CODES)
def test_before_the_first_step(endings, event):
    result = endings[event, 0].result
    assert result["kind"] == "CaptureError"
    assert result["exit_code"] == CODES[event]
    assert endings[event, 0].info is None


@pytest.mark.parametrize("event", CODES)
def test_after_the_light_window(endings, event):
    run = endings[event, AFTER_TIMING]
    assert run.result["failure"] == ""
    assert run.result["exit_code"] == CODES[event] == run.info.exit_code
    assert run.info.ended == ENDED[event]
    assert len(run.marks("light")) == len(run.info.light_ms) > 0


def test_the_traceback_is_the_script_s_alone(endings):
    stderr = endings["raise", 0].stderr
    traceback = stderr[stderr.index("Traceback") : stderr.index("ValueError: planted")]
    assert traceback.count("  File ") == 1
    assert "train.py" in traceback


def test_a_missing_script(endings):
    result = endings["missing"].result
    assert (result["kind"], result["exit_code"]) == ("UsageError", 2)


def test_an_occupied_folder_is_not_touched(endings):
    result = endings["occupied"].result
    assert (result["kind"], result["exit_code"]) == ("OutputError", 6)
    assert "--force" in result["failure"]


def test_a_forked_child_neither_captures_nor_stays(endings):
    run = endings["fork"]
    assert run.info.ended == "stopped"
    assert endings["leftovers"] == []
    assert [p for p in run.folder.parent.iterdir() if "partial" in p.name] == []


@pytest.mark.parametrize(("event", "code"), [("kill", -9), pytest.param("_exit", 7, marks=pytest.mark.full)])
def test_a_killed_process_leaves_what_it_had(capturing, event, code):
    run = capturing("train.py", 1000, event, AFTER_TIMING, steps=6, skip=4)
    assert run.exit_code == code
    (partial,) = run.folder.parent.glob(run.folder.name + ".partial-*")
    info = json.loads((partial / "capture.json").read_text())
    assert info["ended"] == "killed"
    assert (partial / info["light_file"]).exists()


def test_forked_workers_end_with_the_script(endings):
    assert endings["workers"].result["exit_code"] == 0
    assert endings["workers"].info.loader.start_method == "fork"
    assert endings["leftovers"] == []


@pytest.mark.full
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_end_with_the_script(capturing, method):
    run = capturing("load.py", method, "train", steps=4)
    assert run.exit_code == 0, run.stderr
    assert run.info.loader.start_method == method
    assert capturing.leftovers() == []


def test_module(endings, capturing):
    run = endings["module"]
    assert run.result["exit_code"] == 0, run.stderr
    assert f"started __main__ ['--flag'] {capturing.scripts} False" in run.stdout
    assert run.info.command == ("-m", "package", "--flag")
    assert run.info.found_steps_by == "optimizer"


def forked_ranks(command):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return [*command, str(port)]


def launched_ranks(command):
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]


@pytest.mark.parametrize("started", [forked_ranks, pytest.param(launched_ranks, marks=pytest.mark.full)])
def test_two_ranks(capturing, started):
    job = capturing.job("ranks.py", steps=4, skip=6)
    done = capturing.process(started(capturing.command([job])))
    assert done.returncode == 0, done.stderr
    assert "not stopped" not in done.stdout
    folder = Path(job["options"]["output"])
    infos = [json.loads((folder / f"capture.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert infos[0]["run_id"] == infos[1]["run_id"] != ""
    for rank, info in enumerate(infos):
        assert (info["rank"], info["world_size"], info["ended"]) == (rank, 2, "stopped")
        assert (len(info["light_ms"]), len(info["attribution_ms"])) == (4, 2)
        assert info["flags"]["ddp"]["bucket_cap_mb"] == 5
        for name in ("light_file", "attribution_file", "samples_file"):
            assert (folder / info[name]).exists()
    assert not list(folder.parent.glob("*partial*"))


def test_a_disk_that_fills_up_keeps_the_light_window(endings):
    run = endings["full disk"]
    assert run.result["exit_code"] == 0, run.stderr
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "capture.json",
        "rank0.light.pt.trace.json.gz",
        "rank0.lines.json.gz",
        "rank0.samples.json.gz",
        "rank0.steps.json.gz",
    ]
    assert list(run.folder.parent.glob(f"{run.folder.name}.*")) == []
    assert run.info.attribution_file == ""
    assert any("attribution window could not be written" in note for note in run.info.notes)
    assert len(run.marks("light")) == 6
