"""The diagnosis as one HTML file that needs nothing else: no network, no other file, scripts and styles inside it."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from diagnose.answer.cards import trial_of, verdict
from diagnose.answer.screen import answer, finding_rows, shown_rank
from diagnose.model.arrays import Ints
from diagnose.model.charts import Flame, Gap, Picture, Span, SpanTable
from diagnose.model.diagnosis import Diagnosis, Prescription
from diagnose.model.intervals import among, distinct
from diagnose.model.locations import FRAME
from diagnose.model.rules import Legend
from diagnose.model.trial_methods import HOW_TRIED
from diagnose.reports import code_tables, saving_words
from diagnose.reports import format as words
from diagnose.reports.charts import (
    achieved,
    aligned_chart,
    arrival_chart,
    lateness_chart,
    legible,
    loss_chart,
    memory_chart,
    rank_chart,
    roofline_chart,
    steps_chart,
    tones,
    trial_chart,
    trial_name,
)
from diagnose.reports.factors import factor_range
from diagnose.reports.flow_chart import flow_chart, flow_rows, flow_title
from diagnose.reports.format import confidence, line_of, said
from diagnose.reports.glossary import glossary
from diagnose.reports.job_words import job_sentences, left_out, worst_first
from diagnose.reports.json import to_dict
from diagnose.reports.language import ENGLISH, current, tr, translated
from diagnose.reports.localized import localized
from diagnose.reports.markdown import as_markdown
from diagnose.reports.measured import certainty_words, measured_words
from diagnose.reports.rule_labels import CATEGORIES, FAMILY_COLOURS, PARTS, PATH, PHASES, TABULAR, shown_phases
from diagnose.reports.text import calls
from diagnose.reports.text_charts import cause_shares
from diagnose.text.commands import command_line
from diagnose.text.kernel_names import shorten
from diagnose.text.plain_text import clean, middle, one_line, whole_line

__all__ = [
    "LARGEST",
    "Data",
    "environment",
    "flame_data",
    "frame_text",
    "levels",
    "packed",
    "render",
    "render_page",
    "texts_of_script",
    "timeline_data",
]

# The timeline of one step as a page carries it: columns of integers, packed, and the texts that they point to.
#
# Each column holds unsigned 32-bit integers. Its four bytes are stored apart, all lowest bytes first, since the high
# bytes hardly vary; then everything is compressed and written in base64.

Data: TypeAlias = dict[str, object]

MAX_LEVELS = 8  # rows of a lane whose spans carry no nesting; what nests deeper shares the last one
TIMELINE_DATA_MAX_NAME_CHARS = 70  # of a name in a bar and in its description
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
            short = (
                shorten(plain, TIMELINE_DATA_MAX_NAME_CHARS)
                if is_kernel
                else middle(plain, TIMELINE_DATA_MAX_NAME_CHARS)
            )
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


# The flame graphs of the causes as a page carries them: columns of integers, packed, and the names they point to.

KINDS = ("own", "library", "module", "operator", "annotation", "runtime")
MAX_NAME_CHARS = 90
NOTES = {
    "scaled": "Frames were recorded in steps of their own, which are slower; their times are brought to those of the "
    "timing window.",
    "sampled": "Operators and calls as the timing window has them; where none ran, the lines that the sampler saw.",
    "operators": "Operators and calls as the timing window has them; Python frames were not recorded.",
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
    short = middle(frame_text(plain), MAX_NAME_CHARS)
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


# The frame of every page: one file that needs nothing else, with its styles, its scripts and their hashes.
#
# Everything is escaped by the templates; the page's content security policy lets only the scripts run whose hashes it
# names and lets nothing be loaded, so that a string which were to slip through could still do nothing.

_JOINTS: Final = re.compile(r"(?<=[_/.,#<:])(?=\w)|(?<=[a-z])(?=[A-Z])")
_SHOWN_BY_SCRIPT: Final = re.compile(r'\btr\("([^"]+)"')
_KEY: Final = re.compile(r"\[([^\]]+)\]")
HTML_LANGUAGES: Final = {"en": "en", "zh": "zh-Hans"}
_IN_SCRIPT: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render_page(
    template: str,
    *,
    scripts: Sequence[str],
    data: Mapping[str, object],
    legends: Mapping[str, Legend],
    **values: object,
) -> str:
    """Return the page that a template makes; ``scripts`` are files of the templates' folder."""
    sources = [_script(_resource(name)) for name in (["words.js", *scripts] if scripts else ())]
    if current() != ENGLISH:
        data = {**data, "words": {text: tr(text) for source in sources for text in texts_of_script(source)}}
    page = (
        environment()
        .get_template(template)
        .render(
            html_lang=HTML_LANGUAGES[current()],
            colour=lambda cause: legible(legends.get(cause, Legend()).colour),
            label=lambda cause: legends.get(cause, Legend()).label,
            style=Markup(_resource("report.css")),
            scripts=[Markup(source) for source in sources],
            hashes=Markup(" ".join(map(_hash, sources)) or "'none'"),
            data=Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_IN_SCRIPT)),
            **values,
        )
    )
    return page + "\n"


