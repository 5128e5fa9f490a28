"""How batches are loaded: the call to paste, and what workers and threads hide of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from diagnose.changes.common.change import SetArguments, other_training
from diagnose.model.limits import MAX_READY_SHARE
from diagnose.model.locations import Where, at_line
from diagnose.model.numerics import number
from diagnose.text.numbers import duration, size_words

if TYPE_CHECKING:
    from diagnose.changes.common.call_edits import EditedCall
    from diagnose.model.diagnosis import Facts
    from diagnose.model.records import CallRecord
    from diagnose.tables.program import Program

# Of the stall, what is gone at least when workers keep up: fetching a batch from them, and the cores they take, cost.
# In the two published pairs without and with four workers 86 and 87 % of what a step without the stall would save came
# true in the median step (evaluation/pages/pairs.md).
HIDDEN, HIDDEN_AT_BEST = 0.85, 0.9
_OWN_SAMPLERS = frozenset({"RandomSampler", "SequentialSampler", "_InfiniteConstantSampler"})
OWN_COLLATE = frozenset({"default_collate", "default_convert"})
THREADS = 8  # that wait for storage at the same time, in each process that loads
PREFETCH_FACTOR = 4  # batches that each of many workers prepares


# The arguments of torch's DataLoader that come before those that only have a name.
_PARAMETERS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
)


def _has_workers(passed: Mapping[str, object]) -> str:
    has = passed.get("num_workers")
    return f"it has {has} workers already" if isinstance(has, int) and has > 0 else ""


def _has_none(passed: Mapping[str, object]) -> str:
    """Return why a loader without workers is left: torch refuses to keep those, or to let them prepare batches."""
    return "" if passed.get("num_workers") else "it has no workers"


def _workers(num: int, unless: Callable[[Mapping[str, object]], str], **given: object) -> SetArguments:
    return SetArguments(
        ("DataLoader",),
        {"num_workers": num, "persistent_workers": True, **given},
        {"num_workers": "workers"},
        optional=("pin_memory",),
        unless=unless,
        parameters=_PARAMETERS,
    )


FIRST_WORKERS = _workers(4, _has_workers)
MORE_WORKERS = _workers(8, _has_none, prefetch_factor=PREFETCH_FACTOR)
IN_PROCESS = SetArguments(
    ("DataLoader",),
    {"num_workers": 0},
    without=("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout"),  # torch refuses these then
    unless=_has_none,
    parameters=_PARAMETERS,
)
KEEPING_WORKERS = SetArguments(("DataLoader",), {"persistent_workers": True}, unless=_has_none, parameters=_PARAMETERS)


def hidden_behind_rest(cost_ns: float, step_ns: float, num: int = 1) -> float:
    """Return the most of some work, as a share, that is gone if ``num`` processes or threads do it one step ahead.

    No step is shorter than they take for the work of one.
    """
    return min(max(step_ns - cost_ns / num, 0.0) / cost_ns, 1.0) if cost_ns > 0 else 1.0


def draws_at(facts: Facts) -> str:
    """Return the line at which samples draw random numbers, "" where none is known."""
    found = facts.get("draws")
    return at_line(Where(str(found["file"]), int(str(found["line"])))) if isinstance(found, Mapping) else ""


def recorded_cores(facts: Facts) -> int:
    """Return how many cores the recorded process could use, 0 where the recording does not hold it."""
    return int(number(facts, "cores"))


# What handing a batch over from a worker costs the training process: a message of the queue, for each tensor a file
# descriptor that the worker is asked for over a socket, a mapping, and its pages. Measured on an otherwise idle virtual
# machine between steps of 18 ms, which leave no cache warm: 1.7 ms for one tensor of 4 kB, 2.4 ms for two, 4.9 ms for
# eight, 2.3 ms for one of 2 MB that is also read, four fifths of it CPU time. In a loop without a step it is a third.
HANDOVER_NS, TENSOR_NS, HANDED_BYTES_PER_NS = 1_200_000, 450_000, 3.0
CHEAPER = 3.0  # how much less it is at best
MIN_GAIN = 0.2  # of loading, that is left to be hidden once a batch's handing over is paid for
MAX_WORKERS = 32  # that wait for storage: of more none was tried


def handover_ns(facts: Facts) -> float:
    """Return what it costs the training process to take one batch from a worker, 0 where its size is not known."""
    tensors = number(facts, "batch_tensors")
    if not tensors:
        return 0.0
    return HANDOVER_NS + TENSOR_NS * tensors + number(facts, "batch_bytes") / HANDED_BYTES_PER_NS


# Without a device operators keep as many cores as they have threads. Where workers take some of these, each operator
# waits for the last of its threads, and threads that wait for the next one keep their cores. Measured on two cores with
# two threads and one worker: training took three times as long (three scripts, steps of 17 to 21 ms), and where it is
# next to nothing a batch took 6 ms longer to load.
SHARED_TRAINING, SHARED_LOADING_NS = 3.0, 6_000_000


def computing_share(facts: Facts) -> float:
    """Return which part of its time loading needs a core for; the rest it waits. All of it where that is not known."""
    waiting = facts.get("waiting_share")
    return 1 - waiting if isinstance(waiting, float) else 1.0


def shares_cores(facts: Facts, workers: int, cpus: int) -> bool:
    """Return whether workers take cores from the threads of the training's operators, for more than a short time."""
    threads, needed = number(facts, "num_threads"), workers * computing_share(facts)
    return not facts.get("has_device") and threads > 1 and threads + needed > cpus


