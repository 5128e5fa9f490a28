"""What a run may write to and reach: the user's home stays as it is, and what is printed is what is enforced."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.errors import OriginalsChangedError, UsageError
from diagnose.trials import backup, isolation, limits
from diagnose.trials.isolation import why_not_isolated
from diagnose.trials.limits import limits_of
from diagnose.trials.protection import can_restrict
from diagnose.trials.runs import Command, Runner
from diagnose.trials.surroundings import below
from diagnose.trials.trackers import offline_settings

restricted = pytest.mark.skipif(not can_restrict(), reason="this system has no Landlock")


@pytest.fixture
def isolated():
    if why_not_isolated():
        pytest.skip(f"this system cannot isolate a run: {why_not_isolated()}")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a user's home with keys, results, caches, and hidden links and variables that lead out of it."""
    found = tmp_path / "home"
    for name in (
        ".ssh/key",
        ".local/share/best.pt",
        ".cache/torch/weights.pt",
        ".cache/other/x",
        ".models/key",
        "project/x",
    ):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text("mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("mine")
    (found / ".datasets").symlink_to("../data")
    (found / ".root").symlink_to("/")
    (found / "tmp").mkdir()
    (found / "tmp" / "x").write_text("mine")
    for name, value in {"HOME": "", "TMPDIR": "tmp", "XDG_DATA_HOME": ".local/share", "HF_HOME": ".models"}.items():
        monkeypatch.setenv(name, str(found / value))
    return found


@pytest.fixture
def run(tmp_path, home):
    """Return a function that runs the text of a script once; it returns the runner, the result and what was printed."""

    def once(text, **options):
        (home / "project" / "train.py").write_text(text)
        runner = Runner(Command(("train.py",), home / "project"), tmp_path / "runs", **options)
        result = runner.time((), timeout_s=60)
        return runner, result, runner.last_log.read_text()

    return once


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
def test_a_run_changes_nothing_in_the_users_home_nor_where_its_links_and_variables_lead(run, home):
    (home / "project" / "train.py").write_text("")
    before = content(home.parent)
    _, _, printed = run(REACHES.replace("HOME)", f"{str(home)!r})"))
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
def test_caches_temporary_files_and_new_files_of_the_home_are_the_runs_and_removed(run, home, tmp_path):
    (home / "project" / "train.py").write_text(MAKES)
    before = content(home)
    runner, result, printed = run(MAKES)
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


@restricted
def test_a_refused_write_names_the_path_and_the_option_which_allows_it(run, home, tmp_path):
    target = home / ".local" / "share" / "best.pt"
    writes = "import os; open(os.path.expanduser('~/.local/share/best.pt'), 'w').write('new')"
    runner, result, _ = run(writes)
    assert result.failure.endswith(f" Runs may not write to {target}; --writable {target.parent} allows it.")
    assert target.read_text() == "mine"
    runner.limits = limits_of(tmp_path / "runs", tmp_path / "runs", [target.parent])
    runner.time((), timeout_s=60)
    assert target.read_text() == "new"


ASKS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
socket.create_connection((socket.gethostname(), server.getsockname()[1])).close()
print("loopback works")
socket.create_connection(("127.0.0.1", PORT)).sendall(b"POST /api/runs")
print("sent")
"""


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("mode", ["copy", "same"])
def test_a_run_reaches_itself_and_no_server_unless_the_network_is_allowed(run, tmp_path, mode):
    with socket.create_server(("127.0.0.1", 0)) as server:
        asks = ASKS.replace("PORT", str(server.getsockname()[1]))
        _, result, printed = run(asks, cwd_mode=mode)
        assert "loopback works" in printed
        assert "sent" not in printed
        assert "ConnectionRefusedError" in result.failure
        assert result.failure.endswith("Runs have no network; --network opens it.")
        opened = limits_of(tmp_path / "open", tmp_path / "open", network=True)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
        (tmp_path / "project").mkdir()
        (tmp_path / "project" / "train.py").write_text(asks.replace("socket.gethostname()", "'127.0.0.1'"))
        runner = Runner(Command(("train.py",), tmp_path / "project"), tmp_path / "open", cwd_mode=mode, limits=opened)
        runner.time((), timeout_s=60)
        assert "sent" in runner.last_log.read_text()
        assert "servers" in opened.text


LOADS = """
import os, tempfile, torch
from torch.utils.data import DataLoader, TensorDataset
print("temporary", tempfile.gettempdir())
data = TensorDataset(torch.arange(64.0))
for strategy in ("file_descriptor", "file_system"):
    torch.multiprocessing.set_sharing_strategy(strategy)
    print(strategy, sum(batch.sum().item() for (batch,) in DataLoader(data, batch_size=8, num_workers=2)))
"""


@restricted
@pytest.mark.parametrize("private", ["short", "x" * 100])
def test_workers_share_memory_and_sockets_however_long_the_name_of_the_temporary_folder_is(run, tmp_path, private):
    if len(private) > 10 and why_not_isolated():
        pytest.skip(f"this system cannot isolate a run: {why_not_isolated()}")
    _, result, printed = run(LOADS, private=tmp_path / private)
    assert "file_descriptor 2016.0" in printed, result.failure
    assert "file_system 2016.0" in printed


USER = 65534  # nobody
AS_USER = f"""
import ctypes, fcntl, os, socket, sys
sys.path.append(sys.argv[1])
from diagnose.trials.isolation import isolate
"".encode("idna")
os.setgroups([]), os.setgid({USER}), os.setuid({USER})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a process that changed its user cannot map it otherwise
before = os.statvfs("/dev/shm").f_blocks
isolate()
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
print(os.getuid(), socket.if_nameindex(), os.statvfs("/dev/shm").f_blocks == before)
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_rights_is_isolated_as_well():
    root = Path(isolation.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", AS_USER, root], check=False, capture_output=True, text=True)
    if "isolate" in done.stderr:
        pytest.skip(f"this system gives users no namespaces: {done.stderr.splitlines()[-1]}")
    assert done.stdout.split(maxsplit=1) == [str(USER), "[(1, 'lo')] True\n"], done.stderr


def test_the_reason_for_no_protection_and_the_folder_of_the_backup_are_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "can_restrict", lambda: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert limits_of(tmp_path, tmp_path).text.startswith(
        "This system has no Landlock, so a run may write wherever you may; your files in the working folder, and what "
        f"its links lead to, are backed up to {tmp_path}/diagnose first. "
    )
    found = limits_of(tmp_path, tmp_path, restricted=False, network=True)
    assert found.text == "A run may write wherever you may. The network is open: a run may send data to servers."


def test_a_system_that_cannot_isolate_is_a_sentence_and_trackers_stay_offline(run, monkeypatch):
    monkeypatch.setattr(limits, "why_not_isolated", lambda: "unshare: Operation not permitted")
    runner, _, printed = run("import os; print(os.environ['WANDB_MODE'], os.environ.get('GLOO_SOCKET_IFNAME'))")
    assert printed.split()[:2] == ["offline", "None"]
    assert runner.enforced.text.endswith(
        "The network stays open, since this system cannot isolate a run (unshare: Operation not permitted); "
        "experiment trackers are set to offline mode by environment variables."
    )


def test_trackers_that_send_nothing_keep_their_mode_and_a_server_becomes_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("NEPTUNE_MODE", "async")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    found = offline_settings(tmp_path)
    assert "WANDB_MODE" not in found
    assert (found["NEPTUNE_MODE"], found["HF_HUB_OFFLINE"]) == ("offline", "1")
    assert found["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:runs")
    assert "MLFLOW_TRACKING_URI" not in offline_settings(tmp_path)


def test_a_run_that_sets_the_mode_of_a_users_file_is_the_last_one(run, home):
    (home / "project" / "best.pt").touch()
    runner, _, _ = run(f"import os; os.chmod({str(home / 'project' / 'best.pt')!r}, 0o700)")
    assert runner.changed.startswith(f"{home}/project/best.pt got another mode while the trials ran")
    with pytest.raises(OriginalsChangedError):
        runner.time((), timeout_s=60)


HARMS = """
import pathlib
top = pathlib.Path(TOP)
for name in ("best.pt", "notes.txt"):
    pathlib.Path(name).write_text("worse")
    (top / name).write_text("worse")
"""


@pytest.fixture
def unprotected(monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "can_restrict", lambda: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "diagnose"


def test_without_protection_all_that_a_run_overwrote_is_in_a_folder_that_stays(run, home, unprotected):
    project = home / "project"
    for name in ("best.pt", "notes.txt"):
        (project / name).write_text(name)
    runner, _, _ = run(HARMS.replace("TOP", repr(str(project))))
    with pytest.raises(OriginalsChangedError):
        runner.time((), timeout_s=60)
    runner.close()
    (saved,) = unprotected.iterdir()
    assert f"What was there before is in {saved}." in runner.changed
    assert [below(saved, project / name).read_text() for name in ("best.pt", "notes.txt")] == ["best.pt", "notes.txt"]


def test_without_protection_a_backup_that_was_not_needed_is_removed(run, unprotected):
    runner, _, _ = run("print('harmless')")
    assert len(list(unprotected.iterdir())) == 1
    runner.close()
    assert list(unprotected.iterdir()) == []
    assert runner.changed == ""


def test_without_protection_what_an_interrupted_run_changed_stays_saved(run, home, unprotected):
    runner, _, _ = run("print('harmless')")
    (home / "project" / "train.py").write_text("other")
    runner.close()
    assert len(list(unprotected.iterdir())) == 1
    assert "What was there before is in" in runner.changed


def test_without_protection_more_than_can_be_backed_up_is_refused(run, unprotected, monkeypatch):
    monkeypatch.setattr(backup, "MAX_BYTES", 3)
    with pytest.raises(UsageError, match=r"at most 0\.0 GB are backed up.*--cwd-mode same"):
        run("print('harmless')")
    assert list(unprotected.iterdir()) == []
