"""Captures and reports of a folder as a page: for each script how its step changed, and a link to each report."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from markupsafe import Markup

from diagnose.model.frozen import dataclass
from diagnose.reports.format import duration, percent, plural
from diagnose.reports.language import tr
from diagnose.reports.pages import render_page
from diagnose.reports.svg import Axis, Svg, ticks

__all__ = ["Recording", "render"]

LINE = "#5b7fa6"
LEFT, RIGHT, TOP, BASE, HEIGHT = 90.0, 1046.0, 18.0, 168.0, 204.0
MAX_POINTS = 200  # of a chart: the newest
MAX_EQUAL_SHARE = 0.005  # of a step: what differs by less is shown as the same


@dataclass(frozen=True, slots=True)
class Recording:
    """One capture or report of the list."""

    name: str
    link: str  # to its report
    kind: str
    time: str
    script: str  # with its arguments: recordings of the same are one group
    device: str
    torch: str
    ranks: int
    verdict: str  # "" where it is not known yet
    unprofiled_ns: float | None
    recorded_ns: float | None


def render(folder: str, recordings: Sequence[Recording]) -> str:
    """Return the page; ``recordings`` are in the order of their time."""
    groups: dict[str, list[Recording]] = {}
    for recording in recordings:
        groups.setdefault(recording.script, []).append(recording)
    newest_first = sorted(groups.items(), key=lambda group: recordings.index(group[1][-1]), reverse=True)
    return render_page(
        "archive.html",
        scripts=["report.js"],
        data={},
        legends={},
        drawn=True,
        folder=folder,
        headline=tr(
            "{recordings} of {scripts}",
            recordings=plural(len(recordings), "recording"),
            scripts=plural(len(groups), "script"),
        )
        if recordings
        else tr("No capture and no JSON report was found"),
        groups=[
            {
                "script": script or tr("Unknown command"),
                "trend": _trend(members),
                "chart": _chart(script, members),
                "step_head": tr("Step, unprofiled") if _measure(members) == "unprofiled" else tr("Step, recorded"),
                "rows": [(member, _step(member, _measure(members))) for member in reversed(members)],
            }
            for script, members in newest_first
        ],
    )


def _measure(members: Sequence[Recording]) -> str:
    """Return which steps are compared: unprofiled ones where all have them, never one against the other."""
    return "unprofiled" if all(member.unprofiled_ns for member in members) else "recorded"


def _step(member: Recording, measure: str) -> float | None:
    return member.unprofiled_ns if measure == "unprofiled" else member.recorded_ns


def _steps(members: Sequence[Recording]) -> list[tuple[Recording, float]]:
    measure = _measure(members)
    found = [(member, ns) for member in members if (ns := _step(member, measure))]
    return found[-MAX_POINTS:]


def _trend(members: Sequence[Recording]) -> str:
    """State the latest step against the ones before it; whether that is more than noise is for `compare` to decide."""
    steps = [ns for _, ns in _steps(members)]
    if len(steps) < 2:
        return ""
    before = median(steps[:-1])
    ratio = steps[-1] / before - 1
    share = percent(abs(ratio))
    if abs(ratio) < MAX_EQUAL_SHARE:
        how = tr("as long as")
    else:
        how = tr("{share} longer than", share=share) if ratio > 0 else tr("{share} shorter than", share=share)
    return tr(
        "The latest {kind} step, {step}, is {how} the median of {recordings} before it, {before}.",
        kind=tr("unprofiled") if _measure(members) == "unprofiled" else tr("recorded"),
        step=duration(steps[-1]),
        how=how,
        recordings=plural(len(steps) - 1, "recording"),
        before=duration(before),
    )


def _chart(script: str, members: Sequence[Recording]) -> Markup | None:
    steps = _steps(members)
    if len(steps) < 2:
        return None
    svg = Svg(tr("The step of {script} from one recording to the next.", script=script), HEIGHT)
    x = Axis(0, len(steps) - 1, LEFT + 10, RIGHT)
    y = Axis(0, 1.05 * max(ns for _, ns in steps), BASE, TOP)
    svg.y_axis(y, LEFT, RIGHT, [(ns, duration(ns)) for ns in ticks(0, y.high, 4)])
    points = [(x(i), y(ns)) for i, (_, ns) in enumerate(steps)]
    svg.line(points, LINE, 1.8)
    for (member, ns), point in zip(steps, points, strict=True):
        svg.mark(point, "circle", 4.5, LINE, f"{member.time}: {duration(ns)}, {member.name}")
    for i, anchor in ((0, "start"), (len(steps) - 1, "end")):
        svg.text(points[i][0], BASE + 24, steps[i][0].time, anchor)
    return svg.render()
