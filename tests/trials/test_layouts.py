"""Projects as they lie on disk: what a run sees around its copy, what it may write, and how its files are called."""

import gzip
import json
import os

import pytest

from diagnose.trials.copying import below, plan_surroundings
from diagnose.trials.guard import can_restrict
from diagnose.trials.runs import Command, Runner
from diagnose.trials.workplace import name_originals


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command once in a folder of the project; it returns the run and what it printed."""

    def once(*script, cwd="project"):
        runner = Runner(Command(script, tmp_path / cwd), tmp_path / "runs")
        found = runner.time((), timeout_s=60)
        return found, runner.last_log.read_text()

    return once


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


READS = """
import sys
sys.path.insert(0, "..")
import mylib
print(open("../data/x.txt").read(), mylib.NAME, open("../../far.txt").read())
for name in ("../data/x.txt", "../data/new.txt", "../mylib/new.txt", __file__ + "/../../data/x.txt"):
    try:
        open(name, "a").write("more")
    except OSError as error:
        print("refused", type(error).__name__)
raise ValueError(__file__)
"""


def test_a_script_of_a_sub_folder_reads_what_lies_beside_it_and_changes_none_of_it(run, tmp_path):
    write(tmp_path / "project" / "mylib", __init__="NAME = 'mine'")
    write(tmp_path / "project" / "experiments", train=READS)
    (tmp_path / "project" / "data").mkdir()
    (tmp_path / "project" / "data" / "x.txt").write_text("data")
    (tmp_path / "far.txt").write_text("far")
    found, printed = run("train.py", cwd="project/experiments")
    assert "data mine far" in printed
    assert found.failure == f"The script raised ValueError: {tmp_path}/project/experiments/train.py."
    assert str(tmp_path / "runs") not in printed
    if can_restrict():
        assert printed.count("refused") == 4
        assert (tmp_path / "project" / "data" / "x.txt").read_text() == "data"
        assert names_in(tmp_path / "project" / "data") == ["x.txt"]
        assert names_in(tmp_path / "project" / "mylib") == ["__init__.py"]


WRITES = """
import os, pathlib, pkg.model
for place in (pathlib.Path("runs"), pathlib.Path(__file__).resolve().parents[1] / "checkpoints", pathlib.Path(OUT)):
    place.mkdir(exist_ok=True)
    (place / "last.pt").write_text("x")
print(pkg.model.NAME, sorted(os.listdir()), os.environ["PWD"] == os.getcwd())
"""


@pytest.mark.parametrize("command", [("-m", "pkg.train"), ("pkg/train.py",)])
def test_what_a_project_writes_goes_into_the_copy_however_it_is_started(run, tmp_path, command):
    out = f"import sys; OUT = sys.argv[1].partition('=')[2]; sys.path.insert(0, '.')\n{WRITES}"
    write(tmp_path / "project" / "pkg", __init__="", model="NAME = 'mine'", train=out)
    _found, printed = run(*command, f"--out={tmp_path}/project/out")
    assert "mine ['checkpoints', 'out', 'pkg', 'runs'] True" in printed
    assert names_in(tmp_path / "project") == ["pkg"]


def test_a_copy_has_links_for_all_that_lies_beside_it_and_the_folders_above(tmp_path):
    here = tmp_path / "a" / "b"
    for folder in (here, tmp_path / "a" / "data", tmp_path / "lib", tmp_path / "runs"):
        folder.mkdir(parents=True)
    plan = plan_surroundings(here, without=[tmp_path / "runs"])
    kinds = {name: entry.kind for name, entry in plan.entries.items() if below(tmp_path, tmp_path / "x")}
    top = str(tmp_path).lstrip("/")
    assert (kinds[f"{top}/a/b"], kinds[f"{top}/a/data"], kinds[f"{top}/a"], kinds[f"{top}/lib"]) == (
        "copy", "link", "folder", "link"
    )  # fmt: skip
    assert f"{top}/runs" not in kinds


def test_the_home_of_a_run_has_links_and_folders_that_are_its_own(tmp_path):
    home = tmp_path / "home"
    for name in (".ssh", ".cache", "work/project", "../far/data"):
        (home / name).mkdir(parents=True)
    for cwd, links in ((home / "work" / "project", []), (tmp_path / "elsewhere", ["work"])):
        plan = plan_surroundings(cwd, home, own=[home / ".cache", home / ".triton", tmp_path / "far" / "hub"])
        kinds = {name: plan.kind_of(home / name) for name in (".ssh", ".cache", ".triton", *links)}
        assert kinds == {".ssh": "link", ".cache": "copy", ".triton": "copy", **dict.fromkeys(links, "link")}
        assert (plan.kind_of(home), plan.kind_of(cwd)) == ("folder", "copy")
        assert [plan.kind_of(tmp_path / name) for name in ("far", "far/hub", "far/data")] == ["folder", "copy", "link"]


def test_reports_and_packed_traces_name_the_originals(tmp_path):
    root = tmp_path / "cwd"
    (tmp_path / "capture").mkdir()
    text = json.dumps({"file": f"{root}/home/me/train.py"})
    (tmp_path / "capture" / "capture.json").write_text(text)
    (tmp_path / "capture" / "rank0.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "capture" / "large.json").touch()
    os.truncate(tmp_path / "capture" / "large.json", 1 << 40)
    name_originals(tmp_path / "capture", root)
    assert json.loads((tmp_path / "capture" / "capture.json").read_text()) == {"file": "/home/me/train.py"}
    packed = gzip.decompress((tmp_path / "capture" / "rank0.pt.trace.json.gz").read_bytes())
    assert json.loads(packed) == {"file": "/home/me/train.py"}
