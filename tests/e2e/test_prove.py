"""``diagnose prove`` on real scripts: what it measures, and that it harms nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.trials.runs import Command, Runner

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[2] / "fixtures"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
FORKED = (sys.executable, str(Path(__file__).with_name("forked_ranks.py")))

TRAIN = """
import sys
import torch
from pathlib import Path

class ByHand:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr
    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= self.lr * parameter.grad
    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = {optimizer}(model.parameters(), lr=0.01)
for step, _ in enumerate(torch.utils.data.DataLoader(range({steps}))):
    {before}
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {after}
"""


def train(steps=100_000, before="pass", after="pass", optimizer="ByHand"):
    """Return a script; an optimizer of torch would import torch._dynamo, which takes as long as torch."""
    return TRAIN.format(steps=steps, before=before, after=after, optimizer=optimizer)


def proven(diagnose, *arguments, code=0):
    done = diagnose("prove", "--yes", "--json", *arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def trial(diagnosis, name):
    return next(t for t in diagnosis["trials"] if t["id"] == name)


@pytest.mark.full
@pytest.mark.timing
def test_workers_are_proven_on_the_slow_dataset_and_a_control_is_not(diagnose, tmp_path):
    script, patch = FIXTURES / "slow_dataset.py", tmp_path / "fix.patch"
    arguments = ("--write-patch", patch, script, "--steps", "100000", "--device", "cpu")
    diagnosis = proven(diagnose, "--apply", "load-in-workers,sham", "--budget", "3m", *arguments)
    workers, sham = trial(diagnosis, "load-in-workers"), trial(diagnosis, "sham")
    assert diagnosis["dominant"] == "data-stall"
    assert workers["speed_up"] > 1.1  # how certain that is depends on what else the machine does
    assert workers["interval"][1] > 1.3
    assert workers["numerics"] == "identical"
    assert sham["interval"][0] <= 1.0 <= sham["interval"][1]
    assert sham["numerics"] == "identical"
    assert patch.exists() is (workers["interval"][0] > 1.0)  # what is no certain gain is not written
    if patch.exists():
        (tmp_path / script.name).write_bytes(script.read_bytes())
        subprocess.run(["git", "apply", "-p", "2" if "a/fixtures/" in patch.read_text() else "1", patch], cwd=tmp_path,
                       check=True)  # fmt: skip
        assert "persistent_workers=True" in (tmp_path / script.name).read_text()


RANDOM = "import os; torch.manual_seed(int.from_bytes(os.urandom(4), 'big'))"
WRITES = "Path('log.txt').write_text('step'); Path(f'ckpt{step}.pt').touch()"


def proven_in(folder, few_runs, changes, script):
    """Prove a script in a folder where something lies already; return the diagnosis."""
    (folder / "log.txt").write_text("mine")
    (folder / "train.py").write_text(script)
    command = (*few_runs, "prove", "--yes", "--json", "--budget", "1h", "--apply")
    done = subprocess.run([*command, changes, "train.py"], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_sound(folder, diagnosis):
    assert (folder / "log.txt").read_text() == "mine"
    assert sorted(p.name for p in folder.iterdir()) == ["log.txt", "train.py"]
    sham = trial(diagnosis, "sham")
    assert sham["failure"] == ""
    assert sham["numerics"] in ("within", "drifted")  # of a few random runs luck decides; tests/trials has the bounds
    assert "differs from itself" in sham["note"]


@pytest.mark.full
def test_a_script_that_writes_harms_nothing_and_is_judged_by_its_spread(tmp_path, few_runs):
    assert_sound(tmp_path, proven_in(tmp_path, few_runs, "sham", train(before=RANDOM, after=WRITES)))


@pytest.mark.full  # every day: in tests/trials, with a run of its own, and with many runs that are a table
def test_a_change_that_crashes_is_a_result(tmp_path, few_runs):
    crashes = f"{RANDOM}; assert not optimizer.defaults['fused'], 'no fusing here'"
    script = train(before=crashes, after=WRITES, optimizer="torch.optim.SGD")
    diagnosis = proven_in(tmp_path, few_runs, "fused-optimizer,sham", script)
    assert "no fusing here" in trial(diagnosis, "fused-optimizer")["failure"]
    assert_sound(tmp_path, diagnosis)


@pytest.mark.parametrize(
    "text",
    [
        "def train():\n    raise ValueError('no such data set')\ntrain()",
        pytest.param(train(before="torch.ones(1, device='cuda:63')"), marks=pytest.mark.full),
    ],
)
def test_a_script_that_raises_cannot_be_proven_and_is_one_sentence(diagnose, script, text):
    script(text)
    error = proven(diagnose, "--apply", "sham", "train.py", code=5)
    assert error.count("diagnose: error:") == 1
    assert error.count("Traceback") == 1  # the script's own
    assert ("no such data set" if "no such" in text else "torch.ones(1, device='cuda:63')") in error


@pytest.mark.full
def test_a_script_of_few_steps_cannot_be_proven(diagnose, script):
    short = script(train(steps=4), "short.py")
    assert "diagnose: error:" in proven(diagnose, "--apply", "sham", short.name, code=5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--apply", "own-device", "train.py"), "by hand"),
        (("--apply", "no-such-thing", "train.py"), "Invalid change no-such-thing: use one of"),
        (("--budget", "soon", "train.py"), "Invalid --budget 'soon': use 90s, 10m or 1h."),
        (("nowhere.py",), "The script or capture nowhere.py does not exist"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(diagnose, script, arguments, said):
    script("raise SystemExit(9)")
    error = proven(diagnose, *arguments, code=2)
    assert said in error


def test_nothing_runs_unasked(diagnose, script):
    script("raise SystemExit(9)")
    done = diagnose("prove", "train.py", stdin=-3)  # DEVNULL
    assert done.returncode == 2
    assert "--yes" in done.stderr


@pytest.mark.full
def test_two_ranks_are_started_the_same_way_for_every_run(diagnose):
    arguments = (FIXTURES / "ddp_one_bucket.py", "--steps", "400", "--device", "cpu")
    diagnosis = proven(
        diagnose, "--launcher", " ".join(TORCHRUN), "--apply", "bucket-gradients", "--budget", "20m", *arguments
    )
    changed = trial(diagnosis, "bucket-gradients")
    assert changed["failure"] == ""
    assert "bucket_cap_mb" in changed["note"]
    assert changed["numerics"] in ("identical", "within")


@pytest.mark.parametrize(
    "launcher", [FORKED, pytest.param(TORCHRUN, marks=pytest.mark.full)], ids=["forked", "torchrun"]
)
def test_two_ranks_run_with_a_change(tmp_path, launcher):
    script = (str(FIXTURES / "ddp_one_bucket.py"), "--steps", "400", "--device", "cpu")
    runner = Runner(Command(script, tmp_path, launcher), tmp_path / "runs", warm_up=2, timed=5, cwd_mode="same")
    run = runner.time(("bucket-gradients",), timeout_s=600)
    assert run.failure == ""
    assert any("bucket_cap_mb" in change for change in run.applied)
    assert len(run.step_ns) == 5
