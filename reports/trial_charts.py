"""The trials' charts: each measured speed-up with its interval beside the predicted one, and the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from diagnose.answer.tried import verdict
from diagnose.model.diagnosis import Diagnosis, Trial
from diagnose.model.limits import MAX_LOSSES
from diagnose.reports.colours import legible
from diagnose.reports.language import tr, translated
from diagnose.reports.measured import certainty_words
from diagnose.reports.svg import Axis, Svg, log_ticks, ticks
from diagnose.text.plain_text import middle, one_line

__all__ = ["loss_chart", "tones", "trial_chart", "trial_name"]

_MAX_NAME_CHARS = 34  # characters of a name beside a chart
ROW = 30.0
LEFT, RIGHT = 250.0, 1040.0
TONES = {
    "gain": ("faster for certain", "#2fa36b", "square"),
    "drifted": ("faster, but other losses", "#d08a2e", "triangle"),
    "even": ("no certain difference", "#8a94a2", "circle"),
    "loss": ("slower for certain", "#e5484d", "diamond"),
}
LINES = ("#3d7fd6", "#2fa36b", "#d08a2e", "#a267d1", "#e5484d", "#2aa5a0", "#c75b9b", "#8a7a3d")
"""Colours of the losses, taken in turn."""
DASHES = ("", ' stroke-dasharray="7 3"', ' stroke-dasharray="2 3"')


def trial_name(trial: Trial) -> str:
    """Return what was run, in a few words."""
    if trial.kind == "single":
        return trial.id
    return tr("together") if trial.kind == "combination" else tr("together, without {name}", name=trial.id)


def trial_chart(d: Diagnosis) -> Markup | None:
    """Return a row for each measured trial: its speed-up with the interval, and the predicted one; None without any."""
    measured = [t for t in d.trials if t.steps_ms is not None and not t.failure and math.isfinite(t.speed_up)]
    if not measured:
        return None
    predicted = [_predicted(t) for t in measured]
    ends = [1.0, *(x for t in measured for x in (*t.interval, t.speed_up)), *(x for x in predicted if x is not None)]
    finite = [x for x in ends if math.isfinite(x)]
    low, high = min(0.95, *finite) * 0.98, max(1.1, *finite) * 1.02
    bottom = 30 + ROW * len(measured)
    svg = Svg(
        tr("Measured speed-ups with their 95 % intervals: {trials}.", trials="; ".join(map(_words, measured))),
        bottom + 46,
    )
    x = Axis(low, high, LEFT, RIGHT)
    noise = max((t.noise for t in measured if t.noise is not None and math.isfinite(t.noise)), default=0.0)
    band = x(1 - noise), x(1 + noise)
    svg.rect(
        (band[0], 22, band[1] - band[0], bottom - 22),
        "currentColor",
        tr("what equal runs differ by"),
        ' fill-opacity="0.12"',
    )
    svg.x_axis(
        x,
        bottom,
        [(v, f"{v:g} ×") for v in ticks(low, high, 8)],
        22,
        tr("speed-up of the step; a gain lies right of 1 ×"),
    )
    svg.line([(x(1), 22), (x(1), bottom)], "currentColor", 1.2, ' stroke-dasharray="4 3"')
    for i, (t, guess) in enumerate(zip(measured, predicted, strict=True)):
        y = 30 + ROW * i + ROW / 2
        _, colour, shape = TONES[verdict(t)]
        svg.text(LEFT - 10, y + 4, middle(one_line(trial_name(t)), _MAX_NAME_CHARS), "end")
        svg.line([(x(t.interval[0]), y), (x(t.interval[1]), y)], legible(colour), 3)
        svg.mark((x(t.speed_up), y), shape, 5, legible(colour), _words(t))
        if guess is not None:
            svg.mark((x(guess), y), "open", 6, "currentColor", tr("predicted {time}", time=f"{guess:.2f} ×"))
    return svg.render()


def tones(d: Diagnosis) -> list[tuple[str, str, str]]:
    """Return the legend: label, colour and shape of what occurs."""
    occurring = {verdict(t) for t in d.trials if t.steps_ms is not None and not t.failure}
    return [(label, legible(colour), shape) for tone, (label, colour, shape) in TONES.items() if tone in occurring]


def _words(trial: Trial) -> str:
    low, high = trial.interval
    span = tr("{low} to {high}", low=f"{low:.2f}", high=f"{high:.2f}")
    words = certainty_words(trial) or translated(TONES[verdict(trial)][0])
    return f"{trial_name(trial)} {trial.speed_up:.2f} × ({span}), {words}"


def _predicted(trial: Trial) -> float | None:
    if trial.predicted_ms is None or trial.steps_ms is None or not 0 < trial.predicted_ms < math.inf:
        return None
    return trial.steps_ms[0] / trial.predicted_ms


def loss_chart(d: Diagnosis) -> Markup | None:
    """Return the losses of the same steps over each other: without a change (broad), then with each."""
    shown = [t for t in d.trials if len(t.losses[0]) > 1 and len(t.losses[1]) > 1]
    if not shown:
        return None
    curves = [(tr("without a change"), *curve) for curve in _unchanged(shown)]
    curves += [
        (
            f"{trial_name(t)}: {translated(t.numerics)}",
            t.losses[1][:MAX_LOSSES],
            legible(LINES[i % len(LINES)]),
            1.8,
            DASHES[i % 3],
        )
        for i, t in enumerate(shown)
    ]
    known = [y for _, ys, *_ in curves for y in ys if math.isfinite(y)]
    if not known:
        return None
    is_log = 0 < min(known) < max(known) / 30
    low, high = (min(known) / 1.2, max(known) * 1.2) if is_log else (min(known), max(known) or 1.0)
    bottom = 210.0
    svg = Svg(tr("Losses of the same steps with each change and without."), bottom + 40 + 18 * len(curves))
    x = Axis(1, max(len(ys) for _, ys, *_ in curves), 70, 1046)
    y = Axis(low, high if high > low else low + 1, bottom, 22, is_log=is_log)
    marks = log_ticks(low, high) if is_log else ticks(low, high, 4)
    svg.y_axis(y, 70, 1046, [(v, f"{v:.3g}") for v in marks], tr("loss"))
    svg.x_axis(x, bottom, [(v, f"{v:.0f}") for v in ticks(1, x.high, 8) if v == round(v)], 22)
    for row, (name, ys, colour, width, dash) in enumerate(curves):
        svg.line([(x(i + 1), y(v)) for i, v in enumerate(ys) if math.isfinite(v)], colour, width, dash)
        at = bottom + 40 + 18 * row
        svg.line([(70, at), (110, at)], colour, width, dash)
        svg.text(118, at + 4, middle(one_line(name), 60))
    return svg.render()


def _unchanged(trials: Sequence[Trial]) -> list[tuple[tuple[float, ...], str, float, str]]:
    different = list(dict.fromkeys(t.losses[0][:MAX_LOSSES] for t in trials))[:3]
    return [(losses, "currentColor", 6.0, ' stroke-opacity="0.25"') for losses in different]
