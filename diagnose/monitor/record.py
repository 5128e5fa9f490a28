"""What was read so far: rows for CSV, percentiles and series for JSON. The oldest rows give way to new ones."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timezone

from diagnose.monitor.board import METRICS, Board, Reading

__all__ = ["CSV_COLUMNS", "Record", "percentile"]

MAX_READINGS = 86_400  # of a GPU: a day at one a second
PERCENTILES = (5, 50, 95)
CSV_COLUMNS = ("time_utc", "gpu", "uuid", "name", *METRICS, "slowed_by")


class Record:
    """The readings of one GPU."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.readings: deque[Reading] = deque(maxlen=MAX_READINGS)

    def add(self, reading: Reading) -> list[str]:
        """Keep a reading; return its row as CSV has it."""
        self.readings.append(reading)
        at = datetime.fromtimestamp(reading.time_s, timezone.utc).isoformat(timespec="milliseconds")
        values = ["" if (v := reading.values[name]) is None else f"{v:.6g}" for name in METRICS]
        return [at, str(self.board.index), self.board.uuid, self.board.name, *values, "; ".join(reading.slowed_by)]

    def series(self, name: str) -> list[float]:
        """Return what is known of one metric."""
        return [value for reading in self.readings if (value := reading.values[name]) is not None]

    def percentiles(self) -> dict[str, dict[str, float]]:
        """Return for each metric that was ever read its least, percentiles and most."""
        found = {}
        for name in METRICS:
            values = sorted(self.series(name))
            if values:
                middle = {f"p{p}": percentile(values, p) for p in PERCENTILES}
                found[name] = {"min": values[0], **middle, "max": values[-1]}
        return found

    def slowed_share(self) -> float:
        """Return in which share of the readings the clock was held back."""
        return sum(bool(reading.slowed_by) for reading in self.readings) / max(len(self.readings), 1)

    def to_dict(self) -> dict[str, object]:
        """Return what the JSON holds of this GPU."""
        board = self.board
        return {
            "index": board.index,
            "uuid": board.uuid,
            "name": board.name,
            "memory_mb": board.memory_mb,
            "max_sm_mhz": board.max_sm_mhz,
            "power_limit_w": board.power_limit_w,
            "percentiles": self.percentiles(),
            "slowed_share": self.slowed_share(),
            "time_unix_s": [reading.time_s for reading in self.readings],
            "series": {name: [reading.values[name] for reading in self.readings] for name in METRICS},
            "slowed_by": [list(reading.slowed_by) for reading in self.readings],
        }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, between two of them in proportion."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def to_json(records: Sequence[Record], interval_s: float, note: str = "") -> str:
    """Return the JSON of a whole watch; ``note`` is why it has no GPU."""
    gpus = [record.to_dict() for record in records]
    data = {"schema_version": 1, "interval_s": interval_s, "metrics": METRICS, "gpus": gpus, "note": note}
    return json.dumps(data, indent=1, allow_nan=False)
