"""What a run may write to and reach: the user's home stays as it is, and what is printed is what is enforced."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from diagnose.cli import main as cli
from diagnose.cli import prove as command
from diagnose.errors import CaptureError, OriginalsChangedError
from diagnose.trials import limits
from diagnose.trials.guard import can_restrict, why_not_isolated
from diagnose.trials.limits import limits_of, why_refused

restricted = pytest.mark.skipif(not can_restrict(), reason="this system has no Landlock")


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


REACHES = """
import os, pathlib
def tried(name, act, *args):
    try:
        act(*args)
    except OSError as error:
        print("refused", name, error.errno)
    else:
        print("done", name)
home = pathlib.Path(os.path.expanduser("~"))
for top in (home, pathlib.Path(HOME)):
    for name in (".ssh/key", ".local/share/best.pt", ".datasets/x", ".cache/other/x", ".root/etc/hostname", "tmp/x"):
        tried(name, open, top / name, "a")
    tried("removal", os.remove, top / ".ssh" / "key")
    tried("rename", os.rename, top / ".local/share/best.pt", top / ".local/share/other")
for variable in ("XDG_DATA_HOME",):
    tried(variable, open, os.path.join(os.environ[variable], "x"), "w")
"""


@restricted
def test_a_run_changes_nothing_in_the_users_home_nor_where_its_links_and_variables_lead(run_at_home, home):
    (home / "project" / "train.py").write_text("")
    before = content(home.parent)
    _, _, printed = run_at_home(REACHES.replace("HOME)", f"{str(home)!r})"))
    assert "done" not in printed
    assert printed.count("refused") == 17
    after = content(home.parent)
    assert {path: after[path] for path in before if path.name != "train.py"} == {
        path: data for path, data in before.items() if path.name != "train.py"
    }


MAKES = """
import os, pathlib, tempfile
home = pathlib.Path.home()
assert (home / ".ssh" / "key").read_text() == "mine"
assert (home / ".cache" / "torch" / "weights.pt").read_text() == "mine"
assert pathlib.Path(os.environ["HF_HOME"], "key").read_text() == "mine"
for name in (".triton/cache", ".nv/ComputeCache", ".cache/torch/hub", ".newtool"):
    (home / name).mkdir(parents=True)
    (home / name / "x").write_text("new")
for name in (".cache/torch/weights.pt", ".cache/new", os.environ["HF_HOME"] + "/key"):
    (home / name).write_text("new")
open(tempfile.mkstemp()[0], "w").write("new")
assert not os.path.exists(os.path.join(tempfile.gettempdir(), "x"))
print("all made")
"""


@restricted
def test_caches_temporary_files_and_new_files_of_the_home_are_the_runs_and_removed(run_at_home, home, tmp_path):
    (home / "project" / "train.py").write_text(MAKES)
    before = content(home)
    runner, result, printed = run_at_home(MAKES)
    assert "all made" in printed, result.failure
    assert content(home) == before
    runner.close()
    assert not (tmp_path / "runs" / "cwd").exists()


def test_the_printed_places_are_the_enforced_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "can_restrict", lambda: True)
    monkeypatch.setattr(limits, "why_not_isolated", lambda: "")
    found = limits_of(tmp_path / "private", tmp_path / "results", [tmp_path / "out"])
    assert found.writable is not None
    by_name = {
        name: [path for path in found.writable if found.writable[path] == name] for name in found.writable.values()
    }
    devices = by_name.pop("devices")
    assert by_name == {
        "its own copy, home, caches and temporary files": [str(tmp_path / "private")],
        "the folder of the results": [str(tmp_path / "results")],
        "/proc": ["/proc"],
        "/dev/shm": ["/dev/shm"],
        str(tmp_path / "out"): [str(tmp_path / "out")],
    }
    assert {"/dev/pts", "/dev/null"} <= set(devices)
    assert not any(Path(path).is_block_device() for path in devices)
    assert found.text == (
        "A run may read other files, and write only to its own copy, home, caches and temporary files, the folder of "
        f"the results, devices, /proc, /dev/shm and {tmp_path}/out. It has no network but this machine's loopback "
        "(--network opens it)."
    )


SENTENCES = {  # what a run has said, and what follows
    "[Errno 13] Permission denied: '/proc/x' -> '{}'": " Runs may not write to {}; --writable {} allows it.",
    "[Errno 30] Read-only file system: '/proc/x'": "",
    "open file failed with strerror: Permission denied": (
        " Runs may write to their copy only; --writable FOLDER allows another place."
    ),
    "FileNotFoundError: '{}'": "",
    "DistNetworkError: Connection closed by peer": "",
    **dict.fromkeys(
        (
            "OSError: [Errno 101] Network is unreachable",
            "OSError: We couldn't connect to 'https://huggingface.co'",
            "ConnectionError: Couldn't reach the hub (OfflineModeIsEnabled)",
            "URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        ),
        " Runs are set to offline mode; --network opens it.",
    ),
}


@restricted
def test_a_refused_write_names_the_path_and_the_option_which_allows_it(run_at_home, home, tmp_path):
    target = home / ".local" / "share" / "best.pt"
    writes = "import os; open(os.path.expanduser('~/.local/share/best.pt'), 'w').write('new')"
    runner, result, _ = run_at_home(writes)
    assert result.failure.endswith(f" Runs may not write to {target}; --writable {target.parent} allows it.")
    assert target.read_text() == "mine"
    offline = replace(runner.enforced, network="no namespaces")
    for text, said in SENTENCES.items():
        assert why_refused(text.format(target), offline) == said.format(target, target.parent), text
    runner.limits = limits_of(tmp_path / "runs", tmp_path / "runs", [target.parent])
    runner.time((), timeout_s=60)
    assert target.read_text() == "new"


@restricted
def test_a_checkpoint_that_could_not_be_saved_is_named(run_at_home, home):
    _, result, _ = run_at_home(f"import torch; torch.save(torch.ones(3), '{home}/.ssh/best.pt')")
    assert result.failure.endswith(f"Runs may not write to {home}/.ssh/best.pt; --writable {home}/.ssh allows it.")


LOADS = """
import tempfile, torch
from torch.utils.data import DataLoader, TensorDataset
print("temporary", tempfile.gettempdir())
data = TensorDataset(torch.arange(64.0))
for strategy in ("file_descriptor", "file_system"):
    torch.multiprocessing.set_sharing_strategy(strategy)
    print(strategy, sum(batch.sum().item() for (batch,) in DataLoader(data, batch_size=8, num_workers=2)))
