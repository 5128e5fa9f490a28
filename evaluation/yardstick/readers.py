"""The readers of what is true: one for each form in which authors wrote it down, and no copy of it anywhere."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from yardstick.case import STEPS, Case, Recording, Script, Truth
from yardstick.sealing import has_truth, read_truth

__all__ = [
    "READERS",
    "ROOT",
    "accepted",
    "catalogue_of",
    "entries_of",
    "labels_of",
    "named",
    "outsider_truth",
    "truth_of",
]

ROOT = Path(__file__).resolve().parents[2]
ADDED = ("first_answer", "step_ms", "set", "file")  # to an entry after its author had finished, or to find it
KINDS = {  # ids that name each kind of waste about values, besides the one of the kind's own name
    "computed-again": ("recompute",),
    "independent-loop": ("launch-bound",),
    "recurrence": ("independent-loop",),
    "host-round-trip": ("host-sync", "python-stall"),
    "unfused": ("unfused-attention", "unfused-elementwise"),
    "growing-work": ("growing-steps", "kept-graph"),
    "wasted-sample": ("data-stall", "work-on-nothing"),
}
Source = Mapping[str, Any]  # an entry of the manifest


def entries_of(source: Source) -> dict[str, dict[str, Any]]:
    """Return the entries of a set's truth.json by name."""
    only = source.get("only")
    entries = named(json.loads(read_truth(ROOT / source["truth"])))
    return {name: entry for name, entry in entries.items() if only is None or entry["set"] == only}


def named(listed: Any) -> dict[str, dict[str, Any]]:
    """Return the entries of a truth.json, which are listed or are named already, by name."""
    return listed if isinstance(listed, dict) else {entry["name"]: entry for entry in listed}


def _entries(source: Source, names: list[str] | None) -> list[Case]:
    """Return the cases of a truth.json. Those of a sealed set are ``names``: its truth is not opened for a list."""
    if not has_truth(ROOT / source["truth"]):
        return []

    def entry(name: str) -> dict[str, Any]:
        return {key: value for key, value in entries_of(source)[name].items() if key not in ADDED}

    def case(name: str) -> Case:
        subject, missing = _subject(source, name)
        return Case(
            source["name"], name, subject, lambda: truth_of(entry(name), f"{name}.py"), partial(entry, name), missing
        )

    return [case(name) for name in (names if names is not None else entries_of(source))]


def _subject(source: Source, name: str) -> tuple[Script | Recording, str]:
    """Return the recording of an entry, else its script, and why it cannot run here."""
    recording = ROOT / source["recording"].format(name=name) if "recording" in source else None
    script = ROOT / source["script"].format(name=name) if "script" in source else None
    if recording is not None and recording.exists():
        return Recording(recording), ""
    if script is None:
        assert recording is not None, "a set has scripts or recordings"
        return Recording(recording), f"no recording {source['recording'].format(name=name)}"
    needs = source.get("script_needs", "")
    ranks = source.get("ranks", {}).get(name, 1)
    arguments = tuple(source.get("arguments_of", {}).get(name, source.get("arguments", ("--steps", STEPS))))
    if not script.exists():
        return Script(script, arguments=arguments), f"no script {source['script'].format(name=name)}"
    return Script(script, arguments=arguments, ranks=ranks), f"its script needs {needs}" if needs else ""


def truth_of(entry: Mapping[str, Any], file: str) -> Truth:
    """Return the truth of one entry of a truth.json, whose forms differ in a few words."""
    kind = entry.get("kind", "")
    healthy = entry.get("healthy", kind in ("", "healthy"))
    names = tuple(entry.get("names", ()))
    if not names and kind and kind not in ("waste", "healthy"):
        names = (kind, *KINDS.get(kind, ()))
    repair = entry.get("repair", entry.get("fix", ""))
    helps = (repair, *_listed(entry.get("also_fine", ()))) if repair and not healthy else ()
    times = entry.get("measured_ms", {})
    planted, repaired = times.get("planted"), times.get("repaired")
    measured = 1 - repaired / planted if planted and repaired else None
    return Truth(
        cause="" if healthy else entry["cause"],
        healthy=healthy,
        lines=tuple((file, line) for line in entry.get("lines", entry.get("line", ()))),
        names=("none",) if healthy else names,
        helps=helps,
        changes=tuple(entry.get("changes", ())),
        harms=_listed(entry.get("harmful", ())),
        saved=entry.get("share_saved", measured),
    )


def _listed(text: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text)


def labels_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a folder of labelled traces."""
    if not (folder / "labels.csv").is_file():
        return []
    with (folder / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def accepted(label: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which verdicts and which causes of a labelled trace are right."""
    return tuple((label["verdict_accept"] or label["verdict"]).split("|")), tuple(label["cause_accept"].split("|"))


def _labels(source: Source, _names: list[str] | None) -> list[Case]:
    """Return published traces that a reader labelled; rows without a verdict are left out."""
    folder = ROOT / source["truth"]

    def case(label: dict[str, str]) -> Case:
        names = tuple(name or "none" for name in accepted(label)[1])
        truth = Truth(f"{label['cause']}: {label['evidence']}", names == ("none",), names=names)
        return Case(
            source["name"], label["name"], Recording(folder / f"{label['name']}.json.gz"), lambda: truth, lambda: label
        )

    return [case(label) for label in labels_of(folder) if label["verdict"] != "none"]


