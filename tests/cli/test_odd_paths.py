"""A path that is not UTF-8: every command answers, or refuses it with one sentence; reports show it escaped."""

import json
import os
import shutil
from pathlib import Path

import pytest

from diagnose.cli.main import run
from diagnose.model.serialization import pack, unpack

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
ODD = os.fsdecode(b"d\xff")
SHOWN = "d\\udcff"


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Change to a folder that holds one of such a name, with captures and a script in it; results are kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIAGNOSE_DEBUG")
    monkeypatch.delenv("DIAGNOSE_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = Path(ODD)
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes no such name")
    for name in ("healthy-planted", "barrier_every_step-planted"):
        shutil.copytree(TRACES / name, folder / name)
    for script in (folder / "train.py", tmp_path / "train.py"):
        script.write_text("import torch\n")
    return folder


ONE, RANKS = f"{ODD}/healthy-planted", f"{ODD}/barrier_every_step-planted"
COMMANDS = [
    ("analyze", ONE, "--html", f"{ODD}/r.html", "--output", f"{ODD}/r.json"),
    ("analyze", ONE, "--json"),
    ("analyze", RANKS),
    ("analyze", f"{ONE}/rank0.light.pt.trace.json.gz"),
    ("analyze", f"{ODD}/none"),
    ("analyze", RANKS, "--partial", f"{ODD}/s.ranks"),
    ("compare", ONE, ONE, "--html", f"{ODD}/c.html"),
    ("gate", "--baseline", ONE, "--junit", f"{ODD}/j.xml", ONE),
    ("gate", "--baseline", f"{ODD}/none", ONE),
    ("what-if", ONE),
    ("analyze", ONE, "--export", f"perfetto={ODD}/p.json", "--export", f"findings={ODD}/f.csv"),
    ("analyze", ONE, "--export", f"speedscope={ODD}/s.json", "--export", f"collapsed={ODD}/c.txt"),
    ("analyze", ONE, "--export", f"markdown={ODD}/p.md", "--export", f"kernels={ODD}/k.csv"),
    ("analyze", ONE, "--export", f"tensorboard={ODD}/tb"),
    ("analyze", ONE, "--export", f"{ODD}=x"),
    ("analyze", "--merge", f"{ODD}/none.ranks"),
    ("watch", "--list", "--folder", f"{ODD}/h"),
    ("watch", "--list", "--folder", ODD),
    (f"{ODD}/train.py",),
    ("trace", f"{ODD}/train.py"),
    ("trace", "--capture", f"{ODD}/capture", "train.py"),
    ("trace", f"{ODD}/none.py"),
    ("prove", "--yes", f"{ODD}/train.py"),
    ("prove", "--yes", ONE),
    ("watch", f"{ODD}/none.py"),
    ("mcp", "--root", f"{ODD}/none"),
    ("explain", f"{ODD}/none"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).replace(ODD, "ODD"))
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_command_answers_or_refuses(odd, capsys, words):
    codes = [run(list(words)) for _ in range(2)]  # the second time from the cache, or because the files are there
    shown = capsys.readouterr()
    assert all(code in range(10) for code in codes), shown.err
    errors = [line for line in shown.err.splitlines() if "error:" in line]
    assert len(errors) == sum(code not in (0, 1) for code in codes), shown.err
    assert all(SHOWN in line for line in errors)
    assert ODD not in shown.out + shown.err


def test_a_report_shows_it_escaped_and_is_read_again(odd, capsys):
    assert run(["analyze", ONE, "--output", f"{ODD}/r.json", "--html", f"{ODD}/r.html"]) == 0
    assert json.loads((odd / "r.json").read_text())["source"]["path"].startswith(ONE.replace(ODD, SHOWN))
    assert f"{SHOWN}/healthy-planted" in (odd / "r.html").read_text()
    assert run(["analyze", RANKS]) == run(["analyze", RANKS]) == 0
    assert run(["analyze", RANKS, "--partial", f"{ODD}/s.ranks"]) == 0
    assert run(["analyze", "--merge", f"{ODD}/s.ranks"]) == 0
    assert "is not at hand" not in capsys.readouterr().out


def test_text_of_no_encoding_is_packed():
    value = {"a\udcff": ("\ud800", "plain"), "b": ["ä", "\udcff"]}
    assert unpack(pack(value)) == value
