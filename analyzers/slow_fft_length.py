"""Fourier transforms have a length that libraries are slow at.

What it looks for
    Transforms whose length has a large prime factor. Threshold: a fast length saves 5% of GPU busy time, or on a CPU 3%
    of the step.

Why it costs
    Libraries have fast kernels for small prime factors only.

What to do
    Use a length that is a product of 2, 3, 5 and 7. For a convolution, pad with more zeros: the result stays the same.
    A spectrum of another length has other frequencies.

How sure
    Medium: the saving is estimated from operation counts. Needs recorded shapes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from diagnose.analyzers.common.advice import Advice, of_kind, other_training, rounding
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.analyzers.common.locate import line_at
from diagnose.model.arrays import Mask, Rows
from diagnose.model.dataflow import Frame
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, contains, distinct, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.perf_model.op_inputs import inputs
from diagnose.perf_model.transforms import (
    CONVOLVED,
    TRANSFORMS,
    Transform,
    factors,
    fast_length,
    lower_fast_length,
    product_words,
    transform_of,
)
from diagnose.tables import Tables
from diagnose.tables.dispatch import TINY_OPERATOR_NS
from diagnose.tables.host import outermost
from diagnose.tables.kernel_classes import tasks_of
from diagnose.text.numbers import duration, percent, plural

META = RuleMeta(
    id="slow-fft-length",
    kind="kernel",
    order=55,
    host_order=38,
    legend=Legend("Fourier transforms had a slow length"),
    changes=("fast-fft-length",),
    needs=("shapes",),
)
ADVICE = (
    Advice(
        id="fast-fft-length",
        title="Take {fast} samples for each spectrum instead of {length}",
        numerics=other_training("another length has other frequencies, and another number of them"),
        after="""n = {fast}   # {fast_product}; or {lower}. Its frequencies are 1 / n apart
# torch.stft: n_fft=n with a window of n; torch.fft.rfft: x[..., :n] of longer data""",
        needs="users of the spectrum that do not depend on {length} samples",
        watch="What was trained on the old frequencies is trained again.",
        when=of_kind("spectrum"),
        least=0.7,
    ),
    Advice(
        id="fast-fft-length",
        title="Give the transforms {fast} points instead of {length}, for example by padding",
        numerics=other_training("transforms without zeros wrap around, with another length at another place"),
        after="""# at the source of the data: {fast} points ({fast_product}) or {lower}; or around the layers
y = layers(F.pad(x, (0, {added})))[..., :{length}]""",
        needs="data that need not be periodic with {length} points",
        watch="Data that are periodic, as on a ring, must keep their length.",
        when=of_kind("periodic"),
        least=0.7,
    ),
    Advice(
        id="fast-fft-length",
        title="Pad the transforms to {fast} instead of {length}: more zeros, the same convolution",
        numerics=rounding("transforms of another length round differently; the zeros have to cover the whole filter"),
        after="""n = {fast}   # {fast_product}, in all of its transforms; less than {length} would wrap around
y = torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(w, n=n), n=n)[..., :{length}]   # cut as before""",
        needs="a result that is cut to the length it has now",
        watch="Parameters that are stored as a spectrum have another number of frequencies.",
        when=of_kind("convolution"),
        least=0.7,
    ),
)

Purpose: TypeAlias = Literal["convolution", "periodic", "spectrum"]
_PURPOSES: Mapping[Purpose, str] = {
    "convolution": "They are padded with zeros and transformed back, as a convolution is: more zeros change nothing.",
    "periodic": "They are transformed back, and the convolution is not padded: another length changes the result.",
    "spectrum": "They are not transformed back: a spectrum of another length has other frequencies.",
}