# Two processors that a machine lists may be two threads of one core, which a virtual machine does not show, and cores
# share caches and memory: how many times as long training and loading may take while both compute, as a rule and at
# most; with loading that waits they do so for its computing share. Measured on virtual machines of two: Python with
# Python 1.86 times, products with either 1.06 and 1.16, training scripts with their own loading in a worker 1.1 to 1.4;
# a training of 31 ms with a worker that waits for two thirds of its time 1.14.
SHARED_CORE_SLOWDOWN, MAX_SHARED_CORE_SLOWDOWN = 1.3, 1.5


def shared_core_slowdowns(facts: Facts, workers: int) -> tuple[float, float]:
    """Return how many times as long training and loading take at the same time, as a rule and at most."""
    known = recorded_cores(facts)
    if not known or _training_cores(facts) + workers <= known / 2:
        return 1.0, 1.0
    usual, worst = (1 + computing_share(facts) * (by - 1) for by in (SHARED_CORE_SLOWDOWN, MAX_SHARED_CORE_SLOWDOWN))
    return usual, worst


class Cores(NamedTuple):
    """What training and workers compute on."""

    num: int
    slowdown: float = 1.0  # how many times as long either takes while the other computes


def step_with_workers(facts: Facts, loading_ns: float, training_ns: float, workers: int, cores: Cores) -> float:
    """Return how long a step takes that workers load for; both times include handing batches over.

    While loading computes, all share the cores: the training process keeps its own; without a device the operators
    keep as many as they have threads, and take longer where there are fewer.
    """
    computing = computing_share(facts)
    if shares_cores(facts, workers, cores.num):
        loading_ns += computing * SHARED_LOADING_NS * max(number(facts, "batches_per_step"), 1.0)
        held_up_ns = computing * loading_ns * (1 - 1 / SHARED_TRAINING)  # training goes on at a third of its speed
        training_ns = min(training_ns + held_up_ns, training_ns * SHARED_TRAINING)
    of_worker = loading_ns / max(workers, 1)
    step_ns = max(of_worker, training_ns) + (cores.slowdown - 1) * min(of_worker, training_ns)
    computed_ns = training_ns * min(_training_cores(facts), cores.num) + computing * loading_ns
    return max(step_ns, computed_ns / cores.num)


def _training_cores(facts: Facts) -> float:
    """Return the cores that the training keeps: without a device as many as its operators have threads."""
    return 1.0 if facts.get("has_device") else number(facts, "num_threads") or 1.0


def leaves_no_gain(facts: Facts, stall_ns: float, cpus: int) -> bool:
    """Return whether no core is left to load on, or taking batches from workers costs about what loading them does."""
    handed_ns = handover_ns(facts) * max(1.0, number(facts, "batches_per_step"))
    is_full = cpus < 2 and computing_share(facts) > 1 - MIN_GAIN
    return is_full or stall_ns * (1 - MIN_GAIN) < handed_ns


def hidden_by_first_workers(
    facts: Facts, stall_ns: float, rest_ns: float, workers: int, cpus: int
) -> tuple[float, float] | None:
    """Return which share of the stall is gone at least and at most once workers load; None where that does not pay.

    ``rest_ns`` is the step without the stall. At least nothing is gone where workers that compute may find no core.
    What the sampler takes stays: it runs in the training process.
    """
    moved = 1 - number(facts, "order_share")
    batches, all_ns = max(1.0, number(facts, "batches_per_step")), stall_ns
    load_ns, handed_ns = number(facts, "batch_ns") * batches * moved, handover_ns(facts) * batches
    stall_ns, rest_ns = all_ns * moved, rest_ns + all_ns * (1 - moved)
    computing, shares = computing_share(facts), shares_cores(facts, workers, cpus)
    if leaves_no_gain(facts, stall_ns, cpus):
        return None
    usual, worst = shared_core_slowdowns(facts, workers)
    left_at_worst, left, cheaply_left = (
        (step_with_workers(facts, load_ns + ns, rest_ns + ns, workers, Cores(cpus, by)) - rest_ns) / max(stall_ns, 1.0)
        for ns, by in ((handed_ns, worst), (handed_ns, usual), (handed_ns / CHEAPER, 1.0))
    )
    most = max(0.0, 1 - cheaply_left)
    most_left = 1 - MIN_GAIN if usual > 1 else 1.0
    if left >= most_left and not facts.get("has_device"):
        return None  # it only pays where handing batches over is cheaper, or cores share nothing
    is_open = computing * number(facts, "ready_share") > MAX_READY_SHARE or shares
    return 0.0 if is_open else max(0.0, min(HIDDEN, 1 - left_at_worst)) * moved, most * moved


