"""The timeline of one step and the flame graphs of the causes, as a page carries them and its scripts draw them.

Columns of integers are packed, and the texts that they point to lie beside them. Each column holds unsigned 32-bit
integers. Its four bytes are stored apart, all lowest bytes first, since the high bytes hardly vary; then everything is
compressed and written in base64.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints
from diagnose.model.charts import Flame, Gap, Picture, Span, SpanTable
from diagnose.model.intervals import among, distinct
from diagnose.model.locations import FRAME
from diagnose.model.rules import Legend
from diagnose.reports.charts import legible
from diagnose.reports.language import translated
from diagnose.reports.rule_labels import CATEGORIES
from diagnose.text.kernel_names import shorten
from diagnose.text.plain_text import middle, one_line

Data: TypeAlias = dict[str, object]

MAX_LEVELS = 8  # rows of a lane whose spans carry no nesting; what nests deeper shares the last one
LARGEST = 2**32 - 1
DEVICE = frozenset({"compute", "communication", "copy"})
_NESTED = r" \+(\d+)$"  # "host 7 +1" is what nests in "host 7"
_DIGITS = r"(\d+)"


def timeline_data(
    picture: Picture, legends: Mapping[str, Legend], places: Mapping[str, str] | None = None
) -> Data | None:
    """Return what the page draws, None where there is nothing. Times are in units of ``unit`` ns.

    ``places`` holds the line that most gaps of a cause come from.
    """
    if picture.step_ns <= 0 or not (len(picture.spans) or picture.gaps or picture.depth):
        return None
    unit = picture.step_ns // LARGEST + 1
    table = picture.spans if isinstance(picture.spans, SpanTable) else _table(picture.spans)
    lanes, rows = _lanes(table, picture.titles)
    row = rows[table.lane] if len(table) else np.zeros(0, np.int64)
    order = np.lexsort((-table.end, table.start, row))
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    row, start = row[order], table.start[order] // unit
    names = _Names()
    of_device = set(distinct(table.name[among(table.category, _device_categories(table))]).tolist())
    ids = np.array([names.id(n, is_kernel=i in of_device) for i, n in enumerate(table.names)] or [0], np.int64)
    causes = list(dict.fromkeys(gap.cause for gap in _by_length(picture.gaps)))
    gaps = _gap_columns(picture.gaps, causes, names, unit)
    depth = np.array(picture.depth, np.int64).reshape(-1, 2)
    columns = [
        _steps(start, row),
        (table.end[order] - table.start[order]) // unit,
        ids[table.name[order]],
        table.category[order],
        _zigzag(np.diff(place[table.launch[order]], prepend=0)),
        *gaps,
        _steps(depth[:, 0] // unit, np.zeros(len(depth), np.int64)),
        depth[:, 1],
    ]
    counts = np.bincount(row, minlength=sum(int(str(lane["rows"])) for lane in lanes))
    return {
        "step": picture.step,
        "unit": unit,
        "length": picture.step_ns // unit,
        "lanes": lanes,
        "rows": counts.tolist(),
        "names": names.texts,
        "categories": [
            {
                "name": one_line(c),
                "label": translated(one_line(c)),
                "colour": legible(CATEGORIES.get(c, CATEGORIES["operator"])),
            }
            for c in table.categories
        ],
        "causes": [
            {
                "name": one_line(c),
                "label": legends.get(c, Legend()).label,
                "place": one_line((places or {}).get(c, "")),
                "colour": legible(legends.get(c, Legend()).colour),
            }
            for c in causes
        ],
        "counts": [len(table), len(picture.gaps), len(depth)],
        "packed": packed(columns),
    }


class _Names:
    """Texts that many bars share, each once: short, and in full where that differs."""

    def __init__(self) -> None:
        self.texts: list[list[str]] = []
        self._ids: dict[str, int] = {}

    def id(self, name: str, *, is_kernel: bool = False) -> int:
        if name not in self._ids:
            plain = one_line(name)
            short = (shorten if is_kernel else middle)(plain, 70)  # of a name in a bar and in its description
            self._ids[name] = len(self.texts)
            self.texts.append([short] if short == plain else [short, plain])
        return self._ids[name]


def _device_categories(table: SpanTable) -> list[int]:
    return [i for i, category in enumerate(table.categories) if category in DEVICE]


def _by_length(gaps: Sequence[Gap]) -> list[Gap]:
    total: dict[str, int] = {}
    for gap in gaps:
        total[gap.cause] = total.get(gap.cause, 0) + gap.end_ns - gap.start_ns
    return sorted(gaps, key=lambda gap: -total[gap.cause])


def _gap_columns(gaps: Sequence[Gap], causes: Sequence[str], names: _Names, unit: int) -> list[Ints]:
    gaps = sorted(gaps, key=lambda gap: gap.start_ns)
    start = np.array([gap.start_ns for gap in gaps], np.int64) // unit
    rank = {cause: i for i, cause in enumerate(causes)}
    return [
        _steps(start, np.zeros(len(gaps), np.int64)),
        np.array([gap.end_ns - gap.start_ns for gap in gaps], np.int64) // unit,
        np.array([rank[gap.cause] for gap in gaps], np.int64),
        np.array([names.id(gap.detail) for gap in gaps], np.int64),
        np.array([names.id(gap.place) for gap in gaps], np.int64),
    ]


def _lanes(table: SpanTable, titles: Mapping[str, str]) -> tuple[list[Data], Ints]:
    """Return the lanes, devices before the host, and for each lane of the table its row from the top."""
    bases = [re.sub(_NESTED, "", lane) for lane in table.lanes]
    depths = [int(m[1][:6]) if (m := re.search(_NESTED, lane)) else 0 for lane in table.lanes]
    on_device = among(table.category, _device_categories(table))
    devices = {bases[i] for i in distinct(table.lane[on_device]).tolist()}
    lanes: list[Data] = []
    first: dict[str, int] = {}
    used = 0
    for base in sorted(dict.fromkeys(bases), key=lambda name: (name not in devices, _natural(name))):
        rows = 1 + max(depth for b, depth in zip(bases, depths, strict=True) if b == base)
        label = one_line(titles.get(base, base))
        lanes.append({"label": middle(translated(label), 60), "row": used, "rows": rows, "device": base in devices})
        first[base] = used
        used += rows
    return lanes, np.array([first[b] + depth for b, depth in zip(bases, depths, strict=True)] or [0], np.int64)


def _table(spans: Sequence[Span]) -> SpanTable:
    """Return the columns of spans; on the host those that overlap get rows of their own."""
    members: dict[str, list[int]] = {}
    for i, span in enumerate(spans):
        members.setdefault(re.sub(_NESTED, "", span.lane), []).append(i)
    lane_of = [""] * len(spans)
    for base, found in members.items():
        flat = any(spans[i].category in DEVICE for i in found)  # a stream runs one task at a time
        nesting = [0] * len(found) if flat else levels([(spans[i].start_ns, spans[i].end_ns) for i in found])
        for i, level in zip(found, nesting, strict=True):
            lane_of[i] = f"{base} +{level}" if level else base
    lanes, names, categories = (
        list(dict.fromkeys(v)) for v in (lane_of, (s.name for s in spans), (s.category for s in spans))
    )
    lane_ids, name_ids, category_ids = ({v: i for i, v in enumerate(x)} for x in (lanes, names, categories))
    return SpanTable(
        tuple(lanes),
        tuple(names),
        tuple(categories),
        lane=np.array([lane_ids[lane] for lane in lane_of], np.int64),
        start=np.array([s.start_ns for s in spans], np.int64),
        end=np.array([s.end_ns for s in spans], np.int64),
        name=np.array([name_ids[s.name] for s in spans], np.int64),
        category=np.array([category_ids[s.category] for s in spans], np.int64),
        launch=np.full(len(spans), -1, np.int64),
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Stream 7 comes before stream 20."""
    return [(int(part[:18]) if part.isdecimal() else -1, part) for part in re.split(_DIGITS, name)]


