"""The diagnosis as one HTML file that needs nothing else: no network, no other file, scripts and styles inside it.

Everything is escaped by the templates; the page's content security policy lets only the scripts run whose hashes it
names and lets nothing be loaded, so that a string which were to slip through could still do nothing.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from importlib import resources
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from diagnose.model.diagnosis import Diagnosis, Prescription
from diagnose.model.rules import Legend
from diagnose.reports import format as words
from diagnose.reports.charts import chart_data
from diagnose.reports.kernel_names import shorten
from diagnose.reports.rule_labels import CATEGORIES, PARTS, PATH, PHASES, VERDICTS, shown_phases
from diagnose.reports.text_charts import cause_shares
from diagnose.reports.text_kernels import calls
from diagnose.reports.trial_charts import trial_name, verdict
from diagnose.text.plain_text import clean, middle

__all__ = ["render"]

_JOINTS: Final = re.compile(r"(?<=[_/.,#<:])(?=\w)|(?<=[a-z])(?=[A-Z])")
_IN_SCRIPT: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(d: Diagnosis, *, charts: bool = True) -> str:
    """Return the page; without its charts it has no script and some ten kilobytes."""
    template = _environment(d.legends).get_template("page.html")
    data = chart_data(d)
    scripts = _scripts() if charts else []
    page = template.render(
        d=d,
        data=Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_IN_SCRIPT)),
        style=Markup(_resource("report.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=Markup(" ".join(map(_hash, scripts)) or "'none'"),
        verdict_words=VERDICTS[d.verdict],
        part_styles=PARTS,
        parts=_parts(d),
        phases=_phases(d),
        causes=_causes(d),
        fixes=_by_rule(d.prescriptions),
        also=_by_rule(d.also_possible),
        path_shares=_path_shares(d),
        charts=data["trials"],
        drawn=charts,
    )
    return page + "\n"


def _scripts() -> list[str]:
    from plotly.offline import get_plotlyjs

    return [_script(get_plotlyjs()), _script(_resource("report.js"))]


def _environment(legends: Mapping[str, Legend]) -> Environment:
    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": words.duration,
        "percent": words.percent,
        "place": words.place,
        "plural": words.plural,
        "ranks": words.ranks,
        "recording_cost": lambda d: words.recording_cost(d.profiler_overhead, d.recording_removed),
        "saving": lambda fix, d: words.saving(fix, d.step_ns, d.waterfall),
        "calls": calls,
        "shorten": lambda name: shorten(clean(name)),
        "breakable": _breakable,
        "bytes": words.size,
        "middle": lambda text, limit: middle(clean(text), limit),
        "colour": lambda cause: legends.get(cause, Legend()).colour,
        "label": lambda cause: legends.get(cause, Legend()).label,
        "trial_name": trial_name,
        "trial_verdict": verdict,
        "tone": lambda category: PATH.get(category, CATEGORIES["operator"]),
    }
    return environment


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


def _parts(d: Diagnosis) -> list[tuple[str, str, str, float]]:
    """Return the parts of the step as (name, colour, label, share), without those that have no share."""
    if d.partition is None:
        return []
    shares = asdict(d.partition)
    return [
        (name.replace("_", " "), style.colour, style.label, shares[name])
        for name, style in PARTS.items()
        if shares[name] > 0
    ]


def _phases(d: Diagnosis) -> list[tuple[str, str, str, float]]:
    """Return the phases of the run as (name, colour, label, share), where there is more than one worth showing."""
    styles = {name: PHASES.get(name, Legend()) for name in shown_phases(d.phases)}
    return [(name, style.colour, style.label, d.phases[name]) for name, style in styles.items()]


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


def _by_rule(prescriptions: Sequence[Prescription]) -> dict[str, list[Prescription]]:
    found: dict[str, list[Prescription]] = {}
    for prescription in prescriptions:
        found.setdefault(prescription.rule, []).append(prescription)
    return found
