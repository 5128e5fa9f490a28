"""Names the option that allows what a run was refused: to write to a place, or to reach the network."""

from __future__ import annotations

import os
import re
from pathlib import Path

from diagnose.model.files import printable
from diagnose.trials.limits import Limits

__all__ = ["why_refused"]

REFUSED = re.compile(r"permission denied|read-only file system|errno 13\b|cross-device link", re.IGNORECASE)
PATH = re.compile(r"['\"](/[^'\"\n]*)['\"]|(?<![\w./])(/[^\s'\":,;()]+)")
UNREACHED = re.compile(
    r"unreachable|name resolution|resolve host|service not known|getaddrinfo|n.t connect|connection ?(error|refused)|"
    r"no internet|offline|urlopen|max retries",
    re.IGNORECASE,
)


def why_refused(failure: str, limits: Limits) -> str:
    """Return a sentence to follow one about a failed run, "" if the limits did not cause it."""
    if limits.writable is not None and REFUSED.search(failure):
        paths = _paths(failure)
        for path in reversed(paths):  # a file that is renamed comes before its new name
            if _is_refused(path, limits):
                return f" Runs may not write to {printable(path)}; --writable {printable(path.parent)} allows it."
        return "" if paths else " Runs may write to their copy only; --writable FOLDER allows another place."
    if limits.is_offline and UNREACHED.search(failure):
        return f" Runs {'have no network' if limits.is_isolated else 'are set to offline mode'}; --network opens it."
    return ""


def _paths(failure: str) -> list[Path]:
    return [Path(quoted or bare) for quoted, bare in PATH.findall(failure)]


def _is_refused(path: Path, limits: Limits) -> bool:
    """Return whether the user may write there and a run may not."""
    real = Path(os.path.realpath(path))
    if limits.writable is None or any(real.is_relative_to(place) for place in limits.writable):
        return False
    there = next((each for each in (real, *real.parents) if each.exists()), real)
    return os.access(there, os.W_OK)