def texts_of_script(source: str) -> list[str]:
    """Return what a script shows: the texts that it gives to ``tr``."""
    return _SHOWN_BY_SCRIPT.findall(source)


@cache
def environment() -> Environment:
    """Return what turns templates into pages: every value is escaped, and control characters become visible."""
    made = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"_": _text, "keys": _keys}
    made.filters |= {
        "tr": translated,
        "duration": words.duration,
        "percent": words.percent,
        "place": words.place,
        "line": words.line_of,
        "plural": words.plural,
        "ranks": words.ranks,
        "said": words.said,
        "shorten": lambda name: shorten(clean(name)),
        "breakable": _breakable,
        "bytes": words.size,
        "flops": words.flops,
        "whole": lambda text: Markup(escape(whole_line(text))),
        "word": lambda text: Markup(escape(command_line([text]))),
        "middle": lambda text, limit: middle(clean(text), limit),
    }
    return made


def _text(english: str, **values: object) -> Markup:
    """Return a text of the page in the current language; what stands at its placeholders is escaped."""
    shown = {name: value if isinstance(value, Markup) else escape(clean(str(value))) for name, value in values.items()}
    return Markup(tr(english, **shown))


def _keys(english: str) -> Markup:
    """Return a text in which [x] is the key x."""
    return Markup(_KEY.sub(r"<kbd>\1</kbd>", str(escape(tr(english)))))


def _finalize(value: object) -> object:
    """Take control characters out of every text, on its way into the page."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(text: str) -> Markup:
    """Return a long name that a narrow column may break after its punctuation and between its words."""
    return Markup("<wbr>").join(_JOINTS.split(clean(text)))


def _resource(name: str) -> str:
    return resources.files("diagnose.reports").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """Return a script as it can stand in a page, with the line ends that a browser hashes."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


MAX_GAP_WORK = 40  # rows of what filled the gaps
MAX_RANKS = 32  # rows of the table, more only where more are late; the heat map shows every rank


