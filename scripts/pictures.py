"""Draws the pictures of docs/gpu-idle.md and docs/report.md from recordings; --check compares only.

One recording is a published trace (../shared/traces), no part of the repository: without it its picture stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from documentation.flow_picture import draw_flow, small_flow
from documentation.step_picture import Detail, draw

import diagnose
from diagnose.model.diagnosis import Diagnosis
from diagnose.reports.rule_labels import coloured

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OWN, SHARED = ROOT / "fixtures" / "traces", ROOT.parent / "shared" / "traces"
MAX_BYTES = 60_000
QUEUES = {  # name: recording, title, part of the step in ms, whether launches are joined to their tasks
    "queue-full": (OWN / "serial_reads-planted", "A full queue", None, False),
    "queue-shallow": (OWN / "one_environment-planted", "A shallow queue", None, False),
    "queue-gaps": (OWN / "slow_dataset-planted", "A deep queue with a gap: the DataLoader", None, False),
    "queue-sync": (OWN / "item_every_step-planted", "A queue that .item() drains", None, False),
    "queue-collector": (OWN / "gc_every_step-planted", "A deep queue with a gap: the garbage collector", None, False),
    "queue-communication": (SHARED / "param_dlrm_v100_r1.json.gz", "Communication, not overlapped", None, False),
    "launch-to-task": (OWN / "item_every_step-planted", "Each launch and its task", (14.3, 16.3), True),
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
    answers: dict[Path, Diagnosis] = {}
    for name, (recording, title, part, has_arrows) in QUEUES.items():
        if not recording.exists():
            print(f"pictures: {recording.name} is not here, so {name}.svg stays as it is", file=sys.stderr)
            continue
        d = answers.get(recording) or diagnose.analyze_trace(recording)
        answers[recording] = d = coloured(d)
        assert d.picture is not None
        detail = part and Detail(*(int(ms * 1e6) for ms in part), has_arrows)
        yield DOCS / "pictures" / f"{name}.svg", draw(d.picture, d.legends, title, detail)


if __name__ == "__main__":
    sys.exit(main())
