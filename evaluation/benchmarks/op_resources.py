"""Compiles the operators' Triton programs for GPUs that are not there, and reports registers, spills and shared memory.

Returns 1 where a program spills: registers that are kept in memory instead. It must not run where Triton interprets.

    scripts/python evaluation/benchmarks/op_resources.py --write evaluation/pages/operators.md
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from diagnose.kernels.ops.triton_kernels import (
    adamw,
    cross_entropy,
    gelu,
    layout,
    norms,
    pairs,
    rotary,
    scale,
    softmax,
)

TARGETS = ("sm_80", "sm_90", "gfx942")
FLAT_WARPS = 4  # Triton's own choice, which programs over flat tensors leave as it is
HEAD = "| program | form | warps |"
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"

INTEGERS = {"target_ptr", "table_ptr", "size_ptr", "owner_ptr", "start_ptr"}
STATISTICS = {"mean_ptr", "rstd_ptr", "lse_ptr", "loss_ptr", "dweight_ptr", "dbias_ptr", "scale_ptr"}
STATISTICS |= {"cos_ptr", "sin_ptr", "factor_ptr"}
NUMBERS = {"factor", "lr", "beta1", "beta2", "decay", "eps", "bias1", "root_bias2"}


@dataclass(frozen=True)
class Program:
    """One program in one form."""

    kernel: Any  # Triton's
    constants: Mapping[str, Any]
    form: str
    warps: int

    @property
    def name(self) -> str:
        """Return the file and the function."""
        return f"{self.kernel.fn.__module__.rsplit('.', 1)[-1]}.{self.kernel.fn.__name__}"


@dataclass(frozen=True)
class Resources:
    """What one program takes on one target; registers are of a thread, shared memory of a program."""

    name: str
    form: str
    warps: int
    target: str
    code_bytes: int
    registers: int
    spilled: int  # bytes of a thread on NVIDIA, registers on AMD
    shared_bytes: int
    is_wide: bool  # reads or writes 128 bits at once


def programs() -> Iterator[Program]:
    """Yield each program in every form that its constants give it, as far as the forms differ in code."""
    flat = {"BLOCK": layout.ELEMENTS}
    for tanh in (False, True):
        form = "tanh" if tanh else "erf"
        yield Program(gelu.forward_kernel, {"TANH": tanh, **flat}, form, FLAT_WARPS)
        yield Program(gelu.backward_kernel, {"TANH": tanh, **flat}, form, FLAT_WARPS)
        tile = {"TANH": tanh, **_tile(pairs.BIAS_BYTES // 2, pairs.BIAS_BYTES // 2)}
        yield Program(pairs.bias_gelu_kernel, tile, form, FLAT_WARPS)
        tile = {"TANH": tanh, "BIAS": True, **_tile(pairs.BIAS_TILE, pairs.BIAS_COLUMNS)}
        yield Program(pairs.bias_gelu_backward_kernel, tile, form, FLAT_WARPS)
        turn = {"INTERLEAVED": tanh, "BACK": tanh, "ROWS": rotary.TILE // 64, "HALF": 64, "REST": 64 if tanh else 0}
        yield Program(rotary.rotate_kernel, turn, "interleaved, back" if tanh else "halves", FLAT_WARPS)
    yield Program(scale.scale_kernel, flat, "", FLAT_WARPS)
    yield Program(pairs.swiglu_kernel, _tile(pairs.TILE, pairs.TILE), "", FLAT_WARPS)
    yield Program(pairs.swiglu_backward_kernel, _tile(pairs.TILE, pairs.TILE), "", FLAT_WARPS)
    for block in (1024, layout.MAX_BLOCK):
        for one_block in (True, False):
            yield from _rows(block, one_block)
        row = {"IGNORED": -100, "SMOOTHING": 0.1}
        held = min(block, cross_entropy.MAX_HELD)
        warps = layout.warps(held, cross_entropy.FORWARD_ELEMENTS)
        yield Program(cross_entropy.forward_kernel, {"BLOCK": held, **row}, f"block {held}", warps)
        held = min(block, cross_entropy.BACKWARD_HELD)
        yield Program(cross_entropy.backward_kernel, {"BLOCK": held, **row}, f"block {held}", layout.warps(held))
    yield Program(cross_entropy.sum_kernel, {"IGNORED": -100, "MEAN": True, "BLOCK": cross_entropy.SUMMED}, "", 8)
    tile = {"BIAS": True, "CENTER": True, "ROWS": norms.TILE_ROWS, "COLUMNS": norms.TILE_COLUMNS}
    yield Program(norms.columns_kernel, tile, "", FLAT_WARPS)
    for aligned in (True, False):
        forms = {"SCALE": aligned, "MAXIMIZE": aligned, "ALIGNED": aligned, "CHUNK": adamw.CHUNK}
        constants = {**forms, "PARAM": tl.bfloat16, "STATE": tl.float32, **flat}
        form = "aligned" if aligned else "unaligned"
        yield Program(adamw.adamw_kernel, constants, form, FLAT_WARPS)
        chunk = {"PARAM": tl.bfloat16, "ALIGNED": aligned, "CHUNK": adamw.CHUNK, **flat}
        yield Program(adamw.squares_kernel, chunk, form, FLAT_WARPS)


def _tile(elements: int, columns: int) -> dict[str, int]:
    return {"ROWS": elements // columns, "COLUMNS": columns}


def _rows(block: int, one_block: bool) -> Iterator[Program]:
    """Yield the programs over rows, which hold a whole row or walk through it."""
    form, warps = f"{'row' if one_block else 'walks'}, block {block}", layout.warps(block)
    row = {"BLOCK": block, "ONE_BLOCK": one_block}
    yield Program(softmax.forward_kernel, row, form, warps)
    yield Program(softmax.backward_kernel, row, form, warps)
    for center in (True, False):
        norm = {"WEIGHT": True, "BIAS": center, "CENTER": center, **row}
        kind = f"{'layer' if center else 'rms'}, {form}"
        yield Program(norms.forward_kernel, {"EPS": 1e-5, "RESIDUAL": True, **norm}, kind, warps)
        held = min(block, norms.MAX_HELD)
        kind = f"{'layer' if center else 'rms'}, {form.replace(str(block), str(held))}"
        yield Program(
            norms.backward_kernel,
            {"GRAD_H": True, **norm, "BLOCK": held},
            kind,
            layout.warps(held),
        )


def kind_of(name: str, kernel: Any) -> str:
    """Return the type of a program's argument, by its name."""
    if name in INTEGERS:
        return "*i64"
    wide = {
        cross_entropy.backward_kernel: "grad_ptr",
        cross_entropy.sum_kernel: "out_ptr",
        adamw.squares_kernel: "out_ptr",
    }
    if name in STATISTICS or name == wide.get(kernel):
        return "*fp32"
    if name.endswith("_ptr"):
        return "*bf16"
    return "fp32" if name in NUMBERS else "i32"


