"""The answer of ``what-if`` as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diagnose.model.diagnosis import Forecast
from diagnose.reports.charts import legible
from diagnose.reports.format import duration, percent
from diagnose.reports.html import render_page
from diagnose.reports.language import tr, translated
from diagnose.reports.rule_labels import CATEGORIES, PATH

__all__ = ["Basis", "render"]

REPLAYED = "predicted by a replay of the recorded steps, not measured"
BOUNDED = "bounded by what the cause takes of the run, not measured"
NOT_REPLAYED = "Not replayed: what is saved lies in steps that were not recorded, and their cost bounds it."


class Basis(NamedTuple):
    """What a prediction rests on."""

    error: float | None  # how far the replay misses the measured step; None where nothing was replayed
    is_doubtful: bool = False  # by too much to rely on it
    assumptions: tuple[str, ...] = ()  # what ranges rest on, one English sentence each
    memory: tuple[str, ...] = ()  # the peak, and what to compute again for a smaller one, in English


def render(source: str, forecasts: Sequence[Forecast], path: Sequence[tuple[str, float]], basis: Basis) -> str:
    """Return the page; the first forecast is the step as measured. Where nothing was replayed there is no ``path``."""
    error, is_doubtful, assumptions, memory = basis
    now, then = forecasts[0].step_ns, forecasts[-1].step_ns
    words = "Replayed with usual delays, the unchanged step comes out {error} off the measured one."
    if is_doubtful:
        words = words.removesuffix(".") + ": too much to rely on this."
    doubt = tr(words, error=percent(abs(error))) if error is not None else tr(NOT_REPLAYED)
    return render_page(
        "forecasts.html",
        scripts=["report.js"],
        data={},
        legends={},
        drawn=True,
        source=source,
        pill=tr("Prediction"),
        tone="warn" if is_doubtful else "info",
        headline=_headline(now, then, len(forecasts) - 1),
        forecasts=forecasts,
        longest=max(f.high_ns for f in forecasts),
        path=path,
        memory=list(map(translated, memory)),
        path_tone=lambda category: legible(PATH.get(category, CATEGORIES["operator"])),
        is_doubtful=is_doubtful,
        basis=tr(BOUNDED if error is None else REPLAYED),
        doubt=" ".join([*map(translated, assumptions), doubt]),
    )


def _headline(now: float, then: float, num: int) -> str:
    if not num or then <= 0:
        return tr("The step takes {time}", time=duration(now))
    return f"{duration(now)} → {duration(then)}, {tr('{factor} × as fast', factor=f'{now / then:.2f}')}"
