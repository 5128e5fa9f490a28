"""Commands that a change prints can be parsed, and their options and variables exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.distributed import run as torchrun

from diagnose.cli.commands import cli
from tests.changes.advice_cases import Printed, distinct
from tests.changes.pasted import is_python

SIDES = [(printed, side) for printed in distinct() for side in ("before", "after")]
COMMANDS = {
    (printed.prescription.id, text): None
    for printed, side in SIDES
    if not is_python(text := getattr(printed.prescription, side))
}
# Programs that a machine with GPUs has, and those of a shell.
PROGRAMS = frozenset({
    "all_reduce_perf", "cat", "echo", "env", "ethtool", "grep", "head", "ibstat", "mpirun", "ncu", "numactl",
    "nvidia-smi", "rocm-smi", "rsync", "taskset", "top", "unset",
    "diagnose", "python", "torchrun",
})  # fmt: skip
# Variables that torch does not read itself, by who does.
OF_OTHERS = {
    "MALLOC_MMAP_THRESHOLD_": "glibc", "MALLOC_TRIM_THRESHOLD_": "glibc", "NCCL_DEBUG_SUBSYS": "NCCL",
    "HIPBLASLT_ALLOW_TF32": "hipBLASLt",
}  # fmt: skip
VARIABLE = re.compile(r"\b((?:PYTORCH|TORCH|CUDA|HIP|HIPBLASLT|MALLOC|NCCL)_[A-Z_0-9]*[A-Z_])(?==| |;|$|\))")
OWN_COMMAND = re.compile(r"\bdiagnose (?=[a-z])(?:[a-z-]+)(?: --?[a-z-]+(?: \d+)?)*(?: \w+\.py)?")
MODULE = re.compile(r"diagnose\.kernels(?:\.\w+)+")


def words(text: str) -> Iterator[list[str]]:
    """Yield the words of each command, without the variables that are set for it."""
    for line in text.replace("\\\n", " ").splitlines():
        each = shlex.shlex(line, posix=True, punctuation_chars="|;")
        each.whitespace_split, each.commenters = True, "#"
        command: list[str] = []
        for word in (*each, ";"):
            if set(word) <= set("|;"):
                if command:
                    yield command
                command = []
            elif command or not re.match(r"[A-Za-z_]\w*=", word):
                command.append(word)


def program(command: list[str]) -> list[str]:
    """Return a command without what it is started by."""
    while command[0] in ("sudo", "env"):
        command = command[1:]
        while command[0] == "-u":
            command = command[2:]
    return command


def torch_reads() -> str:
    """Return what torch's own Python and its allocator's settings are written with."""
    folder = Path(torch.__file__).parent
    files = [
        *folder.glob("cuda/*.py"), *folder.glob("lib/libc10.*"), *folder.glob("distributed/_tools/*.py"),
        *folder.glob("nn/parallel/*.py"), *folder.glob("_logging/*.py"), *folder.glob("backends/cuda/*.py"),
        *folder.glob("testing/_internal/common_utils.py"), *folder.glob("_utils_internal.py"),
    ]  # fmt: skip
    return "\n".join(file.read_bytes().decode("latin-1") for file in files)


@pytest.mark.parametrize(("change", "text"), [pytest.param(*case, id=case[0]) for case in COMMANDS])
def test_a_shell_can_parse_them(change, text):
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for command in words(text):
        assert program(command)[0] in PROGRAMS, f"{change}: {command[0]} is no program, and {text!r} no Python"


def of_commands(printed: Printed) -> str:
    p = printed.prescription
    return f"{p.before}\n{p.after}\n{p.needs}"


def test_own_commands_take_their_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "infer.py"):
        (tmp_path / name).write_text("")
    found = {match.group() for printed, _ in SIDES for match in OWN_COMMAND.finditer(of_commands(printed))}
    assert "diagnose trace --skip 50 --steps 20 train.py" in found
    for command in found:
        name, *arguments = command.split()[1:]
        cli.commands[name].make_context(name, arguments)


def test_torchrun_takes_its_options():
    found = {
        match.group(1)
        for printed, _ in SIDES
        for match in re.finditer(r"\btorchrun (.*?)(?:   |$)", of_commands(printed), re.MULTILINE)
    }
    assert found
    for arguments in found:
        assert torchrun.get_args_parser().parse_args(shlex.split(arguments)).nproc_per_node == "gpu"


@pytest.mark.skipif(torch.torch_version.TorchVersion(torch.__version__) < (2, 9), reason="its variables were others")
def test_variables_are_read_by_torch_or_by_those_that_are_named():
    found = {name for printed, _ in SIDES for name in VARIABLE.findall(of_commands(printed))}
    known = torch_reads()
    assert {name for name in found if name not in known} <= OF_OTHERS.keys()
    assert {"PYTORCH_ALLOC_CONF", "TORCH_LOGS"} <= found
    for setting in ("expandable_segments", "roundup_power2_divisions", "recompiles"):
        assert setting in known


def test_modules_that_are_named_exist():
    for name in {match for printed, _ in SIDES for match in MODULE.findall(of_commands(printed))}:
        try:
            import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            assert hasattr(import_module(module), attribute), name
