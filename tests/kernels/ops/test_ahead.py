"""Every Triton program compiles to machine code for GPUs that are not there, and keeps its values in registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton, which needs Linux, is not installed")

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "kernels" / "ops" / "triton_kernels"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
MAX_REGISTERS = {"sm": 255, "gfx": 512}  # of a thread, by the architectures' manuals
MAX_SHARED_BYTES = {"sm": 48 << 10, "gfx": 64 << 10}  # of a program, where it asks for no more by itself


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return what evaluation/benchmarks/op_resources.py lists, one dictionary for each program and target."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    script = ROOT / "evaluation" / "benchmarks" / "op_resources.py"
    command = [sys.executable, str(script), "--json", "--targets", *TARGETS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("target", TARGETS)
def test_every_program_becomes_machine_code(compiled, target):
    mine = [one for one in compiled if one["target"] == target]
    assert all(one["code_bytes"] > 1000 for one in mine)
    written = {
        f"{path.stem}.{line.removeprefix('def ').split('(')[0]}"
        for path in PROGRAMS.glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("def ") and line.split("(")[0].endswith("_kernel")
    }
    assert {one["name"] for one in mine} == written


@pytest.mark.parametrize("target", TARGETS[:3])  # four warps of 64 threads leave four elements a thread on AMD: 64 bits
def test_every_program_moves_128_bits_at_once_where_sizes_allow(compiled, target):
    mine = [one for one in compiled if one["target"] == target]
    assert {one["name"] for one in mine} == {one["name"] for one in mine if one["is_wide"]}


@pytest.mark.parametrize("target", TARGETS)
def test_no_program_spills_registers(compiled, target):
    family = "sm" if target.startswith("sm_") else "gfx"
    mine = [one for one in compiled if one["target"] == target]
    assert [one for one in mine if one["spilled"]] == []
    assert all(0 < one["registers"] <= MAX_REGISTERS[family] for one in mine)
    assert all(one["shared_bytes"] <= MAX_SHARED_BYTES[family] for one in mine)


def test_the_page_has_a_row_for_each_form(compiled):
    text = (ROOT / "evaluation" / "pages" / "operators.md").read_text(encoding="utf-8")
    rows = {f"| `{one['name']}` | {one['form']} | {one['warps']} |" for one in compiled}
    assert [row for row in sorted(rows) if row not in text] == []
