"""Python code between operators keeps the GPU waiting.

What it looks for
    Idle intervals without operators or calls, of at least 1 ms (in short steps, 10% of the step). Examples:
    preprocessing, logging, checkpoints. Calls of the slow line are watched in two steps. Does one go through the same
    data each time?

Why it costs
    The GPU runs out of work while Python runs.

What to do
    If the code computes, vectorize it, run it less often, or move it to another process. A thread does not help, since
    only one thread at a time runs Python. If it waits for files or sockets, use a background thread. Inside forward,
    loss or backward, vectorize it or compute constants once.

How sure
    High if samples or Python frames show the line, otherwise medium or low.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical, rounding
from diagnose.analyzers.common.idioms import call_cause, idiom_facts
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.locate import seen_during
from diagnose.model.diagnosis import Confidence, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, intersect, overlaps, total, union
from diagnose.model.line_calls import LOADS, SAVES, calls
from diagnose.model.locations import in_library
from diagnose.model.numerics import number
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import (
    gaps_of_every_step,
    min_host_gap_ns,
    ready_share,
    recurring_gaps,
    waiting_share,
)
from diagnose.tables.names import TO_HOST
from diagnose.tables.passes import share_in_passes
from diagnose.tables.run_steps import is_loop_head
from diagnose.text.numbers import duration, percent, plural

META = RuleMeta(
    id="python-stall",
    kind="idle",
    order=120,
    host_order=80,
    legend=Legend("Python code ran between operators"),
    changes=("save-in-background", "load-mapped", "cheaper-line", "python-off-the-loop"),
    also=("save-less-often",),
    inflated=True,
    cause="between-operators",
    paced_by="host",
    is_symptom=True,
)
_OF_TORCH = ("Optimizer.", "autograd::", "DistributedDataParallel.", "Torch-Compiled Region")
_IN_PASS = Advice(
    id="python-off-the-loop",
    title="Vectorise the Python work{at}",
    numerics=rounding("sums may be taken in another order; compare the loss of the first steps"),
    after="""# operators in place of the loop; what stays the same is computed once, before the training loop
scale = torch.linspace(0.1, 1.0, x.shape[-1])      # once
loss = (scale * x).sum()                           # in place of a loop over rows, .tolist() and torch.tensor(…)
# what is only logged: after the backward, and in few steps""",
    needs="work that tensor operators can do, or that does not change from step to step",
    when=lambda f, _: _is_the_scripts(f) and (_caller(f) == "module" or number(f.facts, "in_pass") >= 0.5),
    least=0.25,  # what loops over rows leave to operators is little, others may be half
    most=0.95,
)
_HOOK = """# only in the steps that need it
if step % 100 == 0:
    handle = model.register_forward_hook(hook)
...
handle.remove()"""
ADVICE = (
    replace(
        _IN_PASS,
        title="Run the Python work of the hook{at} in fewer steps",
        numerics=identical("if the work does not read what the step changes"),
        after=_HOOK,
        needs="a hook that is not wanted in every step",
        when=lambda f, _: _is_the_scripts(f) and _caller(f) == "hook",
        least=0.0,
        most=1.0,
    ),
    _IN_PASS,
    replace(
        _IN_PASS,
        title="Call the library{at} one step ahead, in a background thread",
        numerics=identical("if the work does not read what the step changes"),
        after="""from concurrent.futures import ThreadPoolExecutor

# a library computes it, and the script's own line calls it
background = ThreadPoolExecutor(1)
pending = background.submit(preprocess, next_inputs)   # one step ahead
inputs = pending.result()                              # waits if it is not ready""",
        needs="a call that does not depend on this step, and a library that gives the interpreter free",
        when=lambda f, _: _is_the_scripts(f) and in_library(f.where),
        least=0.0,
        most=1.0,
        is_ahead=True,
    ),
    replace(
        _IN_PASS,
        title="Do the Python work{at} on the device",
        numerics=identical(),
        after="""# it works on what the device computed: tensor operators there (sort, topk, argmax), and read less
order = scores.argsort(descending=True)          # in place of sorted(…, key=scores.__getitem__)
# or another process, while the next step runs: its result comes a step later
from concurrent.futures import ProcessPoolExecutor

pool = ProcessPoolExecutor(1)
pending = pool.submit(postprocess, outputs.cpu().numpy())
result = pending.result()                        # one step later""",
        needs="no decision of this step that rests on the result",
        when=lambda f, _: _is_the_scripts(f) and number(f.facts, "after_read") >= 0.5,
        least=0.85,
        most=1.0,
    ),
    replace(
        _IN_PASS,
        title="Move the Python work{at} off the training thread",
        numerics=identical("if the work does not read what the step changes"),
        after="""from concurrent.futures import ThreadPoolExecutor

# what waits for files or sockets: into a background thread, with copies that the next step does not change
background = ThreadPoolExecutor(1)
background.submit(save, {k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()})""",
        needs="",
        when=lambda f, _: _is_the_scripts(f) and number(f.facts, "waiting_share") >= 0.5,
        least=0.85,
        most=1.0,
    ),
    replace(
        _IN_PASS,
        title="Make the Python work{at} cheaper",
        numerics=identical("if the work does not read what the step changes"),
        after="",
        needs="work that can be made cheaper, or a free CPU core for another process",
        when=lambda f, _: _is_the_scripts(f),
    ),
)


