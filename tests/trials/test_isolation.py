"""The network of a run: it reaches itself and no server, and trackers stay offline."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.trials import guard, limits
from diagnose.trials.limits import limits_of, offline_settings
from diagnose.trials.runs import Command, Runner

ROOT = Path(guard.__file__).parents[2]


def test_the_guard_and_what_removes_its_folder_need_no_package():
    code = "import sys; sys.path.append(sys.argv[1]); import diagnose.trials.guard, diagnose.trials.copying"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, ROOT], check=True)


ASKS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
socket.create_connection((socket.gethostname(), server.getsockname()[1])).close()
for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
    socket.getnameinfo((address, 1), socket.NI_NAMEREQD)
print("loopback works")
"""
SENDS = """
import socket
socket.create_connection(("127.0.0.1", PORT)).sendall(b"POST /api/runs")
print("sent")
"""


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("mode", ["copy", "same"])
def test_a_run_reaches_itself_and_no_server_unless_the_network_is_allowed(run_at_home, tmp_path, mode):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        _, result, printed = run_at_home(ASKS + SENDS.replace("PORT", port), cwd_mode=mode)
        assert "loopback works" in printed
        assert "sent" not in printed
        assert "ConnectionRefusedError" in result.failure
        assert result.failure.endswith("Runs have no network; --network opens it.")
        opened = limits_of(tmp_path / "open", tmp_path / "open", network=True)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
        (tmp_path / "project").mkdir()
        (tmp_path / "project" / "train.py").write_text(SENDS.replace("PORT", port))
        runner = Runner(Command(("train.py",), tmp_path / "project"), tmp_path / "open", cwd_mode=mode, limits=opened)
        runner.time((), timeout_s=60)
        assert "sent" in runner.last_log.read_text()
        assert "servers" in opened.text


USER = 65534  # nobody
AS_USER = f"""
import ctypes, fcntl, os, socket, sys
sys.path.append(sys.argv[1])
from diagnose.trials.guard import isolate
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
    done = subprocess.run([sys.executable, "-c", AS_USER, ROOT], check=False, capture_output=True, text=True)
    if "isolate" in done.stderr:
        pytest.skip(f"this system gives users no namespaces: {done.stderr.splitlines()[-1]}")
    assert done.stdout.split(maxsplit=1) == [str(USER), "[(1, 'lo')] True\n"], done.stderr


def test_a_system_that_cannot_isolate_is_a_sentence_and_trackers_stay_offline(run_at_home, monkeypatch):
    monkeypatch.setattr(limits, "why_not_isolated", lambda: "unshare: Operation not permitted")
    runner, _, printed = run_at_home("import os; print(os.environ['WANDB_MODE'], os.environ.get('GLOO_SOCKET_IFNAME'))")
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


WITHOUT_RIGHTS = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)  # the right to make namespaces, CAP_SYS_ADMIN, leaves the bounding set
code = "from diagnose.trials.guard import why_not_isolated; print(why_not_isolated())"
os.execv(sys.executable, [sys.executable, "-c", f"import sys; sys.path.append(sys.argv[1]); {code}", sys.argv[1]])
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root has the right to lose")
def test_root_in_a_container_without_the_right_to_isolate_gets_the_reason():
    command = [sys.executable, "-c", WITHOUT_RIGHTS, ROOT]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout == "unshare: Operation not permitted\n", done.stderr
