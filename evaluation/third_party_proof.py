"""Scores what ``diagnose prove`` measured of one script against what the script's report states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.changes import trial_method
from diagnose.trials.prove import OWN_RANKS

__all__ = ["OPEN", "RIGHT", "WRONG", "score_proof"]

RIGHT, WRONG, OPEN = "yes", "no", "n/a"
BY_HAND = "It is yours to make"  # how a trial begins that was refused for that
UNSEEN = 0.01  # of the step: a saving that is so little outside of its range is within it, as far as runs show


def score_proof(diagnosis: Mapping[str, Any], failure: str) -> dict[str, str]:
    """Return whether a change was tried, whether it saved what is stated, and whether one made steps longer.

    ``failure`` is the last line of what the command printed where it failed.
    """
    stated = {p["id"]: _stated(p, diagnosis["step_ms"]) for p in diagnosis["prescriptions"]}
    tried = [trial for trial in diagnosis["trials"] if trial["kind"] == "single" and not trial["failure"]]
    if not tried:
        able = {name for name in stated if trial_method(name) != "by hand" and not failure.endswith(OWN_RANKS)}
        refused = {trial["id"] for trial in diagnosis["trials"] if trial["failure"].startswith(BY_HAND)}
        why = "; ".join(f"{trial['id']}: {trial['failure']}" for trial in diagnosis["trials"]) or failure
        return {"prove": WRONG if able - refused else OPEN, "remark_prove": f"prove: {why}" if why else ""}
    outside = [trial["id"] for trial in tried if not _is_within(trial["interval"], stated[trial["id"]])]
    slower = [trial["id"] for trial in tried if trial["interval"][1] < 1]
    return {
        "prove": RIGHT,
        "saves": WRONG if outside else RIGHT,
        "harmless": WRONG if slower else RIGHT,
        "remark_prove": "; ".join(_measured(trial, stated[trial["id"]]) for trial in tried),
    }


def _stated(prescription: Mapping[str, Any], step_ms: float) -> list[float]:
    """Return the least and the most that a change is stated to save, as shares of the step that it is a part of."""
    whole = prescription["mean_step_ms"] or step_ms
    return [ms / whole for ms in prescription["saves_ms"]]


def _is_within(speed_up: list[float], stated: list[float]) -> bool:
    """Return whether what runs showed, a speed-up's interval, can be what is stated: shares of the step that go."""
    least, most = (1 - 1 / ratio for ratio in speed_up)
    return least <= stated[1] + UNSEEN and most >= stated[0] - UNSEEN


def _measured(trial: Mapping[str, Any], stated: list[float]) -> str:
    least, most = (1 - 1 / ratio for ratio in trial["interval"])
    return f"{trial['id']} saved {least:.0%} to {most:.0%}, stated {stated[0]:.0%} to {stated[1]:.0%}"