_OWN = ("parameter", "buffer", "constant")
_BLUESTEIN = re.compile(r"(?i)bluestein")
_INVERSE = re.compile(r"^aten::(fft_irfft|fft_ifft|fft_hfft|istft)")
_PAD = re.compile(r"^aten::constant_pad_nd$")
_ZEROS = re.compile(r"^aten::(new_)?zeros\b|^aten::zero_")
TITLE = "Fourier transforms have a slow length"


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim of each slow transform the last part, which a fast length does not take."""
    events, parts = t.trace.events, [EMPTY]
    for calls in slow_calls(t):
        start, end = events.start[calls.rows], events.end[calls.rows]
        computes = end - start >= TINY_OPERATOR_NS
        start, end = start[computes], end[computes]
        parts.append(Intervals(start + ((end - start) * calls.transform.kept).astype(np.int64), end))
    return worth_claiming(t, left, union(*parts), 0.03)


def find(t: Tables, free: Mask | None = None) -> list[Finding]:
    """Name the time above that of fast lengths."""
    found, time = [], t.tasks.end - t.tasks.start
    for calls in slow_calls(t):
        if free is None:
            rows = t.in_window(calls.rows)
            found.append(_Slow(calls, total(t.covering(rows)), len(rows)))
            continue
        tasks = np.flatnonzero(free & tasks_of(t, "fft") & t.launched_in(t.covering(calls.rows)))
        if t.tasks_matching(_BLUESTEIN, tasks).any():
            found.append(_Slow(calls, int(time[tasks].sum()), len(distinct(t.operators[tasks])), tasks))
    if not found:
        return []
    found.sort(key=lambda each: -each.ns)
    lines, where, length = _lines(t, found), _places(t, found), found[0].calls.length
    fast, facts = fast_length(length), dict[str, object](kind=purpose_of(t, length), length=length)
    facts |= {"fast": fast, "fast_product": product_words(fast), "lower": lower_fast_length(length)}
    facts["added"] = fast - length
    if free is None:
        rule = IdleRule(META.id, TITLE, "middle", "medium", lines, facts)
        return [replace(one, where=where or one.where) for one in idle_finding(t, rule)]
    tasks = np.concatenate([each.tasks for each in found])
    kept = sum(each.ns * each.calls.transform.kept for each in found) / max(sum(each.ns for each in found), 1)
    others = free & t.tasks_matching(_BLUESTEIN)  # of calls before the recording
    others[tasks] = False
    tasks = np.concatenate([tasks, np.flatnonzero(others)])
    kept_ns = kept * float(time[tasks].sum())
    kernels = KernelRule(META.id, TITLE, kept_ns=kept_ns, evidence=lines, confidence="medium", facts=facts)
    return [replace(one, where=where or one.where) for one in kernel_finding(t, kernels, tasks)]


class Calls(NamedTuple):
    """The calls of one transform."""

    transform: Transform
    rows: Rows

    @property
    def length(self) -> int:
        """Return the length with the largest prime factor."""
        return max(self.transform.lengths, key=lambda n: factors(n)[-1:])


class _Slow(NamedTuple):
    calls: Calls
    ns: int  # in the window
    num: int  # of the calls
    tasks: Rows = np.empty(0, np.intp)


def slow_calls(t: Tables) -> list[Calls]:
    """Return the transforms of slow lengths up to the end of the window: of each its operators.

    Where the window has no inputs, they are those of a step of the attribution window that calls the same operators.
    """
    # Factors of some tens that MKL sums up directly take 1.3 to 4 times as long, with pocketfft hardly longer.
    limit = 2.0 if t.device_id < 0 and t.capture.known.flags.mkl else CONVOLVED
    _, *known, _ = _by_step(t.named)
    like = {tuple(map(t.named.name, rows.tolist())): rows for rows in known}
    found: dict[Transform, list[int]] = defaultdict(list)
    for rows in _by_step(t)[:-1]:
        with_inputs = rows if t.named is t else _like(like, tuple(map(t.name, rows.tolist())))
        for row, its in zip(rows.tolist(), with_inputs.tolist(), strict=False):
            transform = transform_of(t.named.name(its), *_inputs(t.named, its))
            if transform is not None and transform.slowdown >= limit:
                found[transform].append(row)
    return [Calls(transform, np.array(rows, np.intp)) for transform, rows in found.items()]


def _by_step(t: Tables) -> list[Rows]:
    """Return the transforms before the first step, of each step and after the last one, without those others call."""
    rows = t.calls(TRANSFORMS, Kind.OP)
    threads = t.trace.events.thread[rows]
    each = [outermost(t.trace, rows[threads == thread]) for thread in distinct(threads).tolist()]
    rows = np.sort(np.concatenate([np.empty(0, np.intp), *each]))
    return np.split(rows, np.searchsorted(t.trace.events.start[rows], [*t.steps.start, t.steps.window[1]]))


def _like(known: Mapping[tuple[str, ...], Rows], names: tuple[str, ...]) -> Rows:
    """Return the operators of a known step that has these names, or of several such steps that end in these names.

    A host that is ahead of the device launched the first tasks of the window before it.
    """
    of_names = [known[names]] if names in known else []
    for step, rows in known.items():
        num = -(-len(names) // max(len(step), 1))
        if names and (step * num)[-len(names) :] == names:
            of_names.append(np.tile(rows, num)[-len(names) :])
    return of_names[0] if of_names else np.empty(0, np.intp)


def _inputs(t: Tables, row: int) -> tuple[str, str, str]:
    """Return the texts of an operator's shapes, types and values, "" where they were not recorded."""
    events, names = t.trace.events, t.trace.names
    shapes, types, values = (
        names[text] if (text := int(column[row])) >= 0 else ""
        for column in (events.shapes, events.types, events.values)
    )
    return shapes, types, values


