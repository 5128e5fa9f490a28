"""Another thread of the script runs Python code and delays the training thread.

What it looks for
    A thread that uses CPU time in Python functions of the script. Threshold: 5% of the step.

Why it costs
    Only one thread at a time runs Python. Each operator call may wait up to 5 ms for the interpreter.

What to do
    Move the work to a process, such as DataLoader workers or a pool. Or use NumPy or torch, which release the
    interpreter.

How sure
    Medium: the delay of the training thread is not measured. Needs `diagnose trace`.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import total
from diagnose.model.locations import is_own_file
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import outside_operators
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="interpreter-contention",
    kind="run",
    order=30,
    legend=Legend(
        "another thread held the interpreter",
        heading="Interpreter contention",
        meaning="a thread of the script computes in Python, and the training thread has to wait for it",
    ),
    needs=("samples of the threads",),
    changes=("move-to-process",),
)
ADVICE = (
    Advice(
        id="move-to-process",
        title="Do the thread's Python work in a process, or once before the loop{there}",
        numerics=identical("if the work draws no random numbers that others draw too"),
        after="""# what depends on the sample alone: once, before the loop
prepared = [preprocess(each) for each in inputs]
# else in processes: a dataset's __getitem__ does the work, and its workers run ahead of the step
loader = DataLoader(dataset, batch_size=batch_size, num_workers=1, persistent_workers=True)""",
        needs="arguments and results that can be pickled, and a core",
        least=0.25,  # the training thread would have had some of that time anyway
        is_moved=True,
    ),
)


def find(t: Tables) -> list[Finding]:
    """Name the thread that computes most in Python, and its lines."""
    samples, free_ns = t.capture.samples, total(outside_operators(t)) / t.steps.num
    found = []
    if samples is None or not samples.watched_ns:
        return []
    for thread in samples.others:
        own = [at for at in thread.places if is_own_file(at.file)]
        seen = sum(at.num for at in own)
        # At jumps and beginnings: of a loop in Python a third of the samples is, of one in C none.
        if seen < 5 or sum(at.in_python for at in own) < 0.1 * seen:
            continue
        computed = thread.cpu_ns * seen / max(sum(at.num for at in thread.places), 1)
        # Of what both compute: on a machine with other work each of them has a core for a part of the time only.
        share = max(computed / samples.watched_ns, computed / max(computed + samples.own_cpu_ns, 1))
        found.append((min(share, 1.0), thread, own[:3]))
    if not found:
        return []
    share, thread, places = max(found, key=lambda each: each[0])
    lost = min(share * t.steps.step_ns, free_ns)
    if lost < 0.05 * t.steps.step_ns:
        return []
    return [
        Finding(
            rule=META.id,
            title=f"The thread {thread.name} computes in Python and keeps the interpreter from the step",
            lost_ns=lost,
            count=thread.num,
            total_ns=int(lost * t.steps.num),
            evidence=(
                f"It computes for {percent(share, 0)} of the time in which it or the training thread does, "
                f"{duration(share * t.steps.step_ns)} of the step.",
                f"The training thread is outside of operators for {duration(free_ns)} of the step: there it needs the "
                "interpreter, or waits for what the thread prepares.",
            ),
            where=tuple(line_at(t, at.file, at.line, at.function) for at in places),
            confidence="medium",
            facts={"thread": thread.name},
        )
    ]
