"""Writes the tables for pages/ from what evaluation/gpu_day kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["write_reports"]

MAX_TIMING_COST = 0.05  # of a step of 5 ms


def write_reports(work: Path, folder: Path) -> list[Path]:
    """Write overhead.md, agreement.md and kernels.md, each where its stage has results; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "overhead.md": _overhead(_told(work / "overhead")),
        "agreement.md": _agreement(_told(work / "agreement")),
        "kernels.md": _kernels(work / "kernels"),
    }
    written = []
    for name, text in pages.items():
        if text:
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    return written


def _outcomes(folder: Path) -> list[Mapping[str, Any]]:
    found = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.outcome.json"))]
    return [outcome for outcome in found if outcome["code"] in (0, 1)]


def _told(folder: Path) -> list[Mapping[str, Any]]:
    """Return what the pieces of a stage printed as JSON."""
    return [json.loads(outcome["out"]) for outcome in _outcomes(folder)]


def _overhead(rows: list[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    lines = [
        "# What recording costs",
        "",
        "Made by `evaluation/gpu_day overhead` and `evaluation/gpu_day --report FOLDER`: a stack of linear layers",
        "whose steps are about as long as asked; medians of one run each. The timing window is where times come from,",
        "the attribution window where names and lines come from. Bar: the timing window at most "
        f"{MAX_TIMING_COST:.0%} at 5 ms.",
        "",
        "| step asked, ms | launches | unprofiled, ms | light, ms | attribution, ms | light | attribution | sampler |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: float(row["asked_ms"])):
        launches = row["launches"]
        lines.append(
            f"| {row['asked_ms']:g} | {'–' if launches is None else f'{launches:.0f}'} | {row['unprofiled']:.3f} "
            f"| {row['light']:.3f} | {row['attribution']:.3f} | {row['longer']['light']:+.1%} "
            f"| {row['longer']['attribution']:+.1%} | {row['sampler'].get('cost_share', 0):.1%} of a core |"
        )
    return "\n".join([*lines, ""])


def _agreement(rows: list[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    last = rows[-1]
    lines = [
        "# Do the numbers agree",
        "",
        f"Made by `evaluation/gpu_day agreement` on one {last['device']}, torch {last['torch']}.",
        "",
        "| what | measured otherwise | by the capture | apart |",
        "|---|---|---|---|",
    ]
    names = {
        "step_ms": ("step, ms: CUDA events", "events"),
        "product_ms": ("one large product, ms: CUDA events", "events"),
        "peak_bytes": ("peak memory, bytes: allocator", "allocator"),
    }
    for key, (name, theirs) in names.items():
        other, ours = last[key][theirs], last[key]["capture"]
        apart = "–" if ours is None or not other else f"{ours / other - 1:+.1%}"
        lines.append(f"| {name} | {other:g} | {'–' if ours is None else f'{ours:g}'} | {apart} |")
    busy = last["busy"]
    lines.append(f"| busy, % of the time: NVML | {busy['nvml_percent']} | {busy['capture_percent']} | – |")
    return "\n".join([*lines, ""])


def _kernels(folder: Path) -> str:
    outcomes = _outcomes(folder)
    if not outcomes:
        return ""
    parts = ["# Kernels and remedies on a GPU", "", "Made by `evaluation/gpu_day kernels`.", ""]
    for outcome in outcomes:
        parts += [f"## {outcome['name']}", "", outcome["out"].strip(), ""]
    return "\n".join(parts)
