"""What the host's threads were in while the device was idle, by cause: the boxes of flame graphs.

Python frames stand in the attribution window alone; its steps are slower, so the shares are taken from there and the
time from the timing window. Where a cause is not found there, or stacks were not recorded, operators and calls of the
timing window are shown, and the sampler's lines where no operator runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.charts import Flame, Frame
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, distinct, subtract
from diagnose.model.user_files import is_own_file
from diagnose.tables import Tables
from diagnose.tables.call_frames import names_of_open_frames
from diagnose.tables.host import Layers, host_rows, layers
from diagnose.tables.names import NAME_PART, STEP_MARK

__all__ = ["flames"]

MAX_CAUSES = 12
MAX_FRAMES = 600  # of one cause, the longest: a screen has room for about half of them
MIN_FRAME_SHARE = 0.001  # of the cause's time: less is thinner than a pixel even when zoomed in tenfold
MIN_SAMPLES = 3  # in a box: fewer do not show how its time divides among lines
MAX_DEPTH = 160  # a module within modules takes four frames each
MIN_CAUSE_SHARE = 0.0005  # of the step

_KINDS = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
_KIND_NAMES = {Kind.OP: "operator", Kind.ANNOTATION: "annotation", Kind.RUNTIME: "runtime"}
_ADDRESS = r" at 0x[0-9a-fA-F]+(?=>)"
_FRAME = r"^(?P<file>.+?)\(\d+\): "
_LINE = r"\(\d+\)(?=: )"
# What starts a script and what stands between a module and its forward: in every stack, and never the reason.
_WRAPPERS = (
    r"^<frozen |^<string>\(|(^|/)(runpy|threading|contextlib)\.py\(|(^|/)diagnose/\w|torch/utils/_contextlib\.py\("
    r"|torch/nn/modules/module\.py\(\d+\): _(wrapped_)?call_impl"
    r"|^<built-in (method|function) exec(\b| of)"
)


def flames(t: Tables, named: Tables | None, shares: Mapping[str, float] | None = None) -> tuple[Flame, ...]:
    """Return a flame graph of each cause, the largest first.

    ``named`` are the tables of the attribution window, ``shares`` what a report states of each cause.
    """
    totals = {rule: ns / t.steps.num for rule, ns in t.causes.totals().items()}
    step_ns = t.steps.step_ns
    stated = {rule: min(share * step_ns, totals.get(rule, 0.0)) for rule, share in (shares or {}).items()} or totals
    largest = sorted((rule for rule, ns in stated.items() if ns >= MIN_CAUSE_SHARE * step_ns), key=lambda r: -stated[r])
    own, other = _window(t), _window(named) if named is not None and _has_stacks(named) else None
    found = (_flame(own, other, rule, stated[rule]) for rule in largest[:MAX_CAUSES])
    return tuple(flame for flame in found if flame is not None)


class _Window(NamedTuple):
    """What the boxes of one window are made of."""

    t: Tables
    names: _Names
    nested: tuple[Layers, ...]  # of each thread that matters


def _window(t: Tables) -> _Window:
    return _Window(t, _names(t), tuple(layers(t.trace, _shown_rows(t, thread), MAX_DEPTH) for thread in t.threads))


def _flame(own: _Window, named: _Window | None, rule: str, time_ns: float) -> Flame | None:
    if named is not None and (total := named.t.causes.totals().get(rule, 0)):
        frames = _frames(named, rule, time_ns / total)
        if frames:
            return Flame(rule, round(time_ns), frames, is_scaled=True)
    frames = _frames(own, rule, time_ns / max(own.t.causes.totals().get(rule, 0), 1))
    return Flame(rule, round(time_ns), frames) if frames else None


def _has_stacks(t: Tables) -> bool:
    return any(len(found.rows) for found in t.frame_layers.values())


class _Pieces(NamedTuple):
    """Pieces of time in order, each with the box that it is in."""

    start: Ints
    end: Ints
    box: Ints


class _Tree:
    """Boxes by what is around them; box 0 is the cause."""

    def __init__(self) -> None:
        self.parent, self.name, self.ns = [-1], [-1], [0]

    def inside(self, pieces: _Pieces, start: Ints, end: Ints, name: Ints) -> tuple[_Pieces, _Pieces]:
        """Return what of the pieces one layer of events covers, in boxes of their own, and what it leaves."""
        low, high = np.searchsorted(end, pieces.start, "right"), np.searchsorted(start, pieces.end, "left")
        count = np.maximum(high - low, 0)
        of = np.repeat(np.arange(len(count)), count)
        event = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + low[of]
        from_, to = np.maximum(pieces.start[of], start[event]), np.minimum(pieces.end[of], end[event])
        kept = to > from_
        of, event, from_, to = of[kept], event[kept], from_[kept], to[kept]
        keys = np.stack([pieces.box[of], name[event]], axis=1)
        boxes, which = np.unique(keys, axis=0, return_inverse=True)
        which = which.reshape(-1)
        first = len(self.parent)
        self.parent += boxes[:, 0].tolist()
        self.name += boxes[:, 1].tolist()
        self.ns += np.bincount(which, (to - from_).astype(np.float64), minlength=len(boxes)).astype(np.int64).tolist()
        left = subtract(Intervals(pieces.start, pieces.end), Intervals(from_, to))
        around = np.searchsorted(pieces.start, left.start, "right") - 1
        return _Pieces(from_, to, first + which), _Pieces(left.start, left.end, pieces.box[around])


def _frames(window: _Window, rule: str, scale: float) -> tuple[Frame, ...]:
    """Return the boxes of one cause; ``scale`` turns their sums into time per step."""
    t, names, nested = window
    rows = t.causes.of(rule)
    start, end = t.causes.start[rows], t.causes.end[rows]
    tree = _Tree()
    tree.ns[0] = int((end - start).sum())
    bare = _Pieces(start, end, np.zeros(len(rows), np.int64))
    for each in nested:  # what another thread does stands below what the main thread was in
        bare = _descend(tree, bare, each, names.of_row)
    if not _has_stacks(t):
        _add_lines(t, tree, bare, names)
    return _in_order(tree, names, scale)


def _descend(tree: _Tree, pieces: _Pieces, nested: Layers, name: Ints) -> _Pieces:
    """Put pieces of time into the boxes of one thread, layer by layer; return them in their innermost boxes."""
    innermost = []
    for rows, start in zip(nested.rows, nested.start, strict=True):
        pieces, left = tree.inside(pieces, start, nested.event_end[rows], name[rows])
        innermost.append(left)
        if not len(pieces.start):
            break
    return _together(*innermost, pieces)


def _together(*parts: _Pieces) -> _Pieces:
    order = np.argsort(np.concatenate([p.start for p in parts]), kind="stable")
    return _Pieces(*(np.concatenate(columns)[order] for columns in zip(*parts, strict=True)))


def _add_lines(t: Tables, tree: _Tree, pieces: _Pieces, names: _Names) -> None:
    """Divide the time in which no operator ran among the lines that the sampler saw then, by how often it did."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns or not len(pieces.start):
        return
    time = samples.time_ns - t.trace.epoch_ns
    at = np.maximum(np.searchsorted(pieces.start, time, side="right") - 1, 0)
    is_open = np.array([name < 0 or names.kinds[name] == "annotation" for name in tree.name])[pieces.box[at]]
    seen = (samples.place >= 0) & (time >= pieces.start[at]) & (time < pieces.end[at]) & is_open
    bare_ns = np.bincount(pieces.box, (pieces.end - pieces.start).astype(np.float64), minlength=len(tree.ns))
    box, place = pieces.box[at][seen], samples.place[seen]
    num = np.bincount(box, minlength=len(bare_ns))
    keys, count = np.unique(np.stack([box, place], axis=1), axis=0, return_counts=True)
    for (parent, line), times in zip(keys.tolist(), count.tolist(), strict=True):
        if num[parent] >= MIN_SAMPLES:
            tree.parent.append(parent)
            tree.name.append(names.first_line + line)
            tree.ns.append(int(bare_ns[parent] * times / num[parent]))


