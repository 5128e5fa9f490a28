"""The caches that a run has instead of the user's: what they show, and that compilers and trackers work with them."""

import getpass
import shutil
import tempfile
from pathlib import Path

import pytest

from diagnose.trials import workplace
from diagnose.trials.guard import can_restrict
from diagnose.trials.runs import Command, Runner
from diagnose.trials.workplace import FILLED, Cache, seed, user_caches


def names_in(folder):
    return [path.name for path in Path(folder).iterdir()]


@pytest.fixture
def hub(tmp_path):
    """Return a cache as a model hub has it: data, a link to it, a lock."""
    found = tmp_path / "hub"
    for name, size in {"blobs/a": 100_000, "locks/a.lock": 0, "snapshots/1/config.json": 10}.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_bytes(b"0" * size)
    (found / "snapshots" / "1" / "weights").symlink_to("../../blobs/a")
    (found / "outside").symlink_to("../far")
    (tmp_path / "far").write_text("far")
    return found


def test_data_is_shown_with_links_and_small_files_can_be_written(hub, tmp_path):
    seed(Cache(hub, data=True), tmp_path / "seeded")
    seeded = tmp_path / "seeded"
    assert (seeded / "blobs" / "a").readlink() == hub / "blobs" / "a"
    assert (seeded / "snapshots" / "1" / "weights").stat().st_size == 100_000
    assert (seeded / "outside").read_text() == "far"
    for name in ("locks/a.lock", "snapshots/1/config.json", "blobs/b"):
        (seeded / name).write_text("new")
    assert ((hub / "locks" / "a.lock").read_text(), (hub / "blobs" / "b").exists()) == ("", False)


def test_what_is_too_large_is_linked_if_it_is_data_and_empty_if_it_can_be_built_again(hub, tmp_path):
    seed(Cache(hub, data=True), tmp_path / "data", most=5)
    assert (tmp_path / "data" / "blobs" / "a").is_symlink()
    assert (tmp_path / "data" / "snapshots").is_symlink()
    assert (tmp_path / "data" / "snapshots" / "1" / "config.json").is_file()
    seed(Cache(hub, data=False), tmp_path / "built", most=5)
    assert names_in(tmp_path / "built") == []


def test_of_a_folder_of_caches_the_known_ones_are_filled_and_the_others_read(tmp_path):
    for name in ("torch/a", "pip/a"):
        (tmp_path / "user" / name).parent.mkdir(parents=True)
        (tmp_path / "user" / name).touch()
    seed(Cache(tmp_path / "user", data=True, filled=FILLED), tmp_path / "seeded")
    assert [(tmp_path / "seeded" / name).is_symlink() for name in ("torch", "pip")] == [False, True]


def test_the_caches_of_a_user_are_those_of_the_home_and_of_variables_and_none_lies_in_another(tmp_path, monkeypatch):
    for name in (*workplace.DATA, *workplace.BUILT):
        monkeypatch.delenv(name, raising=False)
    home, temporary, far = (tmp_path / name for name in ("home", "tmp", "far"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(getpass, "getuser", lambda: "me")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "far"))
    monkeypatch.setenv("TORCH_HOME", str(home / ".cache" / "mine" / "torch"))
    monkeypatch.setenv("HF_HOME", str(far / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(far / "hub" / "inner"))
    found = {cache.path: cache for cache in user_caches(home)}
    assert found == {
        home / ".cache": Cache(
            home / ".cache", True, FILLED | {"mine"}, {"TORCH_HOME": home / ".cache" / "mine" / "torch"}
        ),
        **{home / name: Cache(home / name, data=False) for name in (".triton", ".nv", ".cupy")},
        far / "hub": Cache(far / "hub", True, None, {"HF_HOME": far / "hub", "HF_HUB_CACHE": far / "hub" / "inner"}),
        far / ".triton" / "cache": Cache(
            far / ".triton" / "cache", False, None, {"TRITON_CACHE_DIR": far / ".triton" / "cache"}
        ),
        temporary / "torchinductor_me": Cache(
            temporary / "torchinductor_me", False, None, {"TORCHINDUCTOR_CACHE_DIR": temporary / "torchinductor_me"}
        ),
    }


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the text of a script twice with an empty home; it returns what was printed."""
    for name in (
        *workplace.DATA,
        *workplace.BUILT,
        "TRITON_HOME",
        "TRITON_INTERPRET",
        "XDG_DATA_HOME",
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def twice(text):
        (tmp_path / "project" / "train.py").write_text(text)
        runner = Runner(Command(("train.py",), tmp_path / "project"), tmp_path / "runs")
        printed = []
        for _ in range(2):
            runner.time((), timeout_s=300)
            printed.append(runner.last_log.read_text())
        assert names_in(tmp_path / "home") == []
        assert names_in(tmp_path / "project") == ["train.py"]
        return printed

    return twice


COMPILES = """
import os, sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def double(x_ptr, SIZE: tl.constexpr):
    at = x_ptr + tl.arange(0, SIZE)
    tl.store(at, 2 * tl.load(at))

folder = triton.knobs.cache.dir if hasattr(triton, "knobs") else os.path.expanduser("~/.triton/cache")
print("found", len(os.listdir(folder)) if os.path.isdir(folder) else 0)
source = ASTSource(double, {"x_ptr": "*fp32", "SIZE": "constexpr"}, {(1,): 64})
binary = triton.compile(source, target=GPUTarget("cuda", 80, 32))
print("compiled", len(binary.asm["cubin"]) > 1000, len(os.listdir(folder)) > 0)
"""


@pytest.mark.skipif(not can_restrict(), reason="this system has no Landlock")
def test_a_triton_program_compiles_in_a_run_of_a_user_with_an_empty_home_and_once(run):
    pytest.importorskip("triton", reason="triton, which needs Linux, is not installed")
    first, second = run(COMPILES)
    assert first.splitlines()[:2] == ["found 0", "compiled True True"]
    assert "compiled True True" in second
    assert "found 0" not in second


BUILDS = """
import torch
print(torch.compile(lambda x: (x + 1).relu().sum())(torch.zeros(100)))
"""


@pytest.mark.skipif(not can_restrict(), reason="this system has no Landlock")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler for a CPU")
@pytest.mark.full
def test_inductor_compiles_in_a_run_of_a_user_with_an_empty_home(run):
    assert all("tensor(100.)" in printed for printed in run(BUILDS))


TRACKS = """
import wandb
with wandb.init(project="p") as found:
    found.log({"loss": 1.0})
    found.log_artifact(__file__, name="script", type="code")
print("offline", found.settings.mode if hasattr(found.settings, "mode") else wandb.run)
"""


@pytest.mark.skipif(not can_restrict(), reason="this system has no Landlock")
def test_a_tracker_writes_a_run_to_the_copy(run):
    pytest.importorskip("wandb", reason="wandb is not installed")
    assert all("offline offline" in printed for printed in run(TRACKS))