def catalogue_of(folder: Path) -> ModuleType:
    """Return the catalogue.py of a folder that is no package."""
    name = f"catalogue_of_{folder.name}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / "catalogue.py")
        assert spec is not None, "the file is there"
        assert spec.loader is not None, "a file has a loader"
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def _pairs(source: Source, _names: list[str] | None) -> list[Case]:
    """Return bundled scripts on a CPU, each with a planted waste or none."""
    folder = ROOT / source["truth"]
    leave = ("traces", "captures", "frameworks")

    def case(pair: Any) -> Case:
        names = pair.expect["cpu"] or ("none",)
        truth = Truth(f"{pair.name}: {names[0]}" if names[0] != "none" else "", names == ("none",), names=names)
        arguments = ("--device", "cpu", "--steps", STEPS)
        script = Script(pair.path, folder, arguments=arguments, ranks=pair.ranks, leave=leave)
        return Case(source["name"], pair.name, script, lambda: truth)

    return [case(pair) for pair in catalogue_of(folder).fixtures() if pair.expect["cpu"] is not None]


def _recordings(source: Source, _names: list[str] | None) -> list[Case]:
    """Return recordings of these scripts on an H100."""
    folder = ROOT / source["truth"]
    told = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["captures"]

    def case(name: str, row: Mapping[str, Any]) -> Case:
        names = tuple(row["rules"])
        planted, repaired = row["steps_ms"] or (None, None)
        saved = 1 - repaired / planted if planted and repaired else None
        truth = Truth(f"{name}: {', '.join(names)}", "none" in names, names=names, saved=saved)
        return Case(source["name"], name, Recording(folder / name), lambda: truth)

    return [case(name, row) for name, row in told.items()]


def _outsiders(source: Source, _names: list[str] | None) -> list[Case]:
    """Return scripts as users write them."""
    folder = ROOT / source["truth"]

    def case(script: Any) -> Case:
        below = folder / script.folder
        module = script.target if script.launcher == "module" else ""
        target = f"{module.replace('.', '/')}.py" if module else script.target or f"{script.name}.py"
        subject = Script(
            below / target,
            folder,
            script.folder,
            script.args,
            module=module,
            ranks=2 if script.launcher == "torchrun" else 1,
            prepare=script.prepare,
            leave=("catalogue.py", "ruff.toml"),
        )
        missing = "" if not script.needs or importlib.util.find_spec(script.needs) else f"{script.needs} is missing"
        return Case(source["name"], script.name, subject, lambda: outsider_truth(script, below), missing=missing)

    return [case(script) for script in catalogue_of(folder).SCRIPTS]


def outsider_truth(script: Any, folder: Path) -> Truth:
    """Return the truth of a script whose places are given as texts of lines."""
    lines = []
    for file, text in script.lines:
        if (folder / file).is_file():  # another one is written when the project is prepared
            numbered = enumerate((folder / file).read_text(encoding="utf-8").splitlines(), 1)
            lines += [(Path(file).name, number) for number, line in numbered if text in line]
    return Truth(script.waste, not script.rules, tuple(lines), script.rules or ("none",))


def _simulated(source: Source, _names: list[str] | None) -> list[Case]:
    """Return runs of simulated machines, drawn from a seed."""
    from simulation.cases import draw_case
    from simulation.kineto import write_run
    from simulation.scoring import MIN_BEST_SHARE, MIN_SAVING, bounded_rules, names_of, natural_rules
    from simulation.truth import truth_of as simulated_truth

    def case(index: int) -> Case:
        def write(folder: Path) -> None:
            drawn = draw_case(source["seed"], index)
            write_run(drawn.situation.recorded(), drawn.dialect, folder)

        def truth() -> Truth:
            drawn = draw_case(source["seed"], index)
            known = simulated_truth(drawn.situation)
            if known.best is None or known.best_saving < MIN_SAVING:
                passes = (*natural_rules(known, MIN_SAVING), *bounded_rules(known))
                return Truth("", healthy=True, names=("none", *dict.fromkeys(passes)))
            enough = MIN_BEST_SHARE * known.best_saving
            kinds = [kind for kind in known.without if known.saving(kind) >= enough]
            planted = [name for kind in kinds for name in names_of(kind, drawn.dialect)]
            names = tuple(dict.fromkeys((*planted, *natural_rules(known, known.best_saving))))
            return Truth(f"planted: {known.best}", healthy=False, names=names, saved=known.best_saving)

        return Case(source["name"], f"{source['seed']}-{index}", Recording(write=write), truth)

    return [case(index) for index in range(source["cases"])]


READERS: Mapping[str, Callable[[Source, list[str] | None], list[Case]]] = {
    "entries": _entries,
    "labels": _labels,
    "pairs": _pairs,
    "recordings": _recordings,
    "outsiders": _outsiders,
    "simulated": _simulated,
}
