"""Every sample of a dataset prepared once, before training: the line to paste, and the edit of the loader's call.

A list is a dataset with an index: nothing else of the script changes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.changes.common.loading import OWN_COLLATE, is_iterable, number
from diagnose.model.locations import Where, at_line
from diagnose.text.numbers import duration, size_words

if TYPE_CHECKING:
    from diagnose.changes.common.call_edits import EditedCall
    from diagnose.model.diagnosis import Facts
    from diagnose.model.records import CallRecord
    from diagnose.tables.program import Program

__all__ = ["MAX_KEPT_BYTES", "WHOLE", "Prepared", "bytes_of_all", "prepared"]

WHOLE = frozenset({"RandomSampler", "SequentialSampler"})  # samplers whose batches are all samples of a dataset
# Samplers of torch that ask a dataset for its length and give one whole number for a sample. Others may give anything.
_BY_INDEX = WHOLE | {"DistributedSampler"}
# More host memory than that may not be free during training: each rank keeps its own list.
MAX_KEPT_BYTES = 8e9


@dataclass(frozen=True, slots=True)
class Prepared:
    """How every sample is made once: ``code`` to paste, and the edit that does the same where that is certain."""

    code: str
    edit: EditedCall | None
    needs: str


def prepared(facts: Facts, program: Program) -> Prepared | None:
    """Return how every sample of the script's dataset is made once; None where the call does not show the dataset.

    It is not where samples draw random numbers, as a stream, or in a run that sees each sample once.
    """
    made = _call(facts)
    is_left = facts.get("draws") or facts.get("num_workers") or is_iterable(facts) or program.trains is False
    is_left = is_left or facts.get("comes_again") is False  # which pays from the second epoch on
    given = _dataset(made) if made is not None else None
    if made is None or is_left or given is None or not _is_of_dataset(facts):
        return None
    name = ast.unparse(given)
    if isinstance(given, ast.Call):  # made in the call itself
        every = f"[samples[i] for samples in [{name}] for i in range(len(samples))]"
        name = "samples"
    else:
        every = f"[{name}[i] for i in range(len({name}))]"
    at = at_line(Where(made.file, made.begin[0]))
    return Prepared(
        f"{name} = {every}   # every sample once, before training\n# above the line that makes the DataLoader, {at}",
        _edit(facts, made, every),
        _needs(facts),
    )


def _call(facts: Facts) -> CallRecord | None:
    from diagnose.changes.common.call_edits import calls_in

    found = calls_in({"made": facts.get("made")}, ("DataLoader",))
    return found[0] if found else None


def _dataset(made: CallRecord) -> ast.expr | None:
    """Return what a call passes as its dataset: a variable, such as self.rows, or a call; None for anything else."""
    from diagnose.changes.common.call_edits import argument_of

    given = node = argument_of(made, "dataset")
    while isinstance(node, ast.Attribute):
        node = node.value
    return given if isinstance(node, ast.Name) or isinstance(given, ast.Call) else None


def _is_of_dataset(facts: Facts) -> bool:
    """Return whether the slow line is known to be the dataset's: a function that collates is called for each batch."""
    collate = facts.get("collate_fn")
    return not collate or collate in OWN_COLLATE or facts.get("line_function") == "__getitem__"


def _edit(facts: Facts, made: CallRecord, every: str) -> EditedCall | None:
    """Return the call with the list in the dataset's place; None where the list may not do, or be made too often."""
    from diagnose.changes.common.call_arguments import Expression
    from diagnose.changes.common.call_edits import edited

    is_indexed = facts.get("sampler") in _BY_INDEX and bool(number(facts, "batch_size"))
    if not is_indexed or _is_in_loop(made) or bytes_of_all(facts) > MAX_KEPT_BYTES:
        return None
    return edited(made, {"dataset": Expression(every)})


def _is_in_loop(made: CallRecord) -> bool:
    """Return whether the lines above show a loop around a call, which would make the list each time."""
    indent = _indent(made.lines[made.begin[0] - made.first])
    for line in reversed(made.lines[: made.begin[0] - made.first]):
        if line.strip() and _indent(line) < indent:
            indent = _indent(line)
            if line.split()[0] in ("for", "while", "async"):
                return True
    return False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def bytes_of_all(facts: Facts) -> float:
    """Return what all samples take, 0 where it is not known."""
    return number(facts, "batch_bytes") * number(facts, "num_batches") if facts.get("sampler") in WHOLE else 0.0


def _needs(facts: Facts) -> str:
    batches, size = number(facts, "num_batches"), bytes_of_all(facts)
    num = number(facts, "batch_size") * batches
    held = f"memory for all {num:,.0f} samples, about {size_words(size)}" if num and size else "memory for all samples"
    ns = number(facts, "batch_ns") * batches
    later = f"about {duration(ns)} later" if ns else "as much later as loading all of them takes"
    return f"{held}; the first step begins {later}: it pays from the second epoch on"
