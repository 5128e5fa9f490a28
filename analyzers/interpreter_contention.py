"""Another thread of the script computes in Python, which only one thread does at a time.

What it looks for
    Threads beside the training thread that the sampler sees in functions of the script while they take CPU time, with
    the interpreter's lock, or at jumps and beginnings of functions, where Python takes turns: computing in C without
    the lock a thread would be seen at its call. What they compute in Python at most, and the training thread's time
    outside of operators: the smaller of both, from 5 % of the step on.

Why it costs
    The training thread needs the interpreter to call each operator. A thread that computes in Python gives it up every
    5 ms only, so that each call may wait that long; and what the thread prepares comes no faster than Python computes.

What to do
    Do it in a process: a DataLoader's workers, or a pool. Or once before the loop, or with NumPy or torch, which give
    the interpreter up.

How sure
    Medium: the thread's CPU time and its line are measured; how much of it delays the training thread is not. What
    waits for a queue, a socket or a file takes no CPU time and is left out. Where the sampler could not read frames
    from outside, threads took turns more often while it ran than they do without it.
"""

from __future__ import annotations

from typing import NamedTuple

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.locate import source_line
from diagnose.model.capture import OtherThread
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.model.user_files import is_own_file
from diagnose.tables import Tables
from diagnose.tables.host_gaps import outside_operators
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="interpreter-contention",
    kind="run",
    order=30,
    legend=Legend(
        "another thread held the interpreter",
        "#8c6d1f",
        "Interpreter contention",
        "a thread of the script computes in Python, and the training thread has to wait for it",
    ),
    needs=("samples of the threads",),
    changes=("move-to-process",),
)
ADVICE = (
    Advice(
        id="move-to-process",
        title="Do the thread's Python work in a process, or once before the loop{there}",
        numerics=identical("where the work draws no random numbers that others draw too"),
        after="""# what depends on the sample alone: once, before the loop
prepared = [preprocess(each) for each in inputs]
# else in processes: a dataset's __getitem__ does the work, and its workers run ahead of the step
loader = DataLoader(dataset, batch_size=batch_size, num_workers=1, persistent_workers=True)""",
        needs="arguments and results that can be pickled, and a core",
        least=0.25,  # the training thread would have had some of that time anyway
        is_moved=True,
    ),
)


MIN_STEP_SHARE = 0.05  # of the step
MIN_SAMPLES = 5  # of a thread, in functions of the script
MIN_IN_PYTHON = 0.1  # of these, at jumps and beginnings: of a loop in Python a third is, of one in C none


class _Held(NamedTuple):
    """What a thread computes in Python."""

    thread: OtherThread
    share: float  # of the time in which it or the training thread computes
    where: tuple[Where, ...]


def find(t: Tables) -> list[Finding]:
    """Name the thread that computes most in Python, and its lines."""
    held = max(_threads(t), key=lambda each: each.share, default=None)
    if held is None:
        return []
    free_ns = total(outside_operators(t)) / t.steps.num
    lost = min(held.share * t.steps.step_ns, free_ns)
    if lost < MIN_STEP_SHARE * t.steps.step_ns:
        return []
    return [
        Finding(
            rule=META.id,
            title=f"The thread {held.thread.name} computes in Python and keeps the interpreter from the step",
            lost_ns=lost,
            count=held.thread.num,
            total_ns=int(lost * t.steps.num),
            evidence=(
                f"It computes for {percent(held.share, 0)} of the time in which it or the training thread does, "
                f"{duration(held.share * t.steps.step_ns)} of the step.",
                f"The training thread is outside of operators for {duration(free_ns)} of the step: there it needs the "
                "interpreter, or waits for what the thread prepares.",
            ),
            where=held.where,
            confidence="medium",
            facts={"thread": held.thread.name, "python_share": round(held.share, 4)},
        )
    ]


def _threads(t: Tables) -> list[_Held]:
    samples = t.capture.samples
    if samples is None or not samples.watched_ns:
        return []
    found = []
    for thread in samples.others:
        own = [at for at in thread.places if is_own_file(at.file)]
        seen = sum(at.num for at in own)
        if seen < MIN_SAMPLES or sum(at.in_python for at in own) < MIN_IN_PYTHON * seen:
            continue
        where = tuple(Where(at.file, at.line, at.function, code=source_line(t, at.file, at.line)) for at in own[:3])
        computed = thread.cpu_ns * seen / max(sum(at.num for at in thread.places), 1)
        # Of what both compute: on a machine with other work each of them has a core for a part of the time only.
        share = max(computed / samples.watched_ns, computed / max(computed + samples.own_cpu_ns, 1))
        found.append(_Held(thread, min(share, 1.0), where))
    return found
