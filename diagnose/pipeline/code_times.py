"""Where a step goes by the program's own structure: phases, modules, and the functions of the user's own files.

Python frames show it, of the attribution window where there is one; their times are brought to those of the timing
window (``step_clock``). Without frames the lines show it that the sampler saw in the timing window.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.model.charts import CodeTime, CodeTimes
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.locations import FRAME
from diagnose.model.user_files import is_own_file
from diagnose.pipeline.call_paths import MODULE, CallPaths, call_paths
from diagnose.pipeline.code_phases import code_phases
from diagnose.tables import Tables
from diagnose.tables.names import names_of
from diagnose.tables.open_frames import names_of_open_frames
from diagnose.tables.step_clock import StepClock, own_clock, step_clock

__all__ = ["code_times"]

MAX_MODULES = 300  # rows of a page, the longest
MAX_FUNCTIONS = 60
MIN_SHARE = 0.0005  # of the step: less is no row
MIN_OWN_SHARE = 0.01  # of the step: what runs around all steps and takes less itself only calls the others
MIN_SAMPLES = 3  # in a function: fewer do not show its share
# Parts of a function, which are counted as its own time.
_PARTS = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})


def code_times(t: Tables) -> CodeTimes:
    """Return the times by phase, module and function; without stacks and samples there are the phases alone."""
    named = t.named
    if names_of(named.trace, Kind.PYTHON):
        clock = step_clock(t)
        phases, modules, functions = code_phases(named, clock), _modules(named, clock), _functions(named, clock)
        if modules or functions:
            return CodeTimes("frames", clock.step_ns, clock.as_timed, phases, modules, functions)
    sampled = _sampled(t)
    phases = code_phases(t, own_clock(t))
    return CodeTimes("samples" if sampled else "none", t.steps.step_ns, phases=phases, functions=sampled)


class _Sums(NamedTuple):
    """What paths take over all steps, and what makes figures of a step of it."""

    paths: CallPaths
    clock: StepClock
    has_device: bool

    def row(self, name: str, each: list[int], outer: list[int], depth: int = 0) -> CodeTime:
        """Return the sums of some paths; of times with what is called, those of the ``outer`` ones."""
        paths, host = self.paths, self._of(self.paths.host, outer)
        return CodeTime(
            name,
            self_ns=self._of(paths.own, each),
            share=host / self.clock.step_ns if self.clock.step_ns else 0.0,
            host_ns=host,
            calls=self._of(paths.calls, each),
            device_ns=self._of(paths.device, outer) if self.has_device else None,
            backward_ns=self._of(paths.backward, outer),
            backward_device_ns=self._of(paths.backward_device, outer) if self.has_device else None,
            depth=depth,
        )

    def _of(self, column: Floats, paths: list[int]) -> float:
        return float(column[paths].sum()) / self.clock.num


def _modules(t: Tables, clock: StepClock) -> tuple[CodeTime, ...]:
    """Return the tree of modules, each before those called in it; of too many the longest."""
    paths = call_paths(t, clock, lambda name: name.startswith(MODULE))
    if paths is None:
        return ()
    sums = _Sums(paths, clock, t.device_id >= 0)
    whole = np.maximum(paths.host + paths.backward, paths.device + paths.backward_device)
    least = MIN_SHARE * clock.step_ns * clock.num
    # A module takes as long as those in it and has a lower number, so none is kept without those around it.
    kept = [p for p in np.argsort(-whole, kind="stable")[:MAX_MODULES].tolist() if whole[p] >= least]
    inner: defaultdict[int, list[int]] = defaultdict(list)
    for path in kept:
        inner[paths.parent[path]].append(path)
    found: list[CodeTime] = []
    waiting = [(path, "", 0) for path in reversed(inner[-1])]
    while waiting:
        path, around, depth = waiting.pop()
        name = around + t.trace.names[paths.name[path]].removeprefix(MODULE).replace(".", "_")
        found.append(sums.row(name, [path], [path], depth))
        waiting += [(each, f"{name}.", depth + 1) for each in reversed(inner[path])]
    return tuple(found)


def _functions(t: Tables, clock: StepClock) -> tuple[CodeTime, ...]:
    """Return the functions of the user's own files, those first that take longest with what they call."""
    paths = call_paths(t, clock, _is_own)
    if paths is None:
        return ()
    found, sums = [], _Sums(paths, clock, t.device_id >= 0)
    already = names_of_open_frames(t)
    for name, each in _by_name(paths).items():
        row = sums.row(_function(t.trace.names[name], has_line=name not in already), each, _outermost(paths, each))
        passes_on = not row.calls and row.self_ns < MIN_OWN_SHARE * clock.step_ns
        if row.share >= MIN_SHARE and not passes_on:
            found.append(row)
    return tuple(sorted(found, key=lambda row: -(row.host_ns or 0.0))[:MAX_FUNCTIONS])


def _by_name(paths: CallPaths) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for path, name in enumerate(paths.name):
        found[name].append(path)
    return found


def _outermost(paths: CallPaths, same: list[int]) -> list[int]:
    """Return those of a function's paths that lie in no call of it: of recursive calls the first."""

    def is_outer(path: int) -> bool:
        name, path = paths.name[path], paths.parent[path]
        while path >= 0 and paths.name[path] != name:
            path = paths.parent[path]
        return path < 0

    return [path for path in same if is_outer(path)]


def _is_own(frame: str) -> bool:
    place, _, function = frame.rpartition("): ")
    file = place.rpartition("(")[0]
    return bool(file) and function not in _PARTS and is_own_file(file)


def _function(frame: str, *, has_line: bool) -> str:
    """Return "train.py:41 compute_loss" for "train.py(41): compute_loss", "train.py main" without a line."""
    match = FRAME.match(frame)
    if match is None:
        return frame
    line = f":{match['line']}" if has_line else ""
    return f"{match['file']}{line} {match['function']}"


def _sampled(t: Tables) -> tuple[CodeTime, ...]:
    """Return the functions that the sampler saw the training thread in, with the line that it was at most often."""
    samples, epoch = t.capture.samples, t.trace.epoch_ns
    if samples is None or not epoch:
        return ()
    start, end = t.steps.window
    time = samples.time_ns - epoch
    seen = Counter(samples.place[(time >= start) & (time < end)].tolist())
    total = sum(seen.values())
    lines: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for place, num in seen.items():
        if place >= 0 and is_own_file(samples.places[place][0]):
            file, line, function = samples.places[place]
            lines[file, function][line] += num
    often = ((key, at.most_common(1)[0][0], sum(at.values())) for key, at in lines.items())
    rows = [
        CodeTime(f"{file}:{line} {function}", num / total * t.steps.step_ns, num / total)
        for (file, function), line, num in often
        if num >= MIN_SAMPLES
    ]
    return tuple(sorted(rows, key=lambda row: -row.self_ns)[:MAX_FUNCTIONS])
