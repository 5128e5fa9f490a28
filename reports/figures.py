"""Figures of a diagnosis for notebooks, experiment trackers and papers, made by plotly.

    diagnosis.figure("queue").show()
    wandb.log({f"diagnose/{name}": each for name, each in diagnosis.figures().items()})

They have the data and the colours of the report. Times are milliseconds per step. plotly is not installed with
diagnose: the extra `plots` has it. Its files in PNG and SVG need the package kaleido too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.answer.screen import answer
from diagnose.errors import UsageError, missing_extra
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.files import cannot_write
from diagnose.model.words import english
from diagnose.reports.charts import GOOD, LINE, SERIES_COLOURS, WARN, colour_of, trial_name
from diagnose.reports.rule_labels import PARTS, coloured, part_colours
from diagnose.text.numbers import percent
from diagnose.text.plain_text import middle

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_NAME = 60  # characters of a kernel's name
_LOSS = PARTS["idle"].colour


def figures(d: Diagnosis) -> dict[str, Figure]:
    """Return every figure that the diagnosis has data for, by name.

    Raises:
        InputError: plotly is not installed.
    """
    d = coloured(d)
    found = {name: make(d) for name, make in _FIGURES.items()}
    return {name: each for name, each in found.items() if each is not None}


def figure(d: Diagnosis, name: str) -> Figure:
    """Return one figure: step, queue, waterfall, kernels, ranks, memory or trials.

    Raises:
        InputError: plotly is not installed.
        UsageError: no figure has this name, or the diagnosis has no data for it.
    """
    if name not in _FIGURES:
        raise UsageError(f"There is no figure '{name}'; figures are {', '.join(NAMES)}.")
    found = _FIGURES[name](d)
    if found is None:
        raise UsageError(f"This diagnosis has no data for the figure '{name}'; figures() returns those that it has.")
    return found


def write_figures(d: Diagnosis, folder: Path) -> list[str]:
    """Write every figure as a page, and as PNG and SVG where kaleido can; return the names of the files.

    The pages share one file of plotly, so that nothing is loaded from elsewhere.

    Raises:
        InputError: plotly is not installed.
        OutputError: a file cannot be written.
    """
    made, written = figures(d), []
    from plotly.offline import get_plotlyjs

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
        for name, each in made.items():
            (folder / f"{name}.html").write_text(each.to_html(include_plotlyjs="directory"), encoding="utf-8")
            written.append(f"{name}.html")
            for form in ("png", "svg") if find_spec("kaleido") is not None else ():
                (folder / f"{name}.{form}").write_bytes(each.to_image(form, width=1200, height=600))
                written.append(f"{name}.{form}")
    except OSError as error:
        raise cannot_write(folder, error) from error
    return written


def _plotly() -> Any:
    try:
        import plotly.graph_objects as plotly
    except ImportError:
        raise missing_extra("A figure is made by plotly", "plots") from None
    return plotly


def _figure(title: str, traces: Sequence[Any], *, x: str = "", y: str = "", **layout: Any) -> Figure:
    axes = {"xaxis_title": x or None, "yaxis_title": y or None}
    style = {"template": "plotly_white", "margin": {"t": 60, "b": 50, "l": 60, "r": 20}}
    made: Figure = _plotly().Figure(list(traces), {"title": title, **style, **axes, **layout})
    return made


def step(d: Diagnosis) -> Figure | None:
    """Return what the step consists of now, and how long it may become."""
    go, a = _plotly(), answer(d)
    if not a.parts:
        return None
    rows = ["step now"] + ["step possible"] * (a.after is not None)
    bars = []
    for (name, share), colour in zip(a.parts, part_colours(d, a.parts), strict=True):
        text = f"{name} {percent(share)}"
        part = {"name": name, "text": text, "orientation": "h", "marker_color": colour}
        bars.append(go.Bar(x=[share * a.now_ns / 1e6], y=rows[:1], hoverinfo="text", **part))
    if a.after is not None:
        low, high = (a.after.after_ns - a.after.low_ns) / 1e6, (a.after.high_ns - a.after.after_ns) / 1e6
        ends = {"type": "data", "symmetric": False, "array": [high], "arrayminus": [low]}
        ns = a.after.after_ns / 1e6
        bars.append(go.Bar(x=[ns], y=rows[1:], orientation="h", name="possible", marker_color=GOOD, error_x=ends))
    title = middle(english(a.headline), 110)
    return _figure(title, bars, x="ms", barmode="stack", yaxis={"autorange": "reversed"}, height=320)


def queue(d: Diagnosis) -> Figure | None:
    """Return the queue depth over one step: launches that the host has issued and the device has not finished."""
    go, picture = _plotly(), d.picture
    if picture is None or not picture.depth:
        return None
    x = [ns / 1e6 for ns, _ in picture.depth]
    line = go.Scatter(
        x=x,
        y=[depth for _, depth in picture.depth],
        line={"shape": "hv", "color": LINE},
        fill="tozeroy",
        name="queue depth",
    )
    shapes = [
        {
            "type": "rect", "x0": gap.start_ns / 1e6, "x1": gap.end_ns / 1e6, "y0": 0, "y1": 1, "yref": "paper",
            "fillcolor": colour_of(gap.cause, d.legends), "opacity": 0.35, "line_width": 0, "layer": "below",
        }
        for gap in picture.gaps
    ]  # fmt: skip
    causes = dict.fromkeys(gap.cause for gap in picture.gaps)
    legend = [
        go.Scatter(x=[None], y=[None], mode="markers", name=_label(d, cause), marker=_square(d, cause))
        for cause in causes
    ]
    title = "Queue depth over the step nearest to the median; the GPU idles in the coloured parts"
    return _figure(title, [line, *legend], x="ms", y="launches", shapes=shapes, showlegend=True)


def _label(d: Diagnosis, cause: str) -> str:
    legend = d.legends.get(cause)
    return legend.label if legend is not None and legend.label else cause


def _square(d: Diagnosis, cause: str) -> dict[str, object]:
    return {"symbol": "square", "size": 12, "color": colour_of(cause, d.legends)}


def waterfall(d: Diagnosis) -> Figure | None:
    """Return the step after one change, two, …, with the range of each."""
    if d.waterfall is None:
        return None
    go, chain = _plotly(), d.waterfall.forecasts
    ms = [each.step_ns / 1e6 for each in chain]
    ends = {
        "type": "data", "symmetric": False,
        "array": [(each.high_ns - each.step_ns) / 1e6 for each in chain],
        "arrayminus": [(each.step_ns - each.low_ns) / 1e6 for each in chain],
    }  # fmt: skip
    names = [middle(each.title, MAX_NAME) for each in chain]
    colours = [PARTS["compute"].colour, *[GOOD] * (len(chain) - 1)]
    text = [f"{each:.3g} ms" for each in ms]
    bars = go.Bar(x=ms, y=names, orientation="h", error_x=ends, marker_color=colours, text=text, textposition="inside")
    return _figure("The step after one change, then the next", [bars], x="ms", yaxis={"autorange": "reversed"})


def kernels(d: Diagnosis) -> Figure | None:
    """Return the kernels that take most of the device's time."""
    known = [each for each in d.kernels if each.family][:15]
    if not known:
        return None
    go, families = _plotly(), list(dict.fromkeys(each.family for each in known))
    bars = []
    for i, family in enumerate(families):
        mine = [each for each in known if each.family == family]
        x, names = [each.time_ns / 1e6 for each in mine], [middle(each.name, MAX_NAME) for each in mine]
        calls = [f"{each.calls_per_step:g} calls, {percent(each.share)} of the device's time" for each in mine]
        colour = SERIES_COLOURS[i % len(SERIES_COLOURS)]
        bars.append(go.Bar(x=x, y=names, orientation="h", name=family, marker_color=colour, hovertext=calls))
    order = [middle(each.name, MAX_NAME) for each in known]
    axis = {"categoryorder": "array", "categoryarray": order[::-1]}
    return _figure("Kernels, per step", bars, x="ms", yaxis=axis, height=160 + 28 * len(known))


