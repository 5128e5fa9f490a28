"""What a rule is, apart from its code: the one record from which registries, legends, scopes and pages are derived."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Records: TypeAlias = Literal[
    "shapes",
    "peak rates of the device",
    "data flow",
    "garbage collections",
    "memory events",
    "NVML samples",
    "samples of the threads",
    "steps of the whole run",
    "a second step",
    "device records",
    "all ranks",
]
"""What a recording must hold for a rule to see all that it looks for, besides operators and device tasks."""

OF_WORK: frozenset[Records] = frozenset({"shapes", "peak rates of the device"})
"""Records that show whether operators and kernels do more than they need to."""
OF_PAUSES: frozenset[Records] = frozenset({"garbage collections", "samples of the threads"})
"""Records that show what a thread does between operators."""


RuleKind: TypeAlias = Literal["trust", "idle", "kernel", "state", "run", "rank"]
"""What a rule looks at: the recording's own faults, idle time, kernels, the machine and its memory, all steps of the
run, several ranks."""

Cause: TypeAlias = Literal[
    "loading",
    "allocation",
    "collection",
    "compilation",
    "between-operators",
    "host-work",
    "device-wait",
    "pause",
    "collective",
    "copy",
    "tasks",
]
"""What takes the time that a rule finds, so that a replay can leave it out: work or waiting of the host (of a kind that
the trace shows under the device as well, or any other), waiting for the device, pauses between queued tasks, exposed
collectives or copies, or the device tasks that the finding names."""

WORK: Final = "operators"
"""What is left of the training thread's time where there is no device: operators that compute."""

OUTSIDE: Final = "outside-operators"
UNEXPLAINED_HOST: Final = "unexplained-host"
"""What is left there beyond operators and calls of the runtime."""

LATE_RANKS: Final = "straggler"
"""The rule that finds ranks which the others wait for, as a diagnosis and the command line name it."""

LONE_RANK: Final = "lone-rank"
"""The rule that finds what one rank does alone, whose cost other rules see as long steps or as a late rank."""

REDUCED_AGAIN: Final = "reduced-again"
"""The rule that finds reductions of which only a later sum is read, in which ranks wait as for a late one."""

HOST_WORK: frozenset[Cause] = frozenset(
    {"loading", "allocation", "collection", "compilation", "between-operators", "host-work"}
)
FREES_HOST: frozenset[Cause] = HOST_WORK | {"device-wait"}
"""Causes without which the host launches earlier."""
TAKES_LEAD: frozenset[Cause] = frozenset({"device-wait", "between-operators", "collection"})
"""Causes that cost later idle time, without a name of theirs, where they come while the device is busy."""


class Legend(NamedTuple):
    """The colour and the label of a cause in reports, and the heading of those that it answers."""

    label: str = ""  # a few words, as a legend has them
    colour: str = "#8b93a1"  # reads on white and on black; a report gives its causes others
    heading: str = ""  # the kind of bottleneck, where the verdict's own word does not name it
    meaning: str = ""  # of the heading, a clause
    host_label: str = ""  # in the place of the label where there is no device


class RuleMeta(NamedTuple):
    """One rule: ``META`` of a file in ``analyzers/``.

    Rules that claim time are applied by ascending ``order`` (on a recording without a device: ``host_order``), and the
    first that claims a nanosecond keeps it. A rule without an order claims no time there.
    """

    id: str
    kind: RuleKind
    order: int = 0  # within its kind; trust and idle rules share one order
    host_order: int | None = None  # None: not applied where there is no device
    legend: Legend = Legend()
    changes: tuple[str, ...] = ()  # ids of the changes that it can prescribe
    also: tuple[str, ...] = ()  # ids of further changes, which a report names behind those and replays none of
    one_off: bool = False  # its idle comes once, not in every step: it makes a recording cold
    computes: bool = True  # of kernel rules: False where the tasks move data instead of computing
    is_avoidable: bool = True  # False: no edit of the program is known to avoid it, only a trial shows
    explains: bool = True  # False: the time is there, its cause is not known
    inflated: bool = False  # recording makes its time longer: it grows with the number of recorded events
    awaits_ranks: bool = False  # its time is waiting for other ranks, and not the rank's own
    paced_by: Literal["", "host", "dispatch"] = ""  # grows where a host executes the same more slowly; of it, operators
    is_pace: bool = False  # how fast launches come, whatever issues them: lines that do explain it
    is_symptom: bool = False  # where the time goes, and not what of it is wasted: a finding of that takes its part
    cause: Cause = "tasks"
    needs: tuple[Records, ...] = ()  # without one of them the rule is not said to have looked
    fallback: bool = False  # takes the idle time that no other rule claims
