"""Cross entropies most of whose targets are ignored, and what computing their logits takes.

The capture counts the targets (`capture.record.ignored_targets`). The product that makes the logits is the last one
before the loss whose weights have as many rows as there are classes and whose input has a row for each target; what
stands between the two and is given the logits belongs to them, and so do the functions of all in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import EMPTY, Intervals, distinct, total, union
from diagnose.model.records import TargetRecord
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables, shared_table
from diagnose.tables.matching_operators import MatchedStep, matched_steps
from diagnose.tables.names import BACKWARD
from diagnose.tables.repeated_calls import call_of, extent
from diagnose.tables.shapes import shapes_of

__all__ = ["IgnoredTargets", "ignored_targets"]

MIN_IGNORED = 0.5  # of the targets: to gather the others costs a copy
MAX_SHIFT = 2.0  # rows of logits for each target: the last ones of a sequence may predict nothing

_WEIGHTS_AT = {"aten::linear": 1, "aten::matmul": 1, "aten::mm": 1, "aten::addmm": 2, "aten::einsum": 1}
_VIEWS = frozenset({
    "aten::view", "aten::reshape", "aten::_unsafe_view", "aten::view_as", "aten::transpose", "aten::permute", "aten::t",
    "aten::mT", "aten::flatten", "aten::unflatten", "aten::slice", "aten::narrow", "aten::select", "aten::squeeze",
    "aten::unsqueeze", "aten::expand", "aten::detach", "aten::alias", "aten::as_strided",
})  # fmt: skip
_BETWEEN = _VIEWS | {
    "aten::to", "aten::_to_copy", "aten::copy_", "aten::clone", "aten::contiguous", "aten::add", "aten::add_",
    "aten::mul", "aten::mul_", "aten::div", "aten::div_", "aten::tanh", "aten::tanh_",
}  # fmt: skip
_LOG_SOFTMAX, _LOSS_OF_LOGITS = "aten::log_softmax", "aten::cross_entropy_loss"


class IgnoredTargets(NamedTuple):
    """The cross entropies of one line; figures are means over calls."""

    file: str
    line: int
    classes: int
    targets: float
    ignored: float
    host: Intervals  # of projection and loss, and of their functions in the backward pass
    readers: tuple[str, ...]  # further operators that are given the logits of all targets

    @property
    def share(self) -> float:
        """Return the share of the targets that are ignored."""
        return self.ignored / self.targets


class _Call(NamedTuple):
    """Places among a step's outermost operators."""

    head: int
    others: list[int]  # between projection and loss, and the loss itself
    readers: list[str]


@shared_table
def ignored_targets(t: Tables) -> IgnoredTargets | None:
    """Return the line whose ignored targets take longest, None where most targets count or no projection is seen."""
    info, named = t.capture.info, t.named
    if info is None or t.capture.attribution is None or not named.trace.epoch_ns:
        return None
    found = [one for record in info.targets if (one := _of_record(t, record)) is not None]
    return max(found, key=lambda one: one.share * total(one.host), default=None)


def _of_record(t: Tables, record: TargetRecord) -> IgnoredTargets | None:
    sizes = {len(column) for column in (record.began_ns, record.ended_ns, record.targets, record.ignored)}
    targets, ignored = sum(record.targets), sum(record.ignored)
    if sizes == {0} or len(sizes) > 1 or not MIN_IGNORED * targets <= ignored <= targets or not ignored:
        return None
    events, epoch_ns = t.named.trace.events, t.named.trace.epoch_ns
    begins, ends = (np.array(column, np.int64) - epoch_ns for column in (record.began_ns, record.ended_ns))
    parts, readers = [EMPTY], dict[str, None]()
    for step in matched_steps(t):
        of = call_of(begins, ends, (events.start[step.named] + events.end[step.named]) // 2)
        for i in distinct(of[of >= 0]).tolist():
            call = _find(t.named, step, np.flatnonzero(of == i).tolist(), record.classes, record.targets[i])
            if call is None:
                continue
            parts += [extent(t, step.rows[[at]])[0] for at in (call.head, *call.others)]
            readers |= dict.fromkeys(call.readers)
    host = union(*parts)
    if not len(host.start):
        return None
    num = len(record.targets)
    return IgnoredTargets(record.file, record.line, record.classes, targets / num, ignored / num, host, tuple(readers))


def _find(named: Tables, step: MatchedStep, loss: list[int], classes: int, targets: int) -> _Call | None:
    """Return the projection before a loss, and who else is given its logits; None where no projection fits."""
    rows = step.named
    takes_logits = any(named.name(int(rows[at])) == _LOSS_OF_LOGITS for at in loss)
    between = _BETWEEN if takes_logits else _BETWEEN | {_LOG_SOFTMAX}
    others, readers = list(loss), list[str]()
    for at in range(loss[0] - 1, -1, -1):
        row = int(rows[at])
        shapes, name = shapes_of(named.trace, row), named.name(row)
        weights = _weights(name, shapes, classes, targets)
        if weights is not None:
            readers += _readers(named, step, range(loss[-1] + 1, len(rows)), weights, (classes, targets))
            return _Call(at, others, readers)
        if any(_are_logits(shape, classes, targets) for shape in shapes):
            if name in between:
                others.append(at)
            else:
                readers.append(name)
    return None


def _readers(named: Tables, step: MatchedStep, places: range, weights: Shape, size: tuple[int, int]) -> Iterator[str]:
    """Yield the operators behind the loss, those of the backward pass left out, that are given all logits."""
    for at in places:
        row = int(step.named[at])
        name = named.name(row)
        if name in _VIEWS or BACKWARD.match(name) or not name.startswith("aten::"):
            continue
        given = [shape for shape in shapes_of(named.trace, row) if shape not in (weights, weights[::-1])]
        if any(_are_logits(shape, *size) for shape in given):
            yield name


def _weights(name: str, shapes: tuple[Shape, ...], classes: int, targets: int) -> Shape | None:
    """Return the shape of the weights of a product that makes the logits, None of any other operator."""
    at = _WEIGHTS_AT.get(name)
    if at is None or len(shapes) <= at or len(shapes[at]) != 2 or not shapes[at - 1]:
        return None
    weights, given = shapes[at], shapes[at - 1]
    outer, inner = weights if name == "aten::linear" else weights[::-1]
    if name == "aten::einsum" and outer != classes:  # either order
        outer, inner = weights
    if outer != classes or given[-1] != inner:
        return None
    return weights if targets <= num_elements(given[:-1]) <= MAX_SHIFT * targets else None


def _are_logits(shape: Shape, classes: int, targets: int) -> bool:
    return len(shape) > 1 and classes in shape and targets <= num_elements(shape) / classes <= MAX_SHIFT * targets
