"""From (seed, kind, index) to files and a command line: the same on every machine, for any number of processes."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing import folders, made, mutations, values
from fuzzing.anywhere import mutate_anywhere
from fuzzing.damage import cut, damage, packed

__all__ = ["KINDS", "Case", "Inputs", "make"]

KINDS = ("trace", "capture", "report")
LARGEST_RECORDED = 400_000  # bytes: larger ones take seconds, and show what smaller ones show
SMALL_RECORDED = 60_000  # most cases take one of these, so that the rate is high
EXCERPT = 400  # events of a recorded trace that most cases keep
LARGEST_MUTANT = 2_000_000  # bytes: long names on many events make more, which only takes time
SHARE_RECORDED, SHARE_LARGE, SHARE_BYTES = 0.35, 0.03, 0.2
APPLY = ("load-in-workers", "autocast", "fused-optimizer", "no-such-change", "\x1b[31m")


@dataclass(frozen=True)
class Case:
    """Files of a folder, and the command that is run in it."""

    argv: tuple[str, ...]
    files: dict[str, bytes]
    what: tuple[str, ...] = ()  # the mutations, for the summary
    expect: dict[str, Any] = field(default_factory=dict)  # of a kept case: its exit code, texts that it must show

    def to_json(self) -> str:
        """Return the case as text; files stand as text where they are text."""
        files = {name: _plain(data) for name, data in self.files.items()}
        shown = {"argv": list(self.argv), "what": list(self.what), "expect": self.expect, "files": files}
        return json.dumps(shown, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Read what ``to_json`` wrote."""
        data = json.loads(text)
        files = {name: _bytes(given) for name, given in data["files"].items()}
        return cls(tuple(data["argv"]), files, tuple(data.get("what", ())), data.get("expect", {}))


