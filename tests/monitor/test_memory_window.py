"""Memory that grows in a watched run: two steps show what is held; memory is the test's number, tensors are real."""

import subprocess
import sys
from collections import deque
from itertools import count

import pytest

from diagnose.cli.main import run
from diagnose.monitor.long_run import Watch
from diagnose.monitor.run_folder import HeldLine, NamedHolder, load_runs
from diagnose.monitor.step_rows import Readings
from diagnose.monitor.watch_options import WatchOptions

torch = pytest.importorskip("torch")
ROWS = 9  # after which memory is looked at first


class Loop:
    """A training loop whose steps may keep what they make."""

    def __init__(self, keep):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.keep, self.kept, self.log = keep, [], {"mean": [], "loss": []}
        self.recent = deque(maxlen=1)

    def step(self):
        out = self.model(torch.ones(4, 8))
        loss = out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.keep(self, out, loss)
        return loss.item()


def keep_outputs(loop, out, _loss):
    loop.kept.append(out.detach().exp())


def keep_losses(loop, _out, loss):
    loop.log["loss"].append(loss)
    loop.log["mean"].append(loss.item())


def keep_numbers(loop, out, loss):
    loop.kept.append(loss.item())
    loop.recent.append(out.detach())


def watched(tmp_path, loop, *, num_steps=2 * ROWS + 8, grows=100.0, **options):
    said = []
    memory = count(1000.0, grows)
    watch = Watch(WatchOptions(folder=tmp_path, step_on="marker", every=2, slow=1e9, **options), report=said.append,
                  own_clock=lambda: 0)  # fmt: skip
    watch._readings.read = lambda: Readings(rss_mb=next(memory))
    with watch:
        losses = []
        for _ in range(num_steps):
            losses.append(loop.step())
            watch.step()
    watch.folder.close()
    (found,) = load_runs(tmp_path, "run")
    return found.info.windows, losses, said


def line_of(function):
    return function.__code__.co_firstlineno + 1


def test_what_a_list_keeps_is_named_with_the_line_that_stores_into_it(tmp_path):
    loop = Loop(keep_outputs)
    (window,), losses, said = watched(tmp_path, loop)
    line = line_of(keep_outputs)
    assert (window.step, window.folder, window.note) == (2 * ROWS + 1, "", "")
    assert window.memory.lines == (HeldLine(__file__, line, 1, 128),)
    assert window.memory.holders == (NamedHolder("loop.kept", "list", 2 * ROWS + 3, False, __file__, (line,)),)
    first, second, _growth = said
    assert first.startswith(f"recording the values of 2 steps at step {window.step}: Memory of this process grows")
    assert second == window.memory.text
    assert (
        f"They are held by loop.kept, a list of {2 * ROWS + 3}; line {line} of {__file__.rpartition('/')[2]}" in second
    )
    assert losses == losses_of(keep_outputs, len(losses))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def losses_of(keep, num):
    loop = Loop(keep)
    return [loop.step() for _ in range(num)]


def test_losses_that_are_kept_with_their_graph_are_to_be_detached(tmp_path):
    (window,), _, _ = watched(tmp_path, Loop(keep_losses))
    holder, *others = window.memory.holders
    assert (holder.name, holder.keeps_graph, holder.lines) == ("loop.log['loss']", True, (line_of(keep_losses),))
    assert others == []
    assert window.memory.text.endswith("stores into it: store detached values.")


def test_memory_that_is_not_of_tensors_is_none_of_the_scripts_variables(tmp_path):
    (window,), _, _ = watched(tmp_path, Loop(keep_numbers))
    assert (window.memory.lines, window.memory.holders) == ((), ())
    assert window.memory.text.endswith("what grows is not made of tensors.")


def test_memory_that_does_not_grow_is_left_alone_and_no_dataflow_leaves_all(tmp_path):
    assert watched(tmp_path / "steady", Loop(keep_outputs), grows=0.0)[0] == ()
    assert watched(tmp_path / "off", Loop(keep_outputs), dataflow=False)[0] == ()


def test_a_fault_of_the_watch_ends_the_recording_too(tmp_path, monkeypatch):
    monkeypatch.delenv("DIAGNOSE_DEBUG", raising=False)
    loop = Loop(keep_outputs)

    def broken(watch):
        if watch._window is not None:
            raise ZeroDivisionError

    monkeypatch.setattr("diagnose.monitor.long_run.Watch._look", broken)
    monkeypatch.setattr("diagnose.monitor.long_run.LOOK_NS", -1)
    windows, losses, said = watched(tmp_path, loop)
    assert windows == ()
    assert said[-1].startswith("The watch ended at step")
    assert losses == losses_of(keep_outputs, len(losses))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


SCRIPT = """
import sys, torch
model = torch.nn.Linear(256, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
outputs = []
for i in range(400):
    out = model(torch.ones(2048, 256))
    out.mean().backward()
    optimizer.step()
    outputs.append(out.detach() if "leak" in sys.argv else out.mean().item())
"""


@pytest.mark.slow
def test_the_command_names_the_list_that_makes_a_process_grow(tmp_path, monkeypatch, capsys):
    """Each step of one keeps 4 MB, which is 80 times what memory has to grow by until the ninth row."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    for kind in ("leak", "healthy"):
        command = [sys.executable, "-m", "diagnose", "watch", "--every", "5", "--name", kind, "train.py", kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found = load_runs(tmp_path / "diagnose-runs", kind)[0].info.windows
        names = [holder.name for window in found if window.memory for holder in window.memory.holders]
        assert names == (["outputs"] if kind == "leak" else [])
    assert run(["watch", "--list", "leak", "--json"]) == 0
    assert '"name": "outputs"' in capsys.readouterr().out
