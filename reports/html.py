"""The diagnosis as one HTML file that needs nothing else: no network, no other file, scripts and styles inside it."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Final, NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from diagnose import __version__
from diagnose.answer.cards import trial_of, verdict
from diagnose.answer.screen import answer, finding_rows, shown_rank
from diagnose.model.charts import Gap, Picture
from diagnose.model.diagnosis import Diagnosis, Forecast, Prescription
from diagnose.model.limits import HOW_TRIED
from diagnose.model.rules import Legend
from diagnose.reports import code_tables, saving_words
from diagnose.reports import format as words
from diagnose.reports.charts import (
    NO_PICTURE,
    achieved,
    legible,
    loss_chart,
    memory_chart,
    roofline_chart,
    steps_chart,
    tones,
    trial_chart,
    trial_name,
)
from diagnose.reports.flow_chart import flow_chart, flow_rows, flow_title
from diagnose.reports.format import calls, confidence, line_of, said
from diagnose.reports.job_words import NO_JOB, job_sentences, left_out, worst_first
from diagnose.reports.json import to_dict
from diagnose.reports.language import ENGLISH, current, localized, tr, translated
from diagnose.reports.markdown import as_markdown
from diagnose.reports.rank_charts import aligned_chart, arrival_chart, lateness_chart, rank_chart
from diagnose.reports.rule_labels import (
    CATEGORIES,
    PARTS,
    PATH,
    PHASES,
    TABULAR,
    coloured,
    glossary,
    part_colours,
    shown_phases,
)
from diagnose.reports.saving_words import certainty_words, factor_range, measured_words
from diagnose.reports.text_charts import cause_shares
from diagnose.reports.text_findings import code_lines
from diagnose.reports.timeline_data import Data, flame_data, timeline_data
from diagnose.text.commands import command_line
from diagnose.text.kernel_names import shorten
from diagnose.text.plain_text import clean, middle, whole_line

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


def render(d: Diagnosis, *, charts: bool = True) -> str:
    """Return the page; without its scripts it has no timeline, and tables cannot be sorted."""
    whole, d = d, coloured(localized(d))
    first = answer(d)
    picture, job, again = d.picture or NO_PICTURE, d.job or NO_JOB, first.record_again is not None
    timeline = flames = None
    if charts:
        answered = dict.fromkeys([d.dominant, *(card.prescription.rule for card in first.cards)])
        in_order = sorted(picture.flames, key=lambda flame: [*answered, flame.cause].index(flame.cause))
        timeline, flames = timeline_data(picture, d.legends, _places(d)), flame_data(in_order, d.legends)
    # The table has more rows only if more ranks are late; the heat map shows every rank.
    causes, several, ranks = _causes(d), len(d.ranks) > 1, worst_first(d, 32)
    rows = finding_rows(d, first.each)
    # What fills less than a tenth of the step is folded.
    return render_page(
        "page.html",
        scripts=["columns.js", "timeline.js", "flame.js", "report.js"] if charts else [],
        data={
            "timeline": timeline,
            "flames": flames,
            "combinations": _combinations(d),
            "markdown": as_markdown(d, first),
            "diagnosis": to_dict(whole),
        }
        if charts
        else {},
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
        is_full=d.verdict == "kernel-bound" or d.dominant is None,
        has_combinations=d.waterfall is not None and len(d.waterfall.forecasts) > 2,
        fills_gaps=d.partition is None or d.partition.idle >= 0.1,
        timeline=timeline,
        flames=flames,
        flame_causes={flame.cause for flame in picture.flames if flames},
        part_styles={name: Legend(style.label, legible(style.colour)) for name, style in PARTS.items()},
        parts=_parts(d),
        answer_parts=_answer_parts(d, first.parts),
        phases=_phases(d),
        run_parts=_run_parts(d, first.run_share),
        causes=causes,
        rows=rows,
        noted=[row for row in rows[1:] if row.saves is not None and not row.finding.worth_ns],
        flows=_flows(d, picture),
        fixes=_by_rule(() if again else d.prescriptions),
        also=_by_rule(() if again else d.also_possible),
        how_tried=HOW_TRIED,
        by_hand=_by_hand(d),
        path_shares=_largest_first(d.critical_path.shares if d.critical_path is not None else {}),
        tone=lambda category: legible(PATH.get(category, CATEGORIES["operator"])),
        steps_chart=steps_chart(d),
        memory_chart=d.memory and memory_chart(d.memory),
        roofline_chart=d.roofline and roofline_chart(d.roofline),
        rank_chart=rank_chart(d.ranks, d.legends) if several else None,
        aligned_chart=job.aligned and aligned_chart(job.aligned),
        arrival_chart=arrival_chart(job),
        job_sentences=list(job_sentences(job)),
        shown_rank=shown_rank(d) if several else None,
        lateness_chart=lateness_chart(job, d.step_ns),
        ranks=ranks,
        ranks_left_out=left_out(d, ranks),
        trial_chart=trial_chart(d),
        loss_chart=loss_chart(d),
        after_headline=d.after and said(answer(d.after).headline),
        tones=tones(d),
        trial_name=trial_name,
        trial_verdict=verdict,
        measured=measured_words,
        certainty=certainty_words,
        trial_of=lambda fix: trial_of(d, fix.id),
        took_longer=first.refuted,
        calls=calls,
        code_lines=code_lines,
        code_aside=d.code and code_tables.aside(d.code),
        code_columns=code_tables.columns,
        code_cell=code_tables.cell,
        code_label=code_tables.label,
        code_short=code_tables.short,
        achieved=achieved,
        kernels=picture.kernels or d.kernels,
        gap_work=_gap_work(picture),
        glossary=glossary(d, [cause for cause, _ in causes]),
        samples=[(str(name).replace("_", " "), _reading(value)) for name, value in _simple(d.source.samples)],
        version=__version__,
    )


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


def _answer_parts(d: Diagnosis, shown: Sequence[tuple[str, float]]) -> list[tuple[str, str, str, float]]:
    """Return the parts of the answer's bar as (name, colour, label, share)."""
    colours = map(legible, part_colours(d, shown))
    return [(name, colour, name, share) for (name, share), colour in zip(shown, colours, strict=True)]


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
    return _largest_first(shares)


