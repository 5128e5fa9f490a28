"""Do it in a process instead of a thread.

What it does
    Lets a process compute in Python beside the training: each has an interpreter of its own.

What to watch
    Arguments and results are pickled and copied, which costs more than the work where that is short. What is the same
    for each batch is computed once, before the loop, which costs least of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = (
    0.25  # of the time in which both want the interpreter: the training thread would have had some of it anyway
)
_AFTER = """# what depends on the sample alone: once, before the loop
prepared = [preprocess(each) for each in inputs]
# else in processes: a dataset's __getitem__ does the work, and its workers run ahead of the step
loader = DataLoader(dataset, batch_size=batch_size, num_workers=1, persistent_workers=True)"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    at = f" ({at_line(place)})" if place else ""
    return Advice(
        title=f"Do the thread's Python work in a process, or once before the loop{at}",
        before=(place.code or "") if place else "",
        after=_AFTER,
        least=MIN_SAVED_SHARE,
        needs="arguments and results that can be pickled, and a core",
    )


CHANGE = Change(
    id="move-to-process",
    title="Do the thread's Python work in a process, or once before the loop",
    numerics=identical("where the work draws no random numbers that others draw too"),
    is_moved=True,
    advice=_advice,
    patch=ByHand("what a process is given only the script's author knows"),
    edit=ByHand("what a process is given only the script's author knows"),
    without_remedy="torch's DataLoader and Python's multiprocessing do it",
)