def useful_workers(facts: Facts) -> int:
    """Return how many workers are of use where some load: as many as the cores can keep busy."""
    return min(int((recorded_cores(facts) or MAX_WORKERS) / max(computing_share(facts), 1 / MAX_WORKERS)), MAX_WORKERS)


def hidden_by_more_workers(facts: Facts, step_ns: float, rest_ns: float, num: int, more: int) -> tuple[float, float]:
    """Return which share of the stall is gone at least and at most when ``more`` workers load instead of ``num``.

    What the sampler takes of it stays: it runs in the training process.
    """
    lost_ns, moved = max(step_ns - rest_ns, 1.0), 1 - number(facts, "order_share")
    hidden = max(moved - max(step_ns * num / more - rest_ns - lost_ns * (1 - moved), 0.0) / lost_ns, 0.0)
    busy = facts.get("workers_busy")
    if not isinstance(busy, float) or more * busy + 1 > recorded_cores(facts):
        return 0.0, HIDDEN_AT_BEST * hidden
    return HIDDEN * hidden, hidden


def is_iterable(facts: Facts) -> bool:
    """Return whether the dataset is an IterableDataset: torch gives its loader a sampler of its own.

    Recorded Python frames show it too: its fetcher calls next() instead of __getitem__.
    """
    return facts.get("sampler") == "_InfiniteConstantSampler" or facts.get("iterable") is True


ITERABLE_NUMERICS = other_training(
    "every worker runs through the whole IterableDataset unless its __iter__ takes a share by get_worker_info()"
)
# torch draws a seed for each epoch's workers from the generator that shuffles; for those that stay, only once.
KEPT_WORKERS = "with persistent_workers=True later epochs shuffle and draw differently"
SHARED_OUT = """
# in the IterableDataset: without this every sample comes once from each worker. Split before what
# is expensive: files, or lines that are not parsed yet
def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    for line in itertools.islice(self.lines(), first, None, step):
        yield self.parse(line)"""
SPLIT_BY_HAND = "which part of its stream a worker takes only the script's author can write"


def _kept(facts: Facts) -> list[str]:
    """Return the recorded arguments that a copied call must not lose; what they are called only the script knows."""
    sampler, collate = facts.get("sampler"), facts.get("collate_fn")
    kept = ["shuffle=True"] if sampler == "RandomSampler" else []
    if sampler and sampler not in _OWN_SAMPLERS:
        kept.append("sampler=sampler")
    if collate and collate not in OWN_COLLATE:
        kept.append(f"collate_fn={collate}" if str(collate).isidentifier() else "collate_fn=collate_fn")
    return [*kept, "drop_last=True"] if facts.get("drop_last") else kept


def loader_call(facts: Facts, **arguments: object) -> str:
    """Return the call that makes the DataLoader, with what is recorded of it and these arguments."""
    name = facts.get("wrapped") or "dataset"
    batch = facts.get("batch_size")
    given = [f"batch_size={batch}"] if batch is not None else []
    given += _kept(facts)
    given += [f"{key}={value}" for key, value in arguments.items()]
    others = "" if batch is not None else "   # and the arguments that it has"
    return f"DataLoader({', '.join([str(name), *given])}){others}"


def with_batch_size(facts: Facts, program: Program) -> Facts:
    """Return the facts with the batch size that the program shows, where the loader's was not recorded.

    Whether it is the loader's is not known where several ranks or a gathered batch could stand between them, but one
    process passes on what it loads.
    """
    known = facts.get("batch_size") or (program.batch_size if program.trains else None)
    return {**facts, "batch_size": known}


# Every sample of a dataset prepared once, before training: the line to paste, and the edit of the loader's call.
#
# A list is a dataset with an index: nothing else of the script changes.

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
    from diagnose.changes.common.call_edits import calls_in

    found = calls_in({"made": facts.get("made")}, ("DataLoader",))
    made = found[0] if found else None
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
    batches, size = number(facts, "num_batches"), bytes_of_all(facts)
    num = number(facts, "batch_size") * batches
    held = f"memory for all {num:,.0f} samples, about {size_words(size)}" if num and size else "memory for all samples"
    ns = number(facts, "batch_ns") * batches
    later = f"about {duration(ns)} later" if ns else "as much later as loading all of them takes"
    needs = f"{held}; the first step begins {later}: it pays from the second epoch on"
    return Prepared(
        f"{name} = {every}   # every sample once, before training\n# above the line that makes the DataLoader, {at}",
        _edit(facts, made, every),
        needs,
    )


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
