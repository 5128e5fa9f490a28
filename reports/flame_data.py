"""The flame graphs of the causes as a page carries them: columns of integers, packed, and the names they point to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.charts import Flame
from diagnose.model.locations import FRAME
from diagnose.model.rules import Legend
from diagnose.reports.colours import legible
from diagnose.reports.language import translated
from diagnose.reports.timeline_data import LARGEST, Data, packed
from diagnose.text.patterns import lazy_pattern
from diagnose.text.plain_text import middle, one_line

__all__ = ["flame_data", "frame_text"]

KINDS = ("own", "library", "module", "operator", "annotation", "runtime")
MAX_NAME_CHARS = 90
NOTES = {
    "scaled": "Frames were recorded in steps of their own, which are slower; their times are brought to those of the "
    "timing window.",
    "sampled": "Operators and calls as the timing window has them; where none ran, the lines that the sampler saw.",
    "operators": "Operators and calls as the timing window has them; Python frames were not recorded.",
    "stacks": "",
}
_BUILT_IN = lazy_pattern(r"^<built-in (?:method|function) (?P<name>[^ >]+)(?: of (?P<of>.+?)(?: object)?)?>$")


def flame_data(flames: Sequence[Flame], legends: Mapping[str, Legend]) -> Data | None:
    """Return what the page draws, None where there is nothing. Times are per step, in units of ``unit`` ns."""
    if not flames:
        return None
    ids: dict[tuple[str, str], int] = {}
    boxes = [(ids.setdefault((f.name, f.kind), len(ids)), f.depth, f.time_ns) for flame in flames for f in flame.frames]
    columns = np.array(boxes, np.int64).reshape(-1, 3)
    unit = max((flame.time_ns for flame in flames), default=0) // LARGEST + 1
    return {
        "unit": unit,
        "kinds": KINDS,
        "names": [_shown(name, kind) for name, kind in ids],
        "causes": [
            {
                "name": one_line(flame.cause),
                "label": legends.get(flame.cause, Legend()).label,
                "colour": legible(legends.get(flame.cause, Legend()).colour),
                "time": flame.time_ns / 1e6,
                "note": translated(NOTES[_source(flame)]),
                "count": len(flame.frames),
            }
            for flame in flames
        ],
        "packed": packed([columns[:, 0], columns[:, 1], columns[:, 2] // unit]),
    }


def _shown(name: str, kind: str) -> list[object]:
    """Return a name as its box has it, its kind, and the name in full where that differs."""
    plain = one_line(name)
    short = middle(frame_text(plain), MAX_NAME_CHARS)
    found: list[object] = [short, KINDS.index(kind) if kind in KINDS else KINDS.index("operator")]
    return found if short == plain else [*found, plain]


def frame_text(name: str) -> str:
    """Return "forward models.py:110" of a frame "/project/models.py(110): forward", and of a built-in its name."""
    if match := FRAME.match(name):
        return f"{match['function']} {match['file'].rpartition('/')[2]}:{match['line']}"
    if match := _BUILT_IN.match(name):
        return (
            f"{match['of']}.{match['name']}" if match["of"] and match["of"] != "type" else f"{match['name']} (built-in)"
        )
    return name


def _source(flame: Flame) -> str:
    """Return which of NOTES is true of a flame graph."""
    kinds = {frame.kind for frame in flame.frames}
    if flame.is_scaled:
        return "scaled"
    return "stacks" if kinds & {"library", "module"} else "sampled" if "own" in kinds else "operators"