def _plain(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(given: Any) -> bytes:  # text or an object
    return given.encode() if isinstance(given, str) else base64.b64decode(given["base64"])


@dataclass
class Inputs:
    """What is mutated besides made traces: recorded traces, and reports of the product itself."""

    recorded: Sequence[Path] = ()
    reports: Sequence[str] = ()  # JSON texts
    _texts: dict[Path, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, trace_folders: Sequence[Path], reports: Sequence[str]) -> Inputs:
        """Find the recorded traces, by name, the small ones only."""
        found = [path for folder in trace_folders for path in sorted(folder.glob("*.json.gz"))]
        return cls([path for path in found if path.stat().st_size <= LARGEST_RECORDED], reports)

    def text(self, path: Path) -> bytes:
        """Return the JSON text of a recorded trace."""
        import gzip

        if path not in self._texts:
            if len(self._texts) > 24:
                self._texts.clear()
            self._texts[path] = gzip.decompress(path.read_bytes())
        return self._texts[path]


def make(seed: int, kind: str, index: int, inputs: Inputs) -> Case:
    """Return one case."""
    rng = random.Random(f"{seed}/{kind}/{index}")  # reproducible is the point
    return {"trace": _trace_case, "capture": _capture_case, "report": _report_case}[kind](rng, inputs)


# Traces


def _trace_case(rng: random.Random, inputs: Inputs) -> Case:
    data, what = _mutated_trace(rng, inputs)
    name = rng.choice(("t.json", "t.json", "t.json.gz", "t.json.gz", "rank0.pt.trace.json"))
    if rng.random() < 0.04:
        name = rng.choice(values.FILE_NAMES)
    if name.endswith(".gz"):
        data = packed(data)
    if name.endswith(".gz") and rng.random() < 0.25:
        data, how = (cut(rng, data), "cut") if rng.random() < 0.6 else damage(rng, data)
        what.append(f"{name.rpartition('.')[2]} {how}")
    return Case(_trace_command(rng, name), {name: data}, tuple(what))


def _mutated_trace(rng: random.Random, inputs: Inputs) -> tuple[bytes, list[str]]:
    document, text, origin = _base(rng, inputs)
    what = [origin]
    if document is not None and rng.random() > SHARE_BYTES * 0.5:
        what += mutations.mutate_trace(rng, document)
        shown: Any = document
        if rng.random() < 0.04:
            shown = rng.choice(([document], [None, document], document.get("traceEvents"), {"a": document}))
            what.append("other container")
        text = values.dump(shown, indent=rng.choice((None, None, None, 1))).encode()
    if document is None or rng.random() < SHARE_BYTES:
        text, how = damage(rng, text)
        what.append(how)
    if len(text) > LARGEST_MUTANT:
        what.append("cut to size")
    return text[:LARGEST_MUTANT], what


def _base(rng: random.Random, inputs: Inputs) -> tuple[dict[str, Any] | None, bytes, str]:
    """Return a trace to mutate, its text, and its name; None where the text is not plain JSON."""
    if not inputs.recorded or rng.random() > SHARE_RECORDED:
        flavour = rng.choice(made.FLAVOURS)
        document = made.trace(flavour, rng)
        return document, values.dump(document).encode(), f"made {flavour}"
    small = [path for path in inputs.recorded if path.stat().st_size <= SMALL_RECORDED]
    large = rng.random() < SHARE_LARGE or not small
    path = rng.choice(inputs.recorded if large else small)
    text = inputs.text(path)
    try:
        document = json.loads(text)
    except ValueError:
        return None, text, path.name
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not large and len(document.get("traceEvents", ())) > EXCERPT:
        document["traceEvents"] = _excerpt(rng, document["traceEvents"])
        text = values.dump(document).encode()
    return document, text, path.name


def _excerpt(rng: random.Random, events: list[Any]) -> list[Any]:
    """Return some hundred events that follow each other in time, and all marks of steps among them."""
    timed = [e for e in events if isinstance(e, dict) and isinstance(e.get("ts"), (int, float))]
    timed.sort(key=lambda event: event["ts"])
    start = rng.randrange(max(1, len(timed) - EXCERPT))
    chosen = timed[start : start + EXCERPT]
    begin, end = chosen[0]["ts"], chosen[-1]["ts"]
    marks = [e for e in timed if str(e.get("name")).startswith("ProfilerStep") and begin <= e["ts"] <= end]
    return [*marks, *(event for event in chosen if event not in marks)]


def _trace_command(rng: random.Random, name: str) -> tuple[str, ...]:
    if name.startswith("-"):  # as a shell's user has to name it
        return ("analyze", "--quiet", *rng.choice(((), ("--json",))), *rng.choice((("--", name), (f"./{name}",))))
    which = rng.random()
    if which < 0.55:
        return ("analyze", name, "--json", "--quiet")
    if which < 0.76:
        return ("analyze", name, "--quiet", "--verbose")
    if which < 0.79:
        return ("analyze", name, "--quiet", "--html", "r.html", "-o", rng.choice(("r.json", "r.txt")))
    if which < 0.94:
        return ("what-if", name, *_questions(rng))
    return ("compare", name, name, *(("--json",) if rng.random() < 0.5 else ()))


def _questions(rng: random.Random) -> list[str]:
    asked: list[str] = []
    if rng.random() < 0.3:
        asked += ["--apply", rng.choice(APPLY)]
    if rng.random() < 0.3:
        asked += ["--without", rng.choice(("data-stall", "host-sync", "launch-bound", "python-stall", "nothing"))]
    if rng.random() < 0.2:
        asked += ["--scale", rng.choice(("gemm=0.5", "kernel~.=0", "=", "(=1", ".*=nan", ".=1e300"))]
    if rng.random() < 0.15:
        asked += ["--loader-workers", "4"]
    if rng.random() < 0.15:
        asked += ["--bucket-mb", rng.choice(("25", "0.001", "1e9"))]
    return asked + (["--json"] if rng.random() < 0.5 else [])


# Capture folders


def _capture_case(rng: random.Random, _inputs: Inputs) -> Case:
    ranks = rng.choice((1, 1, 1, 2))
    documents = folders.capture(rng, ranks=ranks, device=rng.random() < 0.75)
    what = [_mutate_folder(rng, documents) for _ in range(rng.choice((1, 1, 2, 3)))]
    files = {name: _file(name, document) for name, document in documents.items()}
    if rng.random() < 0.3:
        what.append(_damage_folder(rng, files))
    command = rng.random()
    argv: tuple[str, ...] = ("analyze", "capture", "--json", "--quiet")
    if command < 0.25:
        argv = ("analyze", "capture", "--quiet", "--verbose")
    elif command < 0.28:
        argv = ("analyze", "capture", "--quiet", "--html", "r.html", "-o", "r.json")
    elif command < 0.4:
        argv = ("what-if", "capture", *_questions(rng))
    elif command < 0.45:
        argv = ("compare", "capture", "capture")
    elif command < 0.5:
        argv = ("analyze", *(f"capture/{name}" for name in files), "--json", "--quiet")
    return Case(argv, {f"capture/{name}": data for name, data in files.items()}, tuple(what))


def _file(name: str, document: Any) -> bytes:  # any JSON
    data = values.dump(document).encode()
    return packed(data) if name.endswith(".gz") else data


def _mutate_folder(rng: random.Random, documents: folders.Documents) -> str:
    how = rng.random()
    name = rng.choice(list(documents))
    document = documents[name]
    if how < 0.1 and len(documents) > 1:
        del documents[name]
        return f"without {name}"
    if how < 0.2:
        target = rng.choice(
            [*documents, "capture.json", "capture.rank0.json", "capture.rankx.json", "rank5.samples.json.gz"]
        )
        documents[target] = json.loads(json.dumps(document))
        return f"{name} as {target}"
    if how < 0.3:
        return _mutate_fields(rng, documents)
    if isinstance(document, dict) and "traceEvents" in document and how < 0.75:
        return " ".join((name, *mutations.mutate_trace(rng, document)))
    descriptions = [key for key in documents if key.startswith("capture")]
    if descriptions and rng.random() < 0.6:
        name = rng.choice(descriptions)
    if isinstance(documents[name], (dict, list)):
        return f"{name} {mutate_anywhere(rng, documents[name])}"
    return "nothing"


FOLDER_NAMES = (
    "../outside.json",
    "/etc/passwd",
    "",
    ".",
    "..",
    "capture.json",
    "\x00",
    "\x1b[31m",
    "a" * 300,
    7,
    None,
    ["x"],
)


def _mutate_fields(rng: random.Random, documents: folders.Documents) -> str:
    """Set a field of a description that matters: names of files, ranks, versions."""
    descriptions = [document for name, document in documents.items() if name.startswith("capture")]
    if not descriptions:
        return "nothing"
    document = rng.choice(descriptions)
    if not isinstance(document, dict):
        return "nothing"
    field_name = rng.choice(
        ("light_file", "attribution_file", "samples_file", "rank", "world_size", "run_id", "schema_version", "command")
    )
    document[field_name] = rng.choice(FOLDER_NAMES) if field_name.endswith("file") else values.value(rng)
    return f"field {field_name}"


def _damage_folder(rng: random.Random, files: dict[str, bytes]) -> str:
    if not files or rng.random() < 0.2:
        name = rng.choice(
            ("notes.txt", "garbage.json", "rank9.light.pt.trace.json.gz", "capture.rank7.json", ".hidden")
        )
        files[name] = rng.choice((b"", b"garbage", b"{}", rng.randbytes(50)))
        return f"added {name}"
    name = rng.choice(list(files))
    files[name], how = damage(rng, files[name])
    return f"{name} {how}"


# Reports


def _report_case(rng: random.Random, inputs: Inputs) -> Case:
    texts = [rng.choice(inputs.reports), rng.choice(inputs.reports)]
    documents = [json.loads(text) for text in texts]
    times = rng.choice((1, 1, 2, 3, 5))
    what = [mutate_anywhere(rng, rng.choice(documents)) for _ in range(times)]
    files = {
        name: values.dump(document).encode() for name, document in zip(("a.json", "b.json"), documents, strict=True)
    }
    if rng.random() < 0.1:
        name = rng.choice(list(files))
        files[name], how = damage(rng, files[name])
        what.append(how)
    return Case(_report_command(rng), files, tuple(what))


def _report_command(rng: random.Random) -> tuple[str, ...]:
    which = rng.random()
    as_json = ("--json",) if rng.random() < 0.5 else ()
    if which < 0.5:
        return ("compare", *as_json, "a.json", "b.json")
    written = ("--junit", "j.xml") if which < 0.85 else ()
    update = ("--update",) if which > 0.93 else ()
    several = ("--allow-differences", "--baseline", "a.json", "--baseline", "b.json") if 0.85 < which <= 0.93 else ()
    return ("gate", "--quiet", *as_json, *written, *update, *several, "a.json", "b.json")
