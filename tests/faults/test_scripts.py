"""Scripts that do to their process what scripts do: each ends as it would alone, and its capture is whole."""

import json
import os
import re
import signal

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

WORKERS = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, i):
        if i > 400: os.kill(os.getpid(), 9)
        return torch.ones(8)
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context='fork'))
"""
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path('daemon.pid').write_text(str(os.getpid()))
        os.execve('/bin/sleep', ['sleep', '300'], {})
    os._exit(0)
os.wait()
"""
HANDLER = """
import signal
def bye(*_):
    pathlib.Path('handled').touch()
    sys.exit(21)
signal.signal(signal.SIGTERM, bye)
"""
SILENT = """
class Silent:
    def write(self, text): return len(text)
    def flush(self): pass
sys.stdout = sys.stderr = Silent()
"""
DESCRIPTORS = """
taken = []
try:
    while True: taken.append(os.open('/dev/null', os.O_RDONLY))
except OSError: pass
"""

# name → lines before the loop and within it, number of steps, exit code, how it ended (None: nothing was captured)
LONG_RUN_STEPS, SHORT_RUN_STEPS = 200_000, 60
SCRIPTS = {
    "no folder": (
        "import shutil, tempfile; home = tempfile.mkdtemp(); os.chdir(home)",
        "if step == 6: shutil.rmtree(home)", LONG_RUN_STEPS, 0, "stopped",
    ),
    "closed outputs": ("os.close(0); os.close(1); os.close(2)", "", LONG_RUN_STEPS, 0, "stopped"),
    "no descriptors": ("", f"if step == 6:\n    exec({DESCRIPTORS!r})", LONG_RUN_STEPS, 5, None),
    "small files only": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))", "", LONG_RUN_STEPS, 5, None,
    ),
    "fork": ("", "if step == 10 and os.fork() == 0: __import__('signal').pause()", LONG_RUN_STEPS, 0, "stopped"),
    "daemon": (DAEMON, "", LONG_RUN_STEPS, 0, "stopped"),
    "leaves at once": ("", "if step == 50: os._exit(3)", LONG_RUN_STEPS, 3, "killed"),
    "daemon, closed outputs": (f"{DAEMON}os.close(0); os.close(1); os.close(2)", "", LONG_RUN_STEPS, 0, "stopped"),
    "daemon, closed outputs, terminates itself": (
        f"{DAEMON}{HANDLER}os.close(0); os.close(1); os.close(2)",
        "if step == 50: os.kill(os.getpid(), 15)", LONG_RUN_STEPS, 21, "finished",
    ),
    "silent": (SILENT, "", LONG_RUN_STEPS, 0, "stopped"),
    "terminates itself": (HANDLER, "if step == 50: os.kill(os.getpid(), 15)", LONG_RUN_STEPS, 21, "finished"),
    "raises at exit": ("import atexit; atexit.register(lambda: 1 / 0)", "", SHORT_RUN_STEPS, 0, "finished"),
    "killed worker": (WORKERS, "next(batches)", LONG_RUN_STEPS, 1, "raised"),
}  # fmt: skip
ALL_AT_ONCE = "daemon, closed outputs, terminates itself"
EVERYDAY = {ALL_AT_ONCE}
KEEP_GOING = {"leaves at once", "terminates itself", ALL_AT_ONCE, "killed worker", "raises at exit"}


def traced(faulty, name):
    before, within, steps, _, _ = SCRIPTS[name]
    text = faulty.loop(before, within, steps=steps)
    script = faulty.script(text)
    (faulty.folder / "data.bin").write_bytes(b"of the user")
    # Into files: a daemon that keeps a pipe open would keep its reader waiting.
    with (faulty.folder / "out").open("w") as out, (faulty.folder / "err").open("w") as err:
        ended = faulty.trace(*(["--keep-going"] if name in KEEP_GOING else []), stdout=out, stderr=err)
    ended.stdout, ended.stderr = ((faulty.folder / file).read_text() for file in ("out", "err"))
    assert script.read_text() == text
    return ended


def cases(wanted=lambda case: True):
    """Return the wanted scripts; those that are not of every day, with their mark."""
    return [
        pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.full])
        for name, case in SCRIPTS.items()
        if wanted(case)
    ]


@pytest.fixture(scope="module")
def endings(tmp_path_factory, faulty_in, once_each):
    return once_each(lambda name: traced(faulty_in(tmp_path_factory.mktemp("script")), name))


@pytest.mark.parametrize("name", cases())
def test_the_exit_code_is_the_script_s(endings, name):
    assert endings[name].code == SCRIPTS[name][3], endings[name].stderr[-2000:]


@pytest.mark.parametrize("name", cases(lambda case: case[4]))
def test_the_capture_is_there(endings, name):
    ended = endings[name]
    if SCRIPTS[name][4] == "killed":  # where it stays until somebody looks
        (partial,) = ended.folder.glob("capture.partial-*")
        info = json.loads((partial / "capture.json").read_text())
    else:
        info = ended.info
        assert ended.partials == []
    assert info is not None
    assert info["ended"] == SCRIPTS[name][4]
    assert len(info["light_ms"]) >= 4
    assert json.loads(ended.stdout)["steps"] >= 1


@pytest.mark.parametrize("name", cases())
def test_nothing_of_diagnose_is_seen_and_nothing_stays(endings, name):
    ended = endings[name]
    assert "diagnose itself" not in ended.stderr
    assert not re.search(r'File "[^"]*/diagnose/(?!kernels)', ended.stderr), ended.stderr[-2000:]
    assert len(ended.sentences) == (1 if ended.code == 5 else 0), ended.stderr
    assert ended.left == []
    assert (ended.folder / "data.bin").read_bytes() == b"of the user"


@pytest.mark.parametrize("name", cases(lambda case: not case[4]))
def test_where_nothing_can_be_captured_nothing_is_left(endings, name):
    assert endings[name].partials == []
    assert not (endings[name].folder / "capture").exists()


@pytest.mark.parametrize("name", cases(lambda case: case[0].startswith(DAEMON)))
def test_a_daemon_lives_on(endings, name):
    pid = int((endings[name].folder / "daemon.pid").read_text())
    os.kill(pid, signal.SIGKILL)  # raises where it does not run any more


@pytest.mark.parametrize("name", cases(lambda case: HANDLER in case[0]))
def test_a_handler_of_the_script_runs(endings, name):
    assert (endings[name].folder / "handled").exists()
