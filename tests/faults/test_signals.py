"""Signals at any moment, once and twice: the shell's exit code, no process that stays, a capture whole or absent."""

import contextlib
import json
import os
import random
import signal

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

# (signal, how often, to the whole group as a terminal does or to the command alone, exit code)
CASES = {
    "ctrl-c": (signal.SIGINT, 1, True, 130),
    "ctrl-c twice": (signal.SIGINT, 2, True, 130),
    "interrupt to the command": (signal.SIGINT, 1, False, 130),
    "terminated": (signal.SIGTERM, 1, False, 143),
    "terminated twice": (signal.SIGTERM, 2, True, 143),
    "killed": (signal.SIGKILL, 1, False, -9),
}
EVERYDAY = {"ctrl-c twice"}  # what a killed command leaves is seen below, where its script has workers, too
FEW_STEPS = ("--skip", "2", "--steps", "4")
LAST_STEP = 40  # four steps in each window are recorded by then


def signalled(faulty, name):
    """Run the script up to a step that the case's name chooses, send the signals, and return what is left."""
    number, times, group, _ = CASES[name]
    step = random.Random(name).randrange(LAST_STEP)
    faulty.script(faulty.loop(within=f"if step == {step}: open('reached', 'w').close()"))
    os.mkfifo(faulty.folder / "reached")
    where = ("--json", "--quiet", "--keep-going", "--capture", "capture", *FEW_STEPS)
    process = faulty.start("trace", *where, "train.py")
    (faulty.folder / "reached").open().close()  # waits for the script
    for _ in range(times):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number) if group else process.send_signal(number)
    return faulty.ended(process)


def cases(names=tuple(CASES)):
    return [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.full]) for name in names]


@pytest.fixture(scope="module")
def endings(tmp_path_factory, faulty_in, once_each):
    return once_each(lambda name: signalled(faulty_in(tmp_path_factory.mktemp("signal")), name))


@pytest.mark.parametrize("name", cases())
def test_a_signal_ends_the_script_and_the_command(endings, name):
    ended = endings[name]
    assert ended.code == CASES[name][3], ended.stderr
    assert ended.left == []
    assert "diagnose itself" not in ended.stderr
    assert "/diagnose/" not in ended.stderr, "a traceback of the script ends in the script"


@pytest.mark.parametrize("name", cases())
def test_what_lies_in_the_place_of_the_capture_is_whole(endings, name):
    ended = endings[name]
    assert_whole(ended)
    if name != "killed" and ended.info is not None:
        assert json.loads(ended.stdout)["steps"] >= 1


def assert_whole(ended):
    """Check that there is no capture and no answer, or a capture with every file that it names.

    A process that is killed itself leaves the folder that it has reserved, empty, and what it had beside it.
    """
    folder, info = ended.folder / "capture", ended.info
    if not folder.exists() or not any(folder.iterdir()):
        assert ended.stdout == ""
        return
    assert info is not None, sorted(path.name for path in folder.iterdir())
    for file in ("light_file", "attribution_file", "samples_file"):
        assert not info[file] or (folder / info[file]).is_file()


@pytest.mark.parametrize("name", cases([name for name in CASES if name != "killed"]))
def test_nothing_half_written_stays(endings, name):
    assert endings[name].partials == []
    assert not [path for path in endings[name].folder.iterdir() if path.name.startswith(".")]


BLOCKED = """\
from diagnose.capture.record.folder import CaptureFolder
publish = CaptureFolder.publish
def blocked(self):
    open("writing").close()  # until the test has opened it, too
    open("go_on").close()
    return publish(self)
CaptureFolder.publish = blocked
"""


def test_a_second_signal_while_the_capture_is_written_is_put_off(faulty):
    faulty.script(faulty.loop(BLOCKED, within="if step == 60: open('reached', 'w').close()"))
    for name in ("reached", "writing", "go_on"):
        os.mkfifo(faulty.folder / name)
    process = faulty.start("trace", "--json", "--quiet", "--keep-going", "--capture", "capture", *FEW_STEPS, "train.py")
    (faulty.folder / "reached").open().close()
    os.killpg(process.pid, signal.SIGTERM)
    (faulty.folder / "writing").open("w").close()
    os.killpg(process.pid, signal.SIGTERM)
    (faulty.folder / "go_on").open("w").close()
    ended = faulty.ended(process)
    assert (ended.code, ended.left, ended.partials) == (143, [], []), ended.stderr
    assert ended.info is not None
    assert ended.info["ended"] == "killed"
    assert json.loads(ended.stdout)["steps"] >= 1


LOADING = """\
import torch
for number, _ in enumerate(torch.utils.data.DataLoader(range(1_000_000), num_workers=2)):
    if number == 40:  # both windows are recorded
        open("reached", "w").close()
"""


def test_a_killed_command_ends_with_its_loader_s_workers_and_leaves_a_whole_capture_or_none(faulty):
    faulty.script(LOADING)
    os.mkfifo(faulty.folder / "reached")
    process = faulty.start("trace", "--quiet", "--keep-going", "--capture", "capture", *FEW_STEPS, "train.py")
    (faulty.folder / "reached").open().close()
    process.kill()
    ended = faulty.ended(process)
    assert (ended.code, ended.left) == (-9, [])
    assert_whole(ended)
