"""Draws the pictures of docs/procedure.md, docs/dataflow.md and docs/gallery.md from recordings; --check compares only.

The published traces (../shared/traces) are no part of the repository: without them only those of our own are drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from documentation.flow_picture import draw_flow, small_flow
from documentation.gallery import OWN, entries, page
from documentation.step_picture import Detail, draw

import diagnose
from diagnose.model.diagnosis import Diagnosis

DOCS = Path(__file__).resolve().parents[1] / "docs"
MAX_BYTES = 60_000
PROCEDURE = {  # name: capture, title, part of the step in ms, whether launches are joined to their tasks
    "queue-full": ("serial_reads-planted", "A full queue: a step whose batch was ready", None, False),
    "queue-gaps": ("slow_dataset-planted", "A deep queue with a gap", None, False),
    "queue-shallow": ("one_environment-planted", "A shallow queue", None, False),
    "launch-to-task": ("item_every_step-planted", "Each launch and its task", (14.3, 16.3), True),
}


def main() -> int:
    """Draw and write, or compare."""
    is_check, stale = "--check" in sys.argv[1:], []
    for path, text in _files():
        if len(text.encode()) > MAX_BYTES and path.suffix == ".svg":
            print(f"pictures: {path.name} has {len(text.encode())} bytes; at most {MAX_BYTES}", file=sys.stderr)
            return 1
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
    for path in stale:
        print(f"pictures: docs/{path.relative_to(DOCS)} is out of date; run scripts/pictures.", file=sys.stderr)
    return bool(stale)


def _files() -> Iterator[tuple[Path, str]]:
    """Yield what is written where."""
    yield DOCS / "pictures" / "dataflow.svg", draw_flow(small_flow())
    answers: dict[str, Diagnosis] = {}
    for name, (capture, title, part, has_arrows) in PROCEDURE.items():
        if capture not in answers:
            answers[capture] = diagnose.analyze_trace(OWN / capture)
        yield _picture(name, answers[capture], title, part and Detail(*(int(ms * 1e6) for ms in part), has_arrows))
    missing = [entry.name for entry in entries() if not entry.path.exists()]
    for entry in entries():
        if entry.name not in missing and entry.name not in answers:
            answers[entry.name] = diagnose.analyze_trace(entry.path)
        if entry.name in answers:
            yield _picture(entry.name, answers[entry.name], entry.title.replace("`", ""), None)
    if missing:
        print(f"pictures: {', '.join(missing)} are not here, so docs/gallery.md stays as it is", file=sys.stderr)
    else:
        yield DOCS / "gallery.md", page(answers)


def _picture(name: str, d: Diagnosis, title: str, part: Detail | None) -> tuple[Path, str]:
    assert d.picture is not None
    return DOCS / "pictures" / f"{name}.svg", draw(d.picture, d.legends, title, part)


if __name__ == "__main__":
    sys.exit(main())