"""


@restricted
@pytest.mark.parametrize("name", ["x", "x" * 100])
def test_workers_share_memory_and_sockets_however_long_the_name_of_the_temporary_folder_is(run_at_home, name):
    if len(name) > 1 and why_not_isolated():
        pytest.skip(f"this system cannot isolate a run: {why_not_isolated()}")
    with TemporaryDirectory(dir="/tmp") as folder:
        _, result, printed = run_at_home(LOADS, private=Path(folder, name))
    assert "file_descriptor 2016.0" in printed, result.failure
    assert "file_system 2016.0" in printed
    assert f"temporary {'/dev/shm' if len(name) > 1 else f'{folder}/x/tmp'}" in printed.splitlines()


def test_the_reason_for_no_protection_and_the_folder_of_the_backup_are_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "can_restrict", lambda: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert limits_of(tmp_path, tmp_path).text.startswith(
        "This system has no Landlock, so a run may write wherever you may; your files in the working folder, and the "
        f"targets of its links, are backed up to {tmp_path}/diagnose first. "
    )
    found = limits_of(tmp_path, tmp_path, restricted=False, network=True)
    assert found.text == "A run may write wherever you may. The network is open: a run may send data to servers."


def test_a_run_that_sets_the_mode_of_a_users_file_is_the_last_one(run_at_home, home):
    (home / "project" / "best.pt").touch()
    runner, _, _ = run_at_home(f"import os; os.chmod({str(home / 'project' / 'best.pt')!r}, 0o700)")
    assert runner.changed.startswith(f"{home}/project/best.pt got another mode while the trials ran")
    with pytest.raises(OriginalsChangedError):
        runner.time((), timeout_s=60)


def test_the_command_prints_what_it_enforces_before_the_first_run(tmp_path, monkeypatch, capsys):
    enforced = []

    def stop(_request, runner, *_):
        enforced.append(runner.enforced)
        raise CaptureError("stopped")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_proven", stop)
    (tmp_path / "train.py").touch()
    (tmp_path / "out").mkdir()
    for options in ([], ["--writable", "out", "--network"], ["--cwd-mode", "same"]):
        assert cli.run(["prove", "--yes", *options, "train.py"]) == CaptureError.exit_code
        assert enforced[-1].text in capsys.readouterr().err
        assert enforced[-1].allowed == ((str(tmp_path / "out"),) if "--writable" in options else ())
        assert enforced[-1].is_offline is ("--network" not in options)
        assert not (enforced[-1].writable and "same" in options)
    assert cli.run(["prove", "--yes", "--writable", "nowhere", "train.py"]) == 2
    assert f"Invalid --writable: {tmp_path}/nowhere does not exist; create it first." in capsys.readouterr().err
