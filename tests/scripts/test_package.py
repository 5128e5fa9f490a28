"""scripts/package: what is built is whole, passes twine, and works where it is installed."""

import subprocess
import sys
import zipfile
from pathlib import Path

import package
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_wheel_and_source_distribution_work_in_fresh_environments():
    words = [sys.executable, ROOT / "scripts" / "package.py", "--quick"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("built torch_diagnose-")
    assert [line.partition(":")[0].rpartition(".")[2] for line in lines[1:]] == ["whl", "gz"]
    assert all("works on Python" in line for line in lines[1:])


@pytest.mark.full
def test_every_public_name_has_a_type(tmp_path):
    wheel, _ = package.build(tmp_path / "dist", isolated=False)
    package.check_types(package.install(wheel, sys.executable, tmp_path / "types", torch=False, dependencies=False))


def test_a_file_that_the_wheel_lacks_is_named(tmp_path):

    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for name in package.expected_files() - {"diagnose/py.typed"}:
            archive.writestr(name, "")
    with pytest.raises(package.PackageError, match=r"The wheel lacks diagnose/py\.typed\."):
        package.check_content(tmp_path / "a.whl")
