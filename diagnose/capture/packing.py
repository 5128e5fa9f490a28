"""Writes .gz files fast: isal at its quick level packs traces several times faster than zlib."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, cast

__all__ = ["open_packed"]

QUICK = 2  # isal's levels are 0 to 3; 3 is slower and saves a few percent


def open_packed(path: Path) -> IO[bytes]:
    """Return a file to write bytes to that are compressed into ``path``."""
    from isal import igzip

    make: Any = igzip.IGzipFile
    return cast("IO[bytes]", make(str(path), "wb", compresslevel=QUICK))