def _largest_first(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, share) for name, share in shares.items() if share > 0), key=lambda item: -item[1])


class FlowView(NamedTuple):
    """The data flow of one finding, drawn and in words."""

    title: str
    chart: Markup
    rows: list[str]


def _flows(d: Diagnosis, picture: Picture) -> dict[str, FlowView]:
    charts = {one.rule: flow_chart(one, d.legends.get(one.rule, Legend()).colour).render() for one in picture.flows}
    return {one.rule: FlowView(flow_title(one), charts[one.rule], flow_rows(one)) for one in picture.flows}


class GapWork(NamedTuple):
    """What the launching thread did in the gaps of one cause, in the step of the timeline."""

    cause: str
    detail: str
    place: str  # of the largest of these gaps
    num: int
    total_ns: int


def _gap_work(picture: Picture) -> list[GapWork]:
    found: dict[tuple[str, str], list[Gap]] = {}
    for gap in picture.gaps:
        found.setdefault((gap.cause, gap.detail), []).append(gap)
    rows = []
    for (cause, detail), gaps in found.items():
        gaps.sort(key=lambda gap: gap.start_ns - gap.end_ns)
        place = next(filter(None, (gap.place for gap in gaps)), "")
        rows.append(GapWork(cause, detail, place, len(gaps), sum(gap.end_ns - gap.start_ns for gap in gaps)))
    return sorted(rows, key=lambda row: -row.total_ns)[:40]


def _places(d: Diagnosis) -> dict[str, str]:
    """Return for each rule the line that most of its time comes from, where lines are known."""
    return {f.rule: line_of(f.where[0]) for f in d.findings if f.where and f.where[0].file}


def _by_rule(prescriptions: Sequence[Prescription]) -> dict[str, list[Prescription]]:
    found: dict[str, list[Prescription]] = {}
    for prescription in prescriptions:
        found.setdefault(prescription.rule, []).append(prescription)
    return found


def _simple(samples: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the readings of a few numbers or words; whole series are in the JSON and in the chart of step times."""
    return [(name, value) for name, value in samples.items() if _is_simple(value)]


def _is_simple(value: object) -> bool:
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return len(value) <= 4 and all(map(_is_simple, parts))
    return isinstance(value, int | float | str) and value != ""


def _reading(value: object) -> str:
    if isinstance(value, bool):
        return tr("yes") if value else tr("no")
    if isinstance(value, dict):
        return ", ".join(f"{str(k).replace('_', ' ')} {_reading(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_reading, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# The answer of ``what-if`` as a page.

REPLAYED = "predicted by a replay of the recorded steps, not measured"
BOUNDED = "bounded by what the cause takes of the run, not measured"
NOT_REPLAYED = "Not replayed: what is saved lies in steps that were not recorded, and their cost bounds it."


class Basis(NamedTuple):
    """What a prediction rests on."""

    error: float | None  # how far the replay misses the measured step; None where nothing was replayed
    is_doubtful: bool = False  # by too much to rely on it
    assumptions: tuple[str, ...] = ()  # what ranges rest on, one English sentence each
    memory: tuple[str, ...] = ()  # the peak, and what to compute again for a smaller one, in English


def render_forecasts(
    source: str, forecasts: Sequence[Forecast], path: Sequence[tuple[str, float]], basis: Basis
) -> str:
    """Return the page; the first forecast is the step as measured. Where nothing was replayed there is no ``path``."""
    error, is_doubtful, assumptions, memory = basis
    now, then = forecasts[0].step_ns, forecasts[-1].step_ns
    said_of_error = "Replayed with usual delays, the unchanged step comes out {error} off the measured one."
    if is_doubtful:
        said_of_error = said_of_error.removesuffix(".") + ": too much to rely on this."
    doubt = tr(said_of_error, error=words.percent(abs(error))) if error is not None else tr(NOT_REPLAYED)
    return render_page(
        "forecasts.html",
        scripts=["report.js"],
        data={},
        legends={},
        drawn=True,
        source=source,
        pill=tr("Prediction"),
        tone="warn" if is_doubtful else "info",
        headline=_forecast_headline(now, then, len(forecasts) - 1),
        forecasts=forecasts,
        longest=max(f.high_ns for f in forecasts),
        path=path,
        memory=list(map(translated, memory)),
        path_tone=lambda category: legible(PATH.get(category, CATEGORIES["operator"])),
        is_doubtful=is_doubtful,
        basis=tr(BOUNDED if error is None else REPLAYED),
        doubt=" ".join([*map(translated, assumptions), doubt]),
    )


def _forecast_headline(now: float, then: float, num: int) -> str:
    if not num or then <= 0:
        return tr("The step takes {time}", time=words.duration(now))
    return f"{words.duration(now)} → {words.duration(then)}, {tr('{factor} × as fast', factor=f'{now / then:.2f}')}"