def _shown_rows(t: Tables, thread: int) -> Rows:
    """Return a thread's frames and events, without the marks of steps and what only wraps others."""
    rows = host_rows(t.trace, thread, *_KINDS)
    names = t.trace.events.name[rows]
    hidden = np.zeros(len(t.trace.names), bool)
    for name in distinct(names).tolist():
        text = t.trace.names[name]
        hidden[name] = bool(STEP_MARK.match(text) or re.search(_WRAPPERS, text[:NAME_PART]))
    shown: Rows = rows[~hidden[names]]
    return shown


def _in_order(tree: _Tree, names: _Names, scale: float) -> tuple[Frame, ...]:
    """Return the largest boxes, each before what it called."""
    ns = np.array(tree.ns, np.int64)
    # A box is at least as long as what is in it and has a lower number, so no box is kept without those around it.
    kept = np.argsort(-ns, kind="stable")[: MAX_FRAMES + 1]
    kept = kept[(ns[kept] >= MIN_FRAME_SHARE * ns[0]) & (kept > 0)]
    children: dict[int, list[int]] = {}
    for box in kept.tolist():
        children.setdefault(tree.parent[box], []).append(box)
    found: list[Frame] = []
    waiting = [(box, 0) for box in reversed(children.get(0, []))]
    while waiting:
        box, depth = waiting.pop()
        name = tree.name[box]
        found.append(Frame(names.texts[name], names.kinds[name], depth, round(tree.ns[box] * scale)))
        waiting += [(inner, depth + 1) for inner in reversed(children.get(box, []))]
    return tuple(found)


class _Names(NamedTuple):
    """What boxes are called: the trace's names and the sampled lines; those that differ by an address are one."""

    texts: list[str]
    kinds: list[str]  # "" for names of other events
    of_row: Ints  # row of texts, for each event
    first_line: int  # row of texts of the first sampled place


def _names(t: Tables) -> _Names:
    lines = (
        [f"{file}({line}): {function}" for file, line, function in t.capture.samples.places]
        if t.capture.samples
        else []
    )
    already = names_of_open_frames(t)
    texts, kinds = [*t.trace.names, *lines], [""] * len(t.trace.names) + [_frame_kind(line) for line in lines]
    alike = np.arange(len(texts))
    first: dict[str, int] = {}
    rows = np.concatenate([host_rows(t.trace, thread, *_KINDS) for thread in t.threads] or [np.zeros(0, np.intp)])
    pairs = np.zeros((len(t.trace.names), len(Kind)), np.bool_)
    pairs[t.trace.events.name[rows], t.trace.events.kind[rows]] = True
    for name, kind in np.argwhere(pairs).tolist():
        texts[name] = re.sub(_ADDRESS, "", texts[name])
        kinds[name] = _KIND_NAMES.get(Kind(kind)) or _frame_kind(texts[name])
        if name in already:
            texts[name] = re.sub(_LINE, "", texts[name])
        alike[name] = first.setdefault(texts[name], name)
    return _Names(texts, kinds, alike[t.trace.events.name], len(t.trace.names))


def _frame_kind(text: str) -> str:
    if text.startswith("nn.Module: "):
        return "module"
    match = re.match(_FRAME, text)
    return "own" if match is not None and is_own_file(match["file"]) else "library"
