"""Every Triton program compiles to machine code for GPUs that are not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton, which needs Linux, is not installed")

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER.parents[2] / "kernels" / "ops" / "triton_kernels"


CAPABILITIES = ("80", "90", "100")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the lines that ahead.py prints, as words: program, target, bytes of machine code, width of reads."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, str(FOLDER / "ahead.py"), *CAPABILITIES]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_program_becomes_machine_code(compiled, capability):
    lines = [line for line in compiled if line[1].removeprefix("sm_").rstrip("a") == capability]
    assert all(int(size) > 1000 for _, _, size, _ in lines)
    written = {
        f"{path.stem}.{line.removeprefix('def ').split('(')[0]}"
        for path in PROGRAMS.glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("def ") and line.split("(")[0].endswith("_kernel")
    }
    assert {name for name, *_ in lines} == written


def test_every_program_reads_128_bits_at_once_where_sizes_allow(compiled):
    assert {name for name, *_ in compiled} == {name for name, *_, width in compiled if width == "wide"}
