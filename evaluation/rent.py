"""Prints what each limit of a decision wins: answers that are other without it, on recordings with and without labels.

    scripts/python evaluation/rent.py [--room analyzers …] [--every N] [NAME …]

A limit named MIN… is set to 0, one named MAX… to more than anything, any other one to half and to twice its value, and
all recordings are diagnosed again (../shared/traces…, the bundled captures). A row says how many first answers change,
how many labelled ones were right with the limit and wrong without (won), and how many the other way round (lost). A
limit for which nothing changes wins nothing here: it goes, unless it protects against bad input.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from accuracy import FOLDERS
from house import ROOMS, _files, constants
from yardstick.readers import ROOT, accepted, labels_of

DECIDING = ("analyzers", "tables", "replay and perf_model", "ranks", "pipeline and answer", "dataflow")
MORE_THAN_ANYTHING = 1 << 60


class Limit(NamedTuple):
    """A numeric constant of a module."""

    module: str
    name: str

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield what it is set to, and how that is called."""
        now = getattr(sys.modules[self.module], self.name)
        if not isinstance(now, int | float) or isinstance(now, bool):
            return
        kind = type(now)
        if "MIN" in self.name:
            yield "0", kind(0)
        elif "MAX" in self.name:
            yield "no limit", kind(MORE_THAN_ANYTHING)
        else:
            yield "half", kind(now * 0.5)
            yield "twice", kind(now * 2)


class Answers(NamedTuple):
    """First finding and first card of each recording, and of which labelled ones the cause is right."""

    first: dict[str, tuple[str, str]]
    right: frozenset[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of limits; all without any")
    parser.add_argument("--room", action="append", choices=list(ROOMS), help=f"of {', '.join(DECIDING)}")
    parser.add_argument("--every", type=int, default=1, help="take each Nth recording only")
    options = parser.parse_args()
    os.environ["DIAGNOSE_NO_CACHE"] = "1"
    recordings = _recordings()[:: options.every]
    if not recordings:
        print("skipped: no recordings")
        return 0
    labels = {label["name"]: accepted(label) for folder in FOLDERS for label in labels_of(folder)}
    base = _answers(recordings, labels)
    print(f"{len(recordings)} recordings, {len(base.right)} labelled ones right\n", flush=True)
    print("| limit | set to | changed | won | lost | the first that change |\n|---|---|---|---|---|---|", flush=True)
    for limit in _limits(options.room or DECIDING, options.names):
        for word, value in limit.values():
            now = _with(limit, value, recordings, labels)
            if isinstance(now, str):
                print(f"| {limit.module}.{limit.name} | {word} | fails | | | {now} |", flush=True)
                continue
            changed = [name for name in base.first if base.first[name] != now.first.get(name)]
            shown = ", ".join(f"{name}: {base.first[name][0]} → {now.first[name][0]}" for name in changed[:3])
            won, lost = len(base.right - now.right), len(now.right - base.right)
            text = f"| {limit.module}.{limit.name} | {word} | {len(changed)} | {won} | {lost} | {shown} |"
            print(text.replace("diagnose.", ""), flush=True)
    return 0


def _recordings() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted(folder.glob("*.json.gz"))]
    return [*found, *sorted((ROOT / "fixtures" / "traces").glob("*-*"))]


def _limits(rooms: list[str] | tuple[str, ...], names: list[str]) -> Iterator[Limit]:
    files = dict(sorted(file for room in rooms for file in _files(*ROOMS[room])))
    found = constants({file: ast.parse(text) for file, text in files.items()})
    for name in sorted(names or found):
        for file, _ in found.get(name, ()):
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            module = module if module.startswith("diagnose.") else f"diagnose.{module}"
            if module in sys.modules:
                yield Limit(module, name)


def _with(limit: Limit, value: Any, recordings: list[Path], labels: dict[str, Any]) -> Answers | str:
    """Return the answers with another limit, in each module that has imported it."""
    now = getattr(sys.modules[limit.module], limit.name)
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name == limit.module or (name.startswith("diagnose") and _imports(module, limit.name))
    ]
    try:
        for module in holders:
            setattr(module, limit.name, value)
        return _answers(recordings, labels)
    except Exception as error:  # a limit that code cannot do without
        return f"{type(error).__name__}: {error}"
    finally:
        for module in holders:
            setattr(module, limit.name, now)


def _imports(module: types.ModuleType, name: str) -> bool:
    if not hasattr(module, name) or not module.__file__:
        return False
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    return any(alias.name == name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names)


def _answers(recordings: list[Path], labels: dict[str, Any]) -> Answers:
    from diagnose.answer.screen import answer
    from diagnose.api import analyze_trace
    from diagnose.errors import InputError

    first: dict[str, tuple[str, str]] = {}
    right: set[str] = set()
    for path in recordings:
        name = path.name.removesuffix(".json.gz")
        try:
            diagnosis = analyze_trace(path)
        except InputError as error:
            first[name] = (type(error).__name__, "")
            continue
        cards = answer(diagnosis).cards
        first[name] = (diagnosis.dominant, cards[0].prescription.id if cards else "")
        verdicts, causes = labels.get(name, ((), ()))
        if diagnosis.verdict in verdicts and diagnosis.dominant in causes:
            right.add(name)
    return Answers(first, frozenset(right))


if __name__ == "__main__":
    sys.exit(main())