def _caller(finding: Finding) -> str:
    return next((w.caller for w in finding.where if w.file or w.library), "")


def _is_the_scripts(finding: Finding) -> bool:
    """Return whether the script or a library computes there, as far as known, and not torch itself."""
    named = any(w.file or w.library for w in finding.where) and number(finding.facts, "in_optimizer") < 0.5
    is_torchs = (finding.where[0].op or "").startswith(_OF_TORCH) if finding.where else True
    return (
        named
        and not is_torchs
        and not finding.facts.get("idiom")
        and not calls(finding, SAVES)
        and not calls(finding, LOADS)
    )


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in long intervals between operators, where something shows that the thread was in the loop.

    Where the thread was runnable but not scheduled for as long as that, they may be nothing but that, and those alone
    are claimed that come at the same place of most steps.
    """
    found = intersect(intersect(left, t.gaps.unlaunched()), t.python_gaps)
    if total(found) > ready_share(t) * (t.steps.window[1] - t.steps.window[0]):
        return found
    return intersect(found, gaps_of_every_step(t))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of Python between operators."""
    intervals, pieces, title = t.host_gaps, t.causes.pieces(META.id), "Python between operators delays the step"
    text = (
        f"{plural(len(intervals.start), 'interval')} of over {min_host_gap_ns(t) / 1e6:.1f} ms without an operator, "
        f"{duration(total(intervals) / t.steps.num)} a step."
    )
    seen, waiting = waiting_share(t, pieces)
    num = int(seen.sum())
    facts = {
        "waiting_share": int(waiting.sum()) / num if num >= 5 else None,  # of the samples, where they are enough
        "after_read": _share_after_reads(t, pieces),
        "in_pass": share_in_passes(t, pieces),  # between the forward and the backward of an operator
        "has_device": t.device_id >= 0,
        "in_optimizer": total(intersect(pieces, t.updates)) / max(total(pieces), 1),
        **idiom_facts(t, seen_during(t, pieces)),
    }
    why = call_cause(facts)
    title = why.title if why is not None else title
    marked = union(t.covering(t.host_rows(Kind.ANNOTATION)), recurring_gaps(t))
    shown: Confidence = "medium" if _is_mostly(pieces, marked) else "low"
    if t.capture.samples is not None or _is_mostly(pieces, t.covering(t.host_rows(Kind.PYTHON))):
        shown = "high"
    cause = META.cause if not ready_share(t) else None
    rows = t.host_rows(Kind.OP)  # operators within the pieces launch nothing
    rows = rows[overlaps(pieces, t.trace.events.start[rows], t.trace.events.end[rows])]
    texts = [text, *([why.text] if why is not None else [])]
    if len(rows):
        covers = percent(total(intersect(t.covering(rows), pieces)) / total(pieces))
        names = Counter(t.name(row) for row in rows.tolist()).most_common(3)
        listed = ", ".join(f"{name} ({num:,}×)" for name, num in names)
        texts.append(f"Operators that launch nothing cover {covers} of them: {listed}.")
    doubt = "no sample and no Python frame shows which code runs then" if shown == "low" else ""
    rule = IdleRule(META.id, title, "middle", shown, texts, facts, cause, doubt)
    found = []
    for each in idle_finding(t, rule):
        # A loop's head comes last: what it fetches another line made. A call that is explained comes first.
        named = why.place if why is not None else None
        places = sorted(each.where, key=lambda one: ((one.file, one.line) != named, is_loop_head(one.code)))
        first = places[0] if places else Where()
        indexed = (
            known
            for known in t.capture.deques.get(first.file or "", ())
            if known.line <= (first.line or 0) <= known.last
        )
        if (deque := next(indexed, None)) is not None:
            title = f"Indexing the deque {deque.name} takes longer the more it holds"
            places.insert(1, Where(first.file, deque.built))
        found.append(replace(each, title=title if deque is not None else each.title, where=tuple(places)))
    return found


def _is_mostly(pieces: Intervals, shown: Intervals) -> bool:
    return 2 * total(intersect(pieces, shown)) > total(pieces)


def _share_after_reads(t: Tables, pieces: Intervals) -> float:
    """Return the share of the idle time before which the last work that was queued is a copy of data to the host.

    The Python there works on what the device computed in this step: it cannot come before the step. A single number, as
    a loss that is printed, is nothing to work on.
    """
    if t.device_id < 0 or not len(pieces.start):
        return 0.0
    queued = np.flatnonzero(t.tasks.launch >= 0)
    start = t.trace.events.start[t.tasks.launch[queued]]
    order = np.argsort(start, kind="stable")
    is_read = t.tasks_matching(TO_HOST) & (t.trace.events.size[t.tasks.row] > 64)
    reads = np.append(is_read[queued[order]], False)
    last = np.searchsorted(start[order], pieces.start) - 1
    length = pieces.end - pieces.start
    return float(length[reads[last]].sum() / length.sum())