def render(d: Diagnosis, *, charts: bool = True) -> str:
    """Return the page; without its scripts it has no timeline, and tables cannot be sorted."""
    whole, d = d, localized(d)
    first = answer(d)
    timeline = timeline_data(d.picture, d.legends, _places(d)) if charts and d.picture is not None else None
    flames = flame_data(d.picture.flames, d.legends) if charts and d.picture is not None else None
    return render_page(
        "page.html",
        scripts=["columns.js", "timeline.js", "flame.js", "report.js"] if charts else [],
        data=_data(whole, as_markdown(d, first), timeline, flames) if charts else {},
        legends=d.legends,
        d=d,
        a=first,
        gain=lambda fix: saving_words.gain(fix, first.each),
        behind=saving_words.behind,
        factor_range=factor_range,
        confidence=confidence,
        saving=saving_words.saving,
        unpredicted=saving_words.unpredicted,
        drawn=charts,
        timeline=timeline,
        flames=flames,
        flame_causes={flame.cause for flame in d.picture.flames} if flames and d.picture is not None else set(),
        part_styles={name: Legend(style.label, legible(style.colour)) for name, style in PARTS.items()},
        parts=_parts(d),
        answer_parts=_answer_parts(first.parts),
        phases=_phases(d),
        run_parts=_run_parts(d, first.run_share),
        causes=_causes(d),
        rows=finding_rows(d, first.each),
        flows=_flows(d),
        fixes=_by_rule(d.prescriptions) if first.record_again is None else {},
        also=_by_rule(d.also_possible) if first.record_again is None else {},
        how_tried=HOW_TRIED,
        by_hand=_by_hand(d),
        path_shares=_path_shares(d),
        tone=lambda category: legible(PATH.get(category, CATEGORIES["operator"])),
        steps_chart=steps_chart(d),
        memory_chart=memory_chart(d.memory) if d.memory is not None else None,
        roofline_chart=roofline_chart(d.roofline) if d.roofline is not None else None,
        rank_chart=rank_chart(d.ranks, d.legends) if len(d.ranks) > 1 else None,
        aligned_chart=aligned_chart(d.job.aligned) if d.job is not None and d.job.aligned is not None else None,
        arrival_chart=arrival_chart(d.job) if d.job is not None else None,
        job_sentences=list(job_sentences(d.job)) if d.job is not None else [],
        shown_rank=shown_rank(d) if len(d.ranks) > 1 else None,
        lateness_chart=lateness_chart(d.job, d.step_ns) if d.job is not None else None,
        ranks=(ranks := worst_first(d, MAX_RANKS)),
        ranks_left_out=left_out(d, ranks),
        trial_chart=trial_chart(d),
        loss_chart=loss_chart(d),
        after_headline=said(answer(d.after).headline) if d.after is not None else "",
        tones=tones(d),
        trial_name=trial_name,
        trial_verdict=verdict,
        measured=measured_words,
        certainty=certainty_words,
        trial_of=lambda fix: trial_of(d, fix.id),
        took_longer=first.refuted,
        calls=calls,
        code_aside=code_tables.aside(d.code) if d.code is not None else "",
        code_columns=code_tables.columns,
        code_cell=code_tables.cell,
        code_label=code_tables.label,
        code_short=code_tables.short,
        achieved=achieved,
        kernels=(d.picture.kernels if d.picture is not None else ()) or d.kernels,
        gap_work=_gap_work(d),
        glossary=glossary(d, [cause for cause, _ in _causes(d)]),
        samples=_samples(d),
    )


def _data(d: Diagnosis, markdown: str, timeline: Data | None, flames: Data | None) -> Data:
    """Return what the scripts need: what they draw, the combinations of changes, what the buttons copy and save."""
    return {
        "timeline": timeline,
        "flames": flames,
        "combinations": _combinations(d),
        "markdown": markdown,
        "diagnosis": to_dict(d),
    }


def _combinations(d: Diagnosis) -> Data | None:
    """Return the step of every combination of changes, its least and most, by the bits of the changes in it; ms.

    Of a wide range the step itself is None.
    """
    w = d.waterfall
    if w is None or len(w.combinations) < 2:
        return None
    return {
        "now": d.step_ns / 1e6,
        "steps": [[f.step_ns / 1e6 if f.is_narrow else None, f.low_ns / 1e6, f.high_ns / 1e6] for f in w.combinations],
    }


def _by_hand(d: Diagnosis) -> list[str]:
    """Return the ids of the changes that are predicted and that no trial makes."""
    listed = d.waterfall.forecasts[-1].ids if d.waterfall is not None else ()
    methods = {p.id: p.trial_method for p in d.prescriptions}
    return [name for name in listed if methods.get(name) == "by hand"]


def _parts(d: Diagnosis) -> list[tuple[str, str, str, float]]:
    """Return the parts of the step as (name, colour, label, share), without those that have no share."""
    if d.partition is None:
        return []
    shares = asdict(d.partition)
    return [
        (TABULAR.get(name, name), legible(style.colour), style.label, shares[name])
        for name, style in PARTS.items()
        if shares[name] > 0
    ]


def _phases(d: Diagnosis) -> list[tuple[str, str, str, float]]:
    """Return the phases of the run as (name, colour, label, share), where there is more than one worth showing."""
    styles = {name: PHASES.get(name, Legend()) for name in shown_phases(d.phases)}
    return [(name, legible(style.colour), style.label, d.phases[name]) for name, style in styles.items()]


