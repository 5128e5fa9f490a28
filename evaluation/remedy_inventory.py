"""Which change hands over each public module of ``diagnose.kernels``, which rules lead there, and how it is proved.

All of it follows from the changes and the rules, but for `BUILDING_BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnose import analyzers
from diagnose.changes import CHANGES, trial_method
from diagnose.model.limits import TrialMethod

# Modules that no trace asks for, and why.
BUILDING_BLOCKS = {
    "distributed.launch": "starts ranks; what it saves depends on the program",
    "distributed.hook_timing": "times an exchange without a profiler; a trace has those times",
    "distributed.single_process_parity": "checks the numbers of any way of sharding against one process",
    "ops.adamw": "clips within the update; the optimizer's own fused form comes first",
    "ops.custom_op": "what the bundled operators are built with, and one of your own can be",
    "ops.native": "builds the operators' C++ and CUDA sources, for machines without Triton",
    "ops.rotary": "operators do not show a rotary embedding that is written out",
    "ops.scale": "an example: the smallest operator, in all four languages",
    "tiny": "shrinks a run before it is traced, so that a diagnosis takes minutes",
    "parity": "checks the numbers of any change of precision; a trial does so by itself",
}


@dataclass(frozen=True, slots=True)
class PublicModule:
    """One public module, with the changes that hand it over."""

    name: str  # without the package: ops.gelu
    changes: tuple[str, ...]
    rules: tuple[str, ...]  # that prescribe one of the changes
    methods: tuple[TrialMethod, ...]  # of the changes, in their order
    building_block: str  # why no change hands it over, "" where one does


def provable() -> list[str]:
    """Return the changes that `diagnose prove` can apply, by a patch or in the text of the script that it runs."""
    return [name for name in CHANGES if trial_method(name) != "by hand"]


def public_modules() -> list[PublicModule]:
    """Return every public module, by name."""
    return [_described(name) for name in sorted(_names())]


def _described(name: str) -> PublicModule:
    dotted = f"diagnose.kernels.{name}"
    advised = [entry for listed in analyzers.ADVICE.values() for entries in listed.values() for entry in entries]
    handing = {c.id for c in CHANGES.values() if dotted in (c.remedy, *c.modules)}
    changes = tuple(sorted(handing | {a.id for a in advised if dotted in (a.remedy, *a.modules)}))
    rules = tuple(r.META.id for r in analyzers.RULES if set(changes) & {*r.META.changes, *r.META.also})
    return PublicModule(name, changes, rules, tuple(map(trial_method, changes)), BUILDING_BLOCKS.get(name, ""))


def _names() -> Iterator[str]:
    from diagnose import kernels

    folder = Path(kernels.__file__).parent
    for package in ("", "distributed", "ops"):
        for path in (folder / package).glob("*.py"):
            if not path.name.startswith("_") and path.stem not in kernels._OLD_NAMES:
                yield f"{package}.{path.stem}".lstrip(".")