def _lines(t: Tables, found: Sequence[_Slow]) -> list[str]:
    """Say of the lengths that take longest what they are, what they take, and which length is fast."""
    of_length: dict[int, list[_Slow]] = defaultdict(list)
    for each in found:
        of_length[each.calls.length].append(each)
    lines = []
    for length, those in list(of_length.items())[:3]:
        product = f"= {product_words(length)}" if len(factors(length)) > 1 else "is prime"
        num, ns = sum(each.num for each in those), sum(each.ns for each in those)
        kept = sum(each.ns * each.calls.transform.kept for each in those) / max(ns, 1)
        lines.append(
            f"{length} {product}: {plural(num / t.steps.num, 'transform')} a step, {duration(ns / t.steps.num)} of it. "
            f"{fast_length(length)} = {product_words(fast_length(length))} takes {percent(kept, 0)} of the operations."
        )
    return [*lines, _PURPOSES[purpose_of(t, found[0].calls.length)]]


def _places(t: Tables, found: Sequence[_Slow]) -> tuple[Where, ...]:
    """Return the lines of the data flow, those of the longest transforms first, then those that pad for them.

    A transform of the backward pass has the line of the one that it is the gradient of.
    """
    ns: dict[Frame, int] = {}
    known: Mapping[int, Frame] = t.flow.lines if t.flow is not None else {}
    for each in found:
        for line in map(known.get, each.calls.rows.tolist()):
            if line is not None:
                ns[line] = ns.get(line, 0) + each.ns // len(each.calls.rows)
    padding = (line for each in found for line in _padding(t.named, each.calls.length) if line is not None)
    lines = dict.fromkeys([*sorted(ns, key=lambda line: -ns[line]), *(padding if ns else ())])
    return tuple(line_at(t, *line) for line in list(lines)[:5])


def purpose_of(t: Tables, length: int) -> Purpose:
    """Return what transforms of a length are for: whether they are padded with zeros, and transformed back."""
    t = t.named
    rows = t.calls(TRANSFORMS, Kind.OP)
    back = contains(t.covering(t.calls(_INVERSE, Kind.OP)), t.trace.events.start[rows]).tolist()
    each = [
        (transform_of(t.name(row), *_inputs(t, row)), is_back) for row, is_back in zip(rows.tolist(), back, strict=True)
    ]
    if not any((is_back or one.is_inverse) and length in one.lengths for one, is_back in each if one is not None):
        return "spectrum"
    # Weights or constants of the program that are a spectrum have its length.
    flow = t.capture.dataflow
    reads = (use for one in flow.operators for use in one.reads if use.shape) if flow is not None else ()
    spectra = [use.value for use in reads if use.dtype.startswith("complex")]
    keeps_spectrum = flow is not None and any(flow.values[each].role in _OWN for each in spectra)
    return "convolution" if any(True for _ in _padding(t, length)) and not keeps_spectrum else "periodic"


def _padding(t: Tables, length: int) -> Iterator[Frame | None]:
    """Yield for each operator that pads to this length with zeros the line, None where it is not known."""
    for row in t.calls(_PAD, Kind.OP).tolist():
        if length in _padded_to(t, row):
            yield t.flow.lines.get(row) if t.flow is not None else None
    yield from _zero_buffers(t, length)


def _padded_to(t: Tables, row: int) -> set[int]:
    """Return the sizes that an operator pads dimensions to with zeros."""
    given = inputs(*_inputs(t, row))
    try:
        if given is None or float(given.values[2]) != 0:
            return set()
        sizes, pads = given.tensor(0).shape[::-1], given.numbers(1)
    except (ValueError, IndexError):
        return set()
    each = zip(sizes, pads[::2], pads[1::2], strict=False)
    return {size + before + behind for size, before, behind in each if before + behind > 0}


def _zero_buffers(t: Tables, length: int) -> Iterator[Frame | None]:
    """Yield the lines that make zeros of this length of which a part is written before they are transformed."""
    flow = t.capture.dataflow
    if flow is None:
        return
    made_by = {value.storage: value.producer for value in flow.values if value.version == 0 and value.producer >= 0}
    for one in flow.operators:
        if one.name.startswith("aten::_fft_r2c") and one.phase != "backward" and one.reads:
            value = flow.values[one.reads[0].value]
            producer = flow.operators[made_by.get(value.storage, 0)]
            is_written = value.version > 0 and value.storage in made_by and one.reads[0].shape[-1:] == (length,)
            if is_written and _ZEROS.match(producer.name):
                yield producer.place
