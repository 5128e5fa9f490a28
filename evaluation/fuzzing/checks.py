"""What must hold however a mutant looks: the exit code, the outputs, the numbers."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from fuzzing.cases import Case
from fuzzing.running import Outcome
from fuzzing.values import MARKERS

__all__ = ["MAX_MB", "MAX_SECONDS", "Problem", "problems"]

MAX_SECONDS, MAX_MB = 20.0, 1000.0
CODES = {"analyze": {0, 4}, "what-if": {0, 2, 4}, "compare": {0, 4}, "gate": {0, 3, 4, 7}}
ANSWERS = (0, 3, 7)  # 3 and 7 are verdicts of a gate
MAX_SENTENCE_CHARS = 1200  # characters, paths included
# C0 without line feed, DEL, C1, directions, separators of lines, half surrogate pairs.
CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]"
)
TOLERANCE = 1e-6

Problem = tuple[str, str]  # kind, details: problems of one kind and details are one defect


def problems(case: Case, outcome: Outcome) -> list[Problem]:
    """Return everything that is wrong with an outcome."""
    return list(dict.fromkeys(_problems(case, outcome)))


def _problems(case: Case, outcome: Outcome) -> Iterator[Problem]:
    if outcome.raised:
        yield "traceback", outcome.raised
    for failed in outcome.failed_rules:
        yield "rule failed", failed
    for warned in outcome.warned:
        yield "warning", warned
    if outcome.code not in CODES[case.argv[0]] and not outcome.raised:
        yield "exit code", f"{case.argv[0]}: {outcome.code}: {outcome.stderr.strip()[:200]}"
    if outcome.seconds > MAX_SECONDS:
        yield "too slow", f"{case.argv[0]}"
    already = outcome.held_mb if outcome.held_mb > MAX_MB else 0.0  # a process that tests the fuzzer holds libraries
    if outcome.rss_mb - already > MAX_MB:
        yield "too much memory", f"{case.argv[0]}"
    for name in outcome.changed:
        yield "input changed", name
    yield from _of_stderr(case, outcome)
    yield from _of_stdout(case, outcome)
    for name, data in outcome.written.items():
        yield from _of_file(name, data)


def _of_stderr(case: Case, outcome: Outcome) -> Iterator[Problem]:
    shown = outcome.stderr
    if "Traceback" in shown and not outcome.raised:
        yield "traceback", "on stderr"
    yield from _control("stderr", shown)
    failed = outcome.code not in ANSWERS
    if not failed and shown:
        yield "noise on stderr", _shape(shown)
    if failed and not outcome.raised:
        lines = shown.splitlines()
        if len(lines) != 1 or not lines[0].startswith("diagnose: error: "):
            yield "not one sentence", _shape(shown)
        elif not lines[0].endswith((".", ". ")):
            yield "no full stop", _shape(shown)
        elif len(lines[0]) > MAX_SENTENCE_CHARS:
            yield "very long sentence", _shape(shown)
        if outcome.stdout:
            yield "output beside an error", case.argv[0]


def _of_stdout(case: Case, outcome: Outcome) -> Iterator[Problem]:
    text = outcome.stdout
    if outcome.code not in ANSWERS:
        return
    if not text.strip() and "--update" not in case.argv:
        yield "nothing printed", case.argv[0]
    if "--json" in case.argv:
        yield from _of_json(case.argv[0], text)
    else:
        yield from _control(f"{case.argv[0]} text", text)
        yield from _of_text(case.argv[0], text)


def _of_text(where: str, text: str) -> Iterator[Problem]:
    for word in re.findall(r"(?<![\w.])-?(?:nan|inf)(?= (?:ms|s|%|×|µs|GB|MB)\b|%)", text):
        yield "not finite", f"{where} text: {word}"


def _of_file(name: str, data: bytes) -> Iterator[Problem]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield "not UTF-8", f"{name}: {error.reason}"
        return
    if name.endswith(".html"):
        yield from _of_page(text)
    elif name.endswith(".json"):
        yield from _of_json("analyze", text)
    elif name.endswith(".xml"):
        yield from _control("xml", text)
        try:
            ElementTree.fromstring(text)  # our own output
        except ElementTree.ParseError as error:
            yield "xml", re.sub(r"\d+", "N", str(error))
    elif name.endswith(".txt"):
        yield from _control("text file", text)
    else:
        yield "unknown file", re.sub(r"[\w-]{8,}", "…", name)


def _of_page(text: str) -> Iterator[Problem]:
    for marker in MARKERS:
        if marker in text:
            at = text.index(marker)
            yield "unescaped in HTML", f"{marker} after {_shape(text[max(0, at - 60) : at])}"
    yield from _control("html", text.replace("\t", " "))


def _control(where: str, text: str) -> Iterator[Problem]:
    found = CONTROL.search(text)
    if found:
        before = text[max(0, found.start() - 40) : found.start()]
        line = before.splitlines()[-1] if before.splitlines() else ""
        yield "control character", f"{where}: U+{ord(found[0]):04X} after {_shape(line)}"


def _shape(text: str) -> str:
    """Return a text without what differs between mutants."""
    plain = CONTROL.sub("?", text[:400]).replace("\n", "⏎")
    return re.sub(r"[^\x20-\x7e]", "?", re.sub(r"\d[\d.e+]*", "N", plain))[:100]


# JSON


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _of_json(command: str, text: str) -> Iterator[Problem]:
    if not text.isascii():
        yield "JSON is not ASCII", command
    try:
        document = json.loads(text, parse_constant=_not_finite)
    except ValueError as error:
        yield "no valid JSON", f"{command}: {re.sub(r'[0-9]+', 'N', str(error))}"
        return
    for path, number in _numbers(document, command):
        if not math.isfinite(number):
            yield "not finite", path
    if command == "analyze":
        yield from _schema_errors(document)
        yield from _diagnosis(document)
    elif command == "what-if":
        yield from _what_if(document)


def _numbers(document: Any, path: str) -> Iterator[tuple[str, float]]:  # any JSON
    if isinstance(document, float):
        yield path, document
    elif isinstance(document, (dict, list)):
        for key, found in document.items() if isinstance(document, dict) else enumerate(document):
            yield from _numbers(found, f"{path}.{key if isinstance(document, dict) else '*'}")


@functools.cache
def _validator() -> Any:  # untyped library
    import jsonschema

    from diagnose.reports.json import schema

    return jsonschema.Draft202012Validator(schema())


def _schema_errors(document: Any) -> Iterator[Problem]:  # any JSON
    for error in _validator().iter_errors(document):
        path = ".".join("*" if isinstance(part, int) else part for part in error.absolute_path)
        yield "schema", f"{path}: {error.validator}"


def _diagnosis(d: dict[str, Any]) -> Iterator[Problem]:
    for part, where in ((d, ""), *((rank, "ranks.") for rank in d["ranks"])):
        yield from _partition(part, where)
    step = d["step_ms"]
    if not step or step <= 0:
        yield "invariant", "step_ms is not positive"
        return
    most = step * 1.001 + TOLERANCE
    for f in d["findings"]:
        yield from _finding(f, most)
    for p in d["prescriptions"]:
        yield from _prescription(p, most)
    if d["waterfall"]:
        yield from _forecasts(d["waterfall"]["forecasts"], most)
    yield from _whole(d)
    if d["record_again"] and (d["waterfall"] or any(p["saves_ms"] != [0, 0] for p in d["prescriptions"])):
        yield "invariant", "a file that cannot carry an answer, and a change with a saving"


def _whole(d: dict[str, Any]) -> Iterator[Problem]:
    for name in ("host_by_cause", "critical_path"):
        if d[name] and abs(sum(d[name].values()) - 1) > TOLERANCE:
            yield "invariant", f"{name} does not sum to 1"
    if d["dominant"] is not None and d["dominant"] not in {f["rule"] for f in d["findings"]}:
        yield "invariant", "dominant is no finding"
    if len(d["step_times_ms"]) != d["steps"] or any(ms is None or ms < 0 for ms in d["step_times_ms"]):
        yield "invariant", "step_times_ms"
    for name, number in (d["queue"] or {}).items():
        if number is not None and number < -TOLERANCE:
            yield "invariant", f"queue.{name} is negative"
    for note in d["trust"]:
        if "failed on this trace" in note["text"] and note.get("rule") is None:
            yield "rule failed", f"replay: {_shape(note['text'])}"


def _finding(f: dict[str, Any], most: float) -> Iterator[Problem]:
    from diagnose.analyzers import META

    of_run = f["rule"] in META and META[f["rule"]].kind == "run"  # of steps that need not be among the recorded ones
    if f["lost_ms"] is None or not -TOLERANCE <= f["lost_ms"] <= (math.inf if of_run else most):
        yield "invariant", f"{f['rule']}: lost_ms outside the step"
    if f["path_share"] is not None and not -TOLERANCE <= f["path_share"] <= 1 + TOLERANCE:
        yield "invariant", f"{f['rule']}: path_share outside 0 to 1"


def _partition(d: dict[str, Any], where: str) -> Iterator[Problem]:
    p = d["partition"]
    if p is None:
        return
    if abs(sum(p.values()) - 1) > TOLERANCE:
        yield "invariant", f"{where}partition does not sum to 1"
    if abs(sum(d["idle_by_cause"].values()) - p["idle"]) > TOLERANCE:
        yield "invariant", f"{where}idle_by_cause does not sum to idle"
    if any(share < -TOLERANCE for share in (*p.values(), *d["idle_by_cause"].values())):
        yield "invariant", f"{where}a share is negative"


def _prescription(p: dict[str, Any], most: float) -> Iterator[Problem]:
    low, high = p["saves_ms"]
    if low is None or high is None or not -TOLERANCE <= low <= high + TOLERANCE or high > most:
        yield "invariant", f"{p['id']}: saves_ms outside the step"
    predicted = p["predicted_step_ms"]
    if predicted is not None and not -TOLERANCE <= predicted <= most:
        yield "invariant", f"{p['id']}: predicted_step_ms outside the step"


def _forecasts(forecasts: list[dict[str, Any]], most: float) -> Iterator[Problem]:
    for f in forecasts:
        low, high = f["range_ms"]
        if (
            None in (low, high, f["step_ms"])
            or not -TOLERANCE <= low <= f["step_ms"] + TOLERANCE <= high + 2 * TOLERANCE <= most + 3 * TOLERANCE
        ):
            yield "invariant", "waterfall: a range that does not hold its step"
    times = [f["step_ms"] or 0.0 for f in forecasts]
    if any(later > earlier + TOLERANCE for earlier, later in pairwise(times)):
        yield "invariant", "waterfall: a change makes the step longer"


def _what_if(d: dict[str, Any]) -> Iterator[Problem]:
    for f in d["forecasts"]:
        low, high = f["range_ms"]
        if min(low, high, f["step_ms"]) < -TOLERANCE or low > high + TOLERANCE:
            yield "invariant", "what-if: a negative or crossed forecast"
    shares = d["critical_path"]
    if shares and abs(sum(shares.values()) - 1) > TOLERANCE:
        yield "invariant", "what-if: critical_path does not sum to 1"