def compiled(program: Program, target: str) -> Resources:
    """Compile a program for one target."""
    kernel, constants = program.kernel, dict(program.constants)
    if "COMPUTE" in kernel.arg_names:
        constants["COMPUTE"] = tl.float32
    signature = {name: "constexpr" if name in constants else kind_of(name, kernel) for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    sixteens = {places[name]: [["tt.divisibility", 16]] for name, type_ in signature.items() if type_[0] in "*i"}
    source = ASTSource(kernel, signature, {places[name]: value for name, value in constants.items()}, sixteens)
    if target.startswith("sm_"):
        where = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    else:
        where = GPUTarget("hip", target, 64)
    binary = triton.compile(source, target=where, options={"num_warps": program.warps})
    read = _of_nvidia if target.startswith("sm_") else _of_amd
    code = binary.asm["cubin" if target.startswith("sm_") else "hsaco"]
    registers, spilled, shared, is_wide = read(binary.asm)
    shared = max(shared, int(binary.metadata.shared))
    return Resources(program.name, program.form, program.warps, target, len(code), registers, spilled, shared, is_wide)


def _of_nvidia(asm: Mapping[str, Any]) -> tuple[int, int, int, bool]:
    """Assemble once more, and read what the assembler lists."""
    target = asm["ptx"].split(".target ")[1].split()[0].rstrip(",")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.ptx"
        path.write_text(asm["ptx"], encoding="utf-8")
        assembler = PTXAS if int(re.sub(r"\D", "", target)) < 100 else PTXAS.with_name("ptxas-blackwell")
        command = [str(assembler), "-v", f"--gpu-name={target}", str(path), "-o", str(Path(folder) / "program.cubin")]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", listed)))
    shared = sum(map(int, re.findall(r"(\d+) bytes smem", listed)))
    registers = max(map(int, re.findall(r"Used (\d+) registers", listed)))
    return registers, spilled, shared, ".global.v4.b32" in asm["ptx"]


def _of_amd(asm: Mapping[str, Any]) -> tuple[int, int, int, bool]:
    def number(name: str) -> int:
        return max(map(int, re.findall(rf"\.{name}:\s+(\d+)", asm["amdgcn"])))

    is_wide = re.search(r"(?:global|buffer)_(?:load|store)_dwordx4", asm["amdgcn"]) is not None
    spilled = number("vgpr_spill_count") + number("sgpr_spill_count")
    return number("vgpr_count"), spilled, number("group_segment_fixed_size"), is_wide


def table(found: Sequence[Resources]) -> str:
    """Return the rows of the documentation: for each target registers and shared memory, and spills where there are."""
    targets = list(dict.fromkeys(one.target for one in found))
    lines = [f"{HEAD} {' | '.join(targets)} |", f"|---|---|---|{'---|' * len(targets)}"]
    by_program: dict[tuple[str, str, int], dict[str, Resources]] = {}
    for one in found:
        by_program.setdefault((one.name, one.form, one.warps), {})[one.target] = one
    for (name, form, warps), on in by_program.items():
        lines.append(f"| `{name}` | {form} | {warps} | {' | '.join(_cell(on[t]) for t in targets)} |")
    return "\n".join(lines)


def _cell(one: Resources) -> str:
    spilled = f", **{one.spilled} spilled**" if one.spilled else ""
    return f"{one.registers}, {one.shared_bytes} B{spilled}"


def main() -> int:
    """Print the table; return 1 where a program spills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), help="such as sm_80 or gfx942")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table of a documentation file")
    asked = parser.parse_args()
    found = [compiled(program, target) for target in asked.targets for program in programs()]
    print(json.dumps([asdict(one) for one in found]) if asked.json else table(found))
    if asked.write:
        text = asked.write.read_text(encoding="utf-8")
        begin = text.index(HEAD)
        end = text.find("\n\n", begin)
        asked.write.write_text(text[:begin] + table(found) + (text[end:] if end >= 0 else "\n"), encoding="utf-8")
    return int(any(one.spilled for one in found))


if __name__ == "__main__":
    sys.exit(main())
