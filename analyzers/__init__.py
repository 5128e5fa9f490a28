"""One bottleneck, one file: what it looks for is the file's docstring, its id is the file's name.

``META`` is what is known of a rule apart from its code; it names the changes (``diagnose/changes``) that can be
prescribed. ``find(t)`` (of kernel rules ``find(t, free)``) returns findings. Rules that account for idle time also have
``claim(t, left)``, which returns the idle time that they explain; they are applied in the order of their META, and the
first that claims a nanosecond keeps it. Where there is no device, rules with a ``host_order`` divide the training
thread's time in the same way; a rule that sees something else there has ``claim_host`` as well.

A file of this folder is a rule by having a META: nothing else has to be registered. Other packages add rules by entry
points of the group "diagnose.analyzers" (docs/plugins.md).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, cast

from diagnose.analyzers.common.advice import SHARED, Advice
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals
from diagnose.model.plugins import Plugins, load_plugins
from diagnose.model.rules import OUTSIDE, WORK, Legend, RuleMeta
from diagnose.ranks.profile import traits_of
from diagnose.tables import Tables

if TYPE_CHECKING:
    from diagnose.ranks.comparison import Comparison

__all__ = [
    "ADVICE",
    "FALLBACK_RULE",
    "HOST_LEGENDS",
    "HOST_RULES",
    "IDLE_RULES",
    "KERNEL_RULES",
    "LEGENDS",
    "META",
    "OUTSIDE",
    "PLUGINS",
    "RANK_RULES",
    "RULES",
    "RUN_RULES",
    "STATE_RULES",
    "TRAITS",
    "WORK",
    "Analyzer",
    "IdleAnalyzer",
    "KernelAnalyzer",
    "RankAnalyzer",
    "Rule",
]


class Rule(Protocol):
    """What every rule's file offers."""

    META: RuleMeta


class Analyzer(Rule, Protocol):
    """A rule that looks at the whole trace."""

    def find(self, t: Tables, /) -> list[Finding]:
        """Return what holds the step back, if this rule sees it."""


class IdleAnalyzer(Analyzer, Protocol):
    """A rule that accounts for idle time."""

    def claim(self, t: Tables, left: Intervals, /) -> Intervals:
        """Return the parts of the idle time ``left`` that this rule explains."""


class KernelAnalyzer(Rule, Protocol):
    """A rule that accounts for device tasks."""

    def find(self, t: Tables, free: Mask, /) -> list[Finding]:
        """Return findings whose ``tasks`` are among the ``free`` ones, those that no rule before accounts for."""


class RankAnalyzer(Rule, Protocol):
    """A rule that compares the ranks of one run."""

    def find_in_all(self, comparison: Comparison, /) -> list[Finding]:
        """Return what holds all ranks back."""


def _plugins() -> Plugins:
    """Import the rules of other packages; none of them may take what no other rule explains."""
    names = frozenset(name.replace("_", "-") for name in _FILES)
    found = load_plugins("diagnose.analyzers", "META", RuleMeta, names)
    functions = {"trust": ("find", "claim"), "idle": ("find", "claim"), "rank": ("find_in_all",)}
    fit = {
        name: module
        for name, module in found.modules.items()
        if not module.META.fallback
        and all(callable(getattr(module, each, None)) for each in functions.get(module.META.kind, ("find",)))
    }
    lacking = "is left out: it lacks a function of its kind, or takes what no other rule explains."
    unfit = [f"The plug-in {name} {lacking}" for name in found.modules if name not in fit]
    return Plugins(fit, (*found.faults, *unfit))


def _advice(rule: Rule) -> dict[str, tuple[Advice, ...]]:
    """Return what a rule advises, by id: the entries of its file before those that several rules give."""
    entries: tuple[Advice, ...] = (*getattr(rule, "ADVICE", ()), *SHARED)
    named = (*rule.META.changes, *rule.META.also)
    return {name: listed for name in named if (listed := tuple(entry for entry in entries if entry.id == name))}


def _of_kind(*kinds: str) -> Iterable[Rule]:
    return (rule for rule in RULES if rule.META.kind in kinds)


_FILES = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
PLUGINS = _plugins()
"""The rules of other packages, which are among the RULES, and why some are left out."""
_MODULES = [*(import_module(f"{__name__}.{name}") for name in _FILES), *PLUGINS.modules.values()]
RULES: tuple[Rule, ...] = tuple(sorted((cast("Rule", each) for each in _MODULES), key=attrgetter("META.order")))
"""The files of this folder that are rules, and those of other packages, in the order in which they are applied."""
META: Mapping[str, RuleMeta] = {rule.META.id: rule.META for rule in RULES}
ADVICE: Mapping[str, Mapping[str, tuple[Advice, ...]]] = {rule.META.id: _advice(rule) for rule in RULES}
"""What each rule advises that nothing can apply, by id: the first entry that fits is given."""
TRAITS = traits_of(META.values())
"""What the comparison of ranks has to know of the rules."""
FALLBACK_RULE = cast("Analyzer", next(rule for rule in RULES if rule.META.fallback))
IDLE_RULES = tuple(cast("IdleAnalyzer", rule) for rule in _of_kind("trust", "idle") if rule is not FALLBACK_RULE)
HOST_RULES = tuple(
    cast("IdleAnalyzer", rule)
    for rule in sorted(RULES, key=lambda rule: rule.META.host_order or 0)
    if rule.META.host_order is not None and rule.META.kind != "state"
)
KERNEL_RULES = tuple(cast("KernelAnalyzer", rule) for rule in _of_kind("kernel"))
STATE_RULES = tuple(cast("Analyzer", rule) for rule in _of_kind("state"))
HOST_STATE_RULES = tuple(rule for rule in STATE_RULES if rule.META.host_order is not None)
RUN_RULES = tuple(cast("Analyzer", rule) for rule in _of_kind("run"))
RANK_RULES = tuple(cast("RankAnalyzer", rule) for rule in _of_kind("rank"))
LEGENDS: Mapping[str, Legend] = {
    WORK: Legend("work in operators", "#5b7fa6"),
    OUTSIDE: Legend("between operators: Python, or unknown", "#868e96"),
    **{rule.META.id: rule.META.legend for rule in RULES if rule.META.legend.label},
}
HOST_LEGENDS: Mapping[str, Legend] = {
    name: legend._replace(label=legend.host_label) if legend.host_label else legend for name, legend in LEGENDS.items()
}