def _answer_parts(shown: Sequence[tuple[str, float]]) -> list[tuple[str, str, str, float]]:
    """Return the parts of the answer's bar as (name, colour, label, share); what has no style is the device's work."""
    styles = {TABULAR.get(name, name): style for name, style in PARTS.items()}
    work = iter(FAMILY_COLOURS * len(shown))
    colours = [styles[name].colour if name in styles else next(work) for name, _ in shown]
    return [(name, legible(colour), name, share) for (name, share), colour in zip(shown, colours, strict=True)]


def _run_parts(d: Diagnosis, share: float | None) -> list[tuple[str, str, str, float]]:
    """Return what the finding that answers takes of the run, and the rest, as (name, colour, label, share)."""
    if share is None or d.dominant is None or not d.watched_steps:
        return []
    legend = d.legends.get(d.dominant, Legend())
    usual = tr("the usual steps")
    return [
        (legend.label or d.dominant, legible(legend.colour), legend.label, min(share, 1.0)),
        (usual, legible(PHASES["training"].colour), usual, max(1 - share, 0.0)),
    ]


def _causes(d: Diagnosis) -> list[tuple[str, float]]:
    """Return what the device's idle time was due to; without a device, what the host was at."""
    shares = d.idle_by_cause
    if d.partition is None and d.picture is not None and d.picture.step_ns > 0:
        shares = d.host_by_cause or cause_shares(d.picture)
    return sorted(((cause, share) for cause, share in shares.items() if share > 0), key=lambda item: -item[1])


def _path_shares(d: Diagnosis) -> list[tuple[str, float]]:
    """Return what the critical path consists of, the largest first."""
    shares = d.critical_path.shares if d.critical_path is not None else {}
    return sorted(((name, share) for name, share in shares.items() if share > 0), key=lambda item: -item[1])


class FlowView(NamedTuple):
    """The data flow of one finding, drawn and in words."""

    title: str
    chart: Markup
    rows: list[str]


def _flows(d: Diagnosis) -> dict[str, FlowView]:
    shown = d.picture.flows if d.picture is not None else ()
    return {
        one.rule: FlowView(
            flow_title(one), flow_chart(one, d.legends.get(one.rule, Legend()).colour).render(), flow_rows(one)
        )
        for one in shown
    }


class GapWork(NamedTuple):
    """What the launching thread did in the gaps of one cause, in the step of the timeline."""

    cause: str
    detail: str
    place: str  # of the largest of these gaps
    num: int
    total_ns: int


def _gap_work(d: Diagnosis) -> list[GapWork]:
    found: dict[tuple[str, str], list[Gap]] = {}
    for gap in d.picture.gaps if d.picture is not None else ():
        found.setdefault((gap.cause, gap.detail), []).append(gap)
    rows = []
    for (cause, detail), gaps in found.items():
        gaps.sort(key=lambda gap: gap.start_ns - gap.end_ns)
        place = next((gap.place for gap in gaps if gap.place), "")
        rows.append(GapWork(cause, detail, place, len(gaps), sum(gap.end_ns - gap.start_ns for gap in gaps)))
    return sorted(rows, key=lambda row: -row.total_ns)[:MAX_GAP_WORK]


def _places(d: Diagnosis) -> dict[str, str]:
    """Return for each rule the line that most of its time comes from, where lines are known."""
    return {f.rule: line_of(f.where[0]) for f in d.findings if f.where and f.where[0].file}


def _by_rule(prescriptions: Sequence[Prescription]) -> dict[str, list[Prescription]]:
    found: dict[str, list[Prescription]] = {}
    for prescription in prescriptions:
        found.setdefault(prescription.rule, []).append(prescription)
    return found


def _samples(d: Diagnosis) -> list[tuple[str, str]]:
    """Return the readings beside the recording as words: numbers with their unit as their names have it."""
    return [(str(name).replace("_", " "), _reading(value)) for name, value in d.source.samples.items()]


def _reading(value: object) -> str:
    if isinstance(value, bool):
        return tr("yes") if value else tr("no")
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{str(k).replace('_', ' ')} {_reading(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_reading, value[:8])) + (
            " " + tr("and {num} more", num=len(value) - 8) if len(value) > 8 else ""
        )
    return tr("not known") if value is None else str(value)
