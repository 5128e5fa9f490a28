"""Which events of a trace a mutation is done to."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["Event", "Events", "events_of", "some"]

Event = dict[str, Any]
Events = list[Any]


def events_of(document: dict[str, Any]) -> Events:
    """Return the list of events; an empty one where the document has none any more."""
    events = document.get("traceEvents")
    return events if isinstance(events, list) else []


def some(rng: random.Random, document: dict[str, Any], *, most: float = 1.0) -> list[Event]:
    """Return one event, some, or all of a kind: an exporter that errs does so everywhere."""
    events = [event for event in events_of(document) if isinstance(event, dict)]
    if not events:
        return []
    how = rng.random()
    if how < 0.35:
        return [rng.choice(events)]
    if how < 0.75:
        chosen = rng.choice(events)
        same = [event for event in events if event.get("cat") == chosen.get("cat")]
        return same if rng.random() < 0.5 else [event for event in same if rng.random() < 0.3] or same[:1]
    share = rng.random() * most
    return [event for event in events if rng.random() < share]
