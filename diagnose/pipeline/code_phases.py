"""What a step's time goes into by the training loop's phases, as far as the recording shows them.

Marks of the loader, of autograd and of the optimizer show *loading*, *backward* and *optimizer*. Frames show *forward*
(a module outside of these), *loss* (a loss of torch's, or a function or module named so, without other modules that it
calls), *evaluation* and *collate* (functions named so). The rest is *other*.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diagnose.model.charts import CodeTime
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, contains, intersect, span, subtract, union
from diagnose.model.user_files import is_own_file
from diagnose.pipeline.call_paths import MODULE, frames_of
from diagnose.tables import Tables
from diagnose.tables.host import layers
from diagnose.tables.names import BACKWARD, LOADER_NEXT, ZERO_GRAD
from diagnose.tables.optimizer_spans import updates
from diagnose.tables.step_clock import StepClock
from diagnose.text.patterns import lazy_pattern

__all__ = ["PHASE_ORDER", "code_phases"]

OTHER = "other"
PHASE_ORDER = ("loading", "collate", "forward", "loss", "backward", "optimizer", "evaluation", OTHER)
_LOSS_MODULE = lazy_pattern(r"(Loss|Criterion)\w*_\d+$")
_LOSS_OF_TORCH = lazy_pattern(r"cross_entropy$|kl_div$|\w+_loss$")
# Functions of the user's, by their names.
_NAMED = lazy_pattern(
    r"(?:^|_)(?:(?P<evaluation>eval(?:uate|uation)?|validat(?:e|ion))|(?P<collate>collate|collator)"
    r"|(?P<loss>loss|losses|criterion))(?:_|$)"
)
_IN_LOSS = "loss module"  # other modules in it belong to the loss


def code_phases(t: Tables, clock: StepClock) -> tuple[CodeTime, ...]:
    """Return the phases in the order of a step, then the rest; their times and shares sum to the step."""
    events, window = t.trace.events, span(int(clock.time[0]), int(clock.time[-1]))
    framed = _framed(t)
    backward = union(t.covering(t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)), framed["backward"])
    optimizer = union(updates(t), t.covering(t.calls(ZERO_GRAD, Kind.ANNOTATION, Kind.OP)))
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    found: dict[str, Intervals] = {}
    left = window
    for name, pieces in (
        ("evaluation", framed["evaluation"]),
        ("backward", backward),
        ("optimizer", optimizer),
        ("collate", framed["collate"]),
        ("loading", loading),
        ("loss", framed["loss"]),
        ("forward", framed["forward"]),
    ):
        found[name], left = intersect(pieces, left), subtract(left, pieces)
    found[OTHER] = left
    shown = [name for name in PHASE_ORDER if len(found[name].start)]
    if shown == [OTHER]:
        return ()
    host = [float(clock.length(*found[name]).sum()) / clock.num for name in shown]
    launched = np.flatnonzero(t.tasks.launch >= 0)
    start, task_ns = events.start[t.tasks.launch[launched]], (t.tasks.end - t.tasks.start)[launched]
    task_ns[~clock.counts(start)] = 0
    device = [float(task_ns[contains(found[name], start)].sum()) / clock.num for name in shown]
    return tuple(
        CodeTime(name, ns, ns / max(clock.step_ns, 1.0), ns, device_ns=on_device if t.device_id >= 0 else None)
        for name, ns, on_device in zip(shown, host, device, strict=True)
    )


def _framed(t: Tables) -> Mapping[str, Intervals]:
    """Return when the training thread is in which phase by its frames, by the innermost that shows one."""
    found = dict.fromkeys(("evaluation", "backward", "collate", "loss", "forward"), EMPTY)
    if t.main < 0:
        return found
    rows = frames_of(t, t.main, lambda name: bool(_label(name)))
    events, nested = t.trace.events, layers(t.trace, rows, deep=True)
    labels = [*found, _IN_LOSS]
    of_name = {name: labels.index(_label(t.trace.names[name])) for name in set(events.name[rows].tolist())}
    label = np.array([of_name[name] for name in events.name[rows].tolist()], np.int64)
    evaluation, collate, loss, in_loss = (labels.index(name) for name in ("evaluation", "collate", "loss", _IN_LOSS))
    for depth, mine in enumerate(nested.rows):
        at = np.searchsorted(rows, mine)
        if depth:
            outer = nested.open_in(depth - 1, events.start[mine])
            around = np.where(outer >= 0, label[np.searchsorted(rows, np.maximum(outer, 0))], -1)
            stays = (around == evaluation) | (around == collate) | (around == in_loss)
            label[at] = np.where(stays, around, label[at])
        pieces = {number: t.covering(mine[label[at] == number]) for number in set(label[at].tolist())}
        covered = union(*pieces.values())
        for number, name in enumerate(found):
            own = [pieces[n] for n in pieces if (loss if n == in_loss else n) == number]
            found[name] = union(subtract(found[name], covered), *own)
    return found


def _label(frame: str) -> str:
    """Return the phase that a frame shows, "" for none."""
    if frame.startswith(MODULE):
        return _IN_LOSS if _LOSS_MODULE.search(frame) else "forward"
    place, _, function = frame.rpartition("): ")
    if not place:
        return ""  # a built-in function
    file = place.rpartition("(")[0]
    if file.endswith(("torch/_tensor.py", "torch/autograd/__init__.py")):
        return "backward" if function in ("backward", "grad") else ""
    if file.endswith("torch/nn/functional.py"):
        return "loss" if _LOSS_OF_TORCH.match(function) else ""
    if file.endswith("torch/utils/data/_utils/collate.py"):
        return "collate"
    named = _NAMED.search(function)
    return named.lastgroup or "" if named is not None and is_own_file(file) else ""
