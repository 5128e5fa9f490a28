"""Reads what torch.compile keeps of the run: where it broke graphs, and which guards made it compile again.

Dynamo keeps both by itself, so nothing is hooked, and nothing is imported for a script that compiles nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from diagnose.model.locations import is_user_file
from diagnose.model.records import BreakRecord, CompiledRecord, VersionsRecord
from diagnose.text.masking import mask_text

_GUARD = re.compile(r"^\d+/(?P<version>\d+): (?P<guard>.*?)(\s+# .*)?$")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")
_HINT = re.compile(r"^\s*Hint: (?P<hint>.+)$", re.MULTILINE)


def compiled_record() -> CompiledRecord:
    """Return what has been noted so far; nothing of a release that keeps it elsewhere, which is no reason to fail."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    try:
        return CompiledRecord() if utils is None else _record(utils)
    except AttributeError:
        return CompiledRecord()


def _record(utils: Any) -> CompiledRecord:
    versions = [_versions(code, failures) for code, failures in utils.guard_failures.items()]
    spent_ns: Mapping[str, float] = utils.cumulative_time_spent_ns
    took = sum(spent_ns.get(f"entire_{part}_compile", 0.0) for part in ("frame", "backward"))
    return CompiledRecord(
        breaks=tuple(dict.fromkeys(filter(None, map(_break, utils.graph_break_reasons)))),
        versions=tuple(sorted(filter(None, versions), key=lambda one: -one.num)),
        took_s=round(took / 1e9, 3),
        backend_s=round(spent_ns.get("backend_compile", 0.0) / 1e9, 3),
    )


def compiled_places(compiled: CompiledRecord) -> list[tuple[str, int]]:
    """Return the files and lines that are named."""
    broken = [(each.file, each.line) for each in compiled.breaks]
    return [*broken, *((each.file, each.line) for each in compiled.versions)]


def _break(noted: Any) -> BreakRecord | None:
    """Return the innermost place of the user's at which a graph was broken."""
    frame = next((each for each in reversed(noted.user_stack) if is_user_file(each.filename)), None)
    if frame is None:
        return None
    text = str(noted.reason)
    hint = _HINT.search(text)
    return BreakRecord(
        file=frame.filename,
        line=frame.lineno or 0,
        function=_function(frame.name),
        reason=_cut(text.partition("\n")[0]),
        hint=_cut(hint["hint"]) if hint else "",
    )


def _versions(code: Any, failures: Iterable[object]) -> VersionsRecord | None:
    """Return how often a function was compiled; ``failures`` name each version that did not fit a call."""
    found = [match for text in failures if (match := _GUARD.match(str(text).partition("\n")[0]))]
    if not found or not is_user_file(code.co_filename):
        return None
    num = 2 + max(int(match["version"]) for match in found)
    config: Any = sys.modules["torch._dynamo.config"]
    limit = config.recompile_limit if hasattr(config, "recompile_limit") else config.cache_size_limit
    guards = dict.fromkeys(_cut(match["guard"].strip()) for match in reversed(found))
    return VersionsRecord(
        file=code.co_filename,
        line=code.co_firstlineno,
        function=_function(code.co_name),
        num=min(num, limit),
        guards=tuple(guards)[:3],
        gave_up=num > limit,
    )


def _function(name: str) -> str:
    """Return the name of a function, also of the rest of it that a graph break left."""
    resumed = _RESUMED.match(name)
    return resumed["function"] if resumed else name


def _cut(text: str) -> str:
    # A guard may hold any content of the script's.
    return mask_text(text)[:200]
