"""What a step time depends on besides the code: script, arguments, model, batch, device, versions, precision.

Two steps are compared only where this is alike. What an older report does not hold is unknown, which is no difference.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from diagnose.model.diagnosis import Diagnosis
from diagnose.text.commands import command_words
from diagnose.text.plain_text import middle, one_line

SCRIPT = "script"

Setup: TypeAlias = Mapping[str, str]  # what is known, by its name in a sentence

RECORDED = {
    "batch_size": "batch size",
    "num_params": "number of parameters",
    "num_tensors": "number of parameter tensors",
    "param_dtypes": "type of the parameters",
    "matmul_precision": "precision of float32 matrix products",
    "autocast": "autocast",
}
"""Entries of ``Source.setup``, which captures hold."""


MAY_BE_THE_CHANGE = frozenset(
    {"list of arguments", "torch version", "number of CPU threads", "precision of float32 matrix products", "autocast"}
)
"""What somebody compares who changed it: a note then, no reason to refuse."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not alike."""

    what: str
    before: str
    after: str

    @property
    def may_be_the_change(self) -> bool:
        """Return whether the two sides may have been made to compare just this."""
        return self.what in MAY_BE_THE_CHANGE

    def sentence(self) -> str:
        """Name it."""
        before, after = (middle(one_line(value), 60) for value in (self.before, self.after))
        return f"The {self.what} differs: {before} before, {after} after."


def setup_of(diagnosis: Diagnosis) -> Setup:
    """Return what a diagnosis knows of it."""
    source = diagnosis.source
    on_gpu = diagnosis.queue is not None
    words = command_words(source.command) or [""]
    num_words = 2 if words[0] == "-m" else 1  # a module, and a script
    script, arguments = " ".join(words[:num_words]), " ".join(words[num_words:])

    def shown(key: str) -> str:
        value = source.setup.get(key)
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value))
        return "" if value is None else str(value)

    known = {
        SCRIPT: script,
        "list of arguments": (arguments or "none") if script else "",
        "number of processes": str(source.world_size),
        "device": ", ".join(source.devices) if on_gpu else "CPU",
        "number of CPU threads": "" if on_gpu else shown("num_threads"),
        "torch version": source.torch,
        "end of a step": source.found_steps_by if source.found_steps_by != "none" else "",
        **{name: shown(key) for key, name in RECORDED.items()},
    }
    return {name: value for name, value in known.items() if value}


def differences(before: Sequence[Setup], after: Sequence[Setup]) -> tuple[Difference, ...]:
    """Return what differs between two sides, or between the runs of one."""
    names = dict.fromkeys(name for setup in (*before, *after) for name in setup)
    found = []
    for name in names:
        first, *others = dict.fromkeys(setup[name] for setup in (*before, *after) if name in setup)
        if not all(name == SCRIPT and _same_script(first, other) for other in others):
            found.append(Difference(name, _values(name, before), _values(name, after)))
    return tuple(d for d in found if d.before and d.after)


def _values(name: str, setups: Iterable[Setup]) -> str:
    return " and ".join(dict.fromkeys(setup[name] for setup in setups if name in setup))


def _same_script(one: str, other: str) -> bool:
    """Return whether two paths may name one script: checkouts lie in different folders, one path may be relative."""
    short, long = sorted(
        (PurePosixPath(posixpath.normpath(path)) for path in (one, other)), key=lambda path: len(path.parts)
    )
    tail = [part for part in short.parts if part != ".."]
    return short.name == long.name if short.is_absolute() else list(long.parts[-len(tail) :]) == tail
