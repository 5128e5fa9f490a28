"""Changes written into a script as a diff that git applies, and that runs."""

import runpy
import subprocess
import sys

import pytest
import torch

from diagnose.changes.edits.source_edits import Edits, write_patch
from diagnose.errors import UsageError

SCRIPT = '''"""Trains."""
import torch
from torch.utils.data import DataLoader, TensorDataset  # the usual

def main():
    data = TensorDataset(torch.randn(8, 2))
    loader = DataLoader(data, batch_size=4, num_workers=0)  # slow
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(
        layer.parameters(),
        lr=0.1,
    )
    for (x,) in loader:
        layer(x).sum().backward()
        optimizer.step()
    print(loader.num_workers, optimizer.defaults["fused"], torch.get_float32_matmul_precision())

if __name__ == "__main__":
    main()
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_it_applies_and_runs(script, tmp_path, capsys):
    ids = ("load-in-workers", "fused-optimizer", "allow-tf32")
    written = write_patch(Edits(script, arguments={"load-in-workers": {"workers": 2}}), ids, tmp_path / "fix.patch")
    assert (written.done, written.left) == (ids, {})
    assert script.read_text() == SCRIPT
    changed = [line for line in written.diff.splitlines() if line.startswith(("+", "-")) and len(line) > 1]
    assert changed == [
        "--- a/train.py",
        "+++ b/train.py",
        '+torch.set_float32_matmul_precision("high")',
        "-    loader = DataLoader(data, batch_size=4, num_workers=0)  # slow",
        "+    loader = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)  # slow",
        "+        fused=True,",
    ]
    subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
    precision = torch.get_float32_matmul_precision()
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.set_float32_matmul_precision(precision)
    assert capsys.readouterr().out == "2 True high\n"


def test_what_has_to_be_written_by_hand(script, tmp_path):
    written = write_patch(Edits(script), ("compile-graphs", "no-buffer-broadcast"), tmp_path / "fix.patch")
    assert written.left == {
        "compile-graphs": "its page shows the code",
        "no-buffer-broadcast": "the script calls no DistributedDataParallel or DDP itself",
    }
    assert written.diff == ""
    assert not (tmp_path / "fix.patch").exists()


@pytest.mark.parametrize("own", ["torch.backends.cuda.matmul.allow_tf32 = False", 'x.fp32_precision = "ieee"'])
def test_a_setting_that_the_script_makes_itself_is_left_to_its_author(script, tmp_path, own):
    script.write_text(f"import torch\n{own}\n")
    written = write_patch(Edits(script), ("allow-tf32",), tmp_path / "fix.patch")
    assert "the script sets " in written.left["allow-tf32"]


def test_arguments_are_added_to_a_mapping_whose_keys_are_not_known(script, tmp_path):
    script.write_text("loader = DataLoader(data, **options)\n")
    written = write_patch(Edits(script), ("load-in-workers",), tmp_path / "fix.patch")
    subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
    assert not written.left
    assert script.read_text().startswith("loader = DataLoader(data, **{**options, 'num_workers': ")


@pytest.mark.parametrize("newline", ["", "\n"])
def test_a_call_without_arguments_and_a_file_without_a_last_newline(script, tmp_path, newline):
    script.write_text(f"model = DDP(){newline}")
    write_patch(Edits(script), ("no-buffer-broadcast",), tmp_path / "fix.patch")
    subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
    assert script.read_text() == f"model = DDP(broadcast_buffers=False){newline}"


def test_no_python_is_a_sentence(script, tmp_path):
    script.write_text("def (:\n")
    with pytest.raises(UsageError, match="cannot be parsed as Python"):
        write_patch(Edits(script), ("allow-tf32",), tmp_path / "fix.patch")


def test_without_libcst_a_sentence(script, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(UsageError, match=r"install torch-diagnose again"):
        write_patch(Edits(script), ("allow-tf32",), tmp_path / "fix.patch")