def levels(intervals: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each interval the first row in which it overlaps nothing before it; at most eight rows."""
    found = [0] * len(intervals)
    ends: list[int] = []
    for index in sorted(range(len(intervals)), key=lambda i: (intervals[i][0], -intervals[i][1])):
        start, end = intervals[index]
        level = next((row for row, busy_until in enumerate(ends) if busy_until <= start), len(ends))
        if level == len(ends) < MAX_LEVELS:
            ends.append(end)
        level = min(level, MAX_LEVELS - 1)
        ends[level] = max(ends[level], end)
        found[index] = level
    return found


def _steps(values: Ints, groups: Ints) -> Ints:
    """Return each value less the one before it in its group: small numbers, which pack well."""
    if not len(values):
        return values
    differences = np.diff(values, prepend=0)
    is_first = np.append(True, groups[1:] != groups[:-1])
    differences[is_first] = values[is_first]
    return differences


def _zigzag(values: Ints) -> Ints:
    return np.where(values < 0, -2 * values - 1, 2 * values)


def packed(columns: Sequence[npt.NDArray[np.int64]]) -> str:
    """Return columns of one page as text; ``columns.js`` unpacks them."""
    parts = [np.asarray(c, np.int64).astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes() for c in columns]
    return b64encode(zlib.compress(b"".join(parts), 9)).decode()


# The flame graphs.

KINDS = ("own", "library", "module", "operator", "annotation", "runtime")
NOTES = {
    "scaled": "Frames were recorded in separate steps, which are slower; their times are brought to those of the "
    "timing window.",
    "sampled": "Operators and calls of the timing window; if none ran, the lines that the sampler saw.",
    "operators": "Operators and calls of the timing window; Python frames were not recorded.",
    "stacks": "",
}
_BUILT_IN = r"^<built-in (?:method|function) (?P<name>[^ >]+)(?: of (?P<of>.+?)(?: object)?)?>$"


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
    short = middle(frame_text(plain), 90)
    found: list[object] = [short, KINDS.index(kind) if kind in KINDS else KINDS.index("operator")]
    return found if short == plain else [*found, plain]


def frame_text(name: str) -> str:
    """Return "forward models.py:110" of a frame "/project/models.py(110): forward", and of a built-in its name."""
    if match := FRAME.match(name):
        return f"{match['function']} {match['file'].rpartition('/')[2]}:{match['line']}"
    if match := re.match(_BUILT_IN, name):
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
