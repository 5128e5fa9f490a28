"""Where prove keeps its runs and its patch: never over what is there."""

import pytest

from diagnose.changes.edits.source_edits import Edits, write_patch
from diagnose.cli.prove import ProveRequest, _check_patch, _kept
from diagnose.errors import OutputError, UsageError


def test_a_folder_is_kept_by_one_run(tmp_path):
    with _kept(str(tmp_path / "runs")) as folder:
        with pytest.raises(UsageError, match="is in use by another run"):
            _kept(str(tmp_path / "runs")).__enter__()
        (folder / "run-001").mkdir()
    with pytest.raises(UsageError, match="is not empty"):
        _kept(str(tmp_path / "runs")).__enter__()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="Not a directory"):
        _kept(str(tmp_path / "file")).__enter__()


def test_the_patch_is_never_written_over_the_script(tmp_path):
    script, patch = tmp_path / "train.py", tmp_path / "a.diff"
    script.write_text("import torch\n")
    with pytest.raises(UsageError, match=r"--write-patch names .*train.py, which is read"):
        _check_patch(ProveRequest(script=str(script), write_patch=str(script), force=True))
    patch.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        write_patch(Edits(script), ["allow-tf32"], patch)
    assert patch.read_text() == "mine"
    assert "allow-tf32" in write_patch(Edits(script), ["allow-tf32"], patch, force=True).done
    assert "set_float32_matmul_precision" in patch.read_text()