def ranks(d: Diagnosis) -> Figure | None:
    """Return what the step of each rank consists of."""
    known = [each for each in d.ranks if each.partition is not None]
    if len(known) < 2:
        return None
    go, bars = _plotly(), []
    for name, legend in PARTS.items():
        y = [getattr(each.partition, name) * each.step_ns / 1e6 for each in known]
        x = [f"rank {each.rank}" for each in known]
        bars.append(go.Bar(x=x, y=y, name=legend.label, marker_color=legend.colour))
    return _figure("The step of each rank", bars, y="ms", barmode="stack")


def memory(d: Diagnosis) -> Figure | None:
    """Return allocated and reserved memory over the steady steps."""
    if d.memory is None or len(d.memory.timeline) < 2:
        return None
    go, m = _plotly(), d.memory
    x = [ns / 1e6 for ns, _, _ in m.timeline]
    lines = [
        go.Scatter(
            x=x,
            y=[size / 1e9 for size in sizes],
            name=name,
            stackgroup="categories",
            line={"shape": "hv", "width": 0, "color": SERIES_COLOURS[i % len(SERIES_COLOURS)]},
        )
        for i, (name, sizes) in enumerate(m.categories_over_time.items())
    ]
    allocated = [size / 1e9 for _, size, _ in m.timeline]
    lines.append(go.Scatter(x=x, y=allocated, name="allocated", line={"shape": "hv", "color": LINE}))
    if all(size >= 0 for _, _, size in m.timeline):
        held = [size / 1e9 for _, _, size in m.timeline]
        lines.append(go.Scatter(x=x, y=held, name="reserved", line={"shape": "hv", "color": WARN, "dash": "dash"}))
    return _figure(f"Memory of {m.device} over the steady steps", lines, x="ms", y="GB")


def trials(d: Diagnosis) -> Figure | None:
    """Return how many times faster each change made the step, with its 95 % interval."""
    run = [each for each in d.trials if each.steps_ms is not None]
    if not run:
        return None
    go = _plotly()
    names = [middle(trial_name(each), MAX_NAME) for each in run]
    ends = {
        "type": "data", "symmetric": False,
        "array": [each.interval[1] - each.speed_up for each in run],
        "arrayminus": [each.speed_up - each.interval[0] for each in run],
    }  # fmt: skip
    colours = [GOOD if each.interval[0] > 1 else _LOSS if each.interval[1] < 1 else LINE for each in run]
    marks = {"color": colours, "size": 11}
    points = go.Scatter(x=[each.speed_up for each in run], y=names, error_x=ends, mode="markers", marker=marks)
    unchanged = [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line_dash": "dot"}]
    return _figure("Measured: times as fast as without the change", [points], x="times as fast", shapes=unchanged)


_FIGURES: Mapping[str, Callable[[Diagnosis], Figure | None]] = {
    "step": step, "queue": queue, "waterfall": waterfall, "kernels": kernels, "ranks": ranks, "memory": memory,
    "trials": trials,
}  # fmt: skip
NAMES = tuple(_FIGURES)
