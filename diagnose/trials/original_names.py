"""Names the user's files in what a run has written about the copies: reports, sentences and logs show the originals.

A copy is called like its original, below one folder; so that folder's name is taken out wherever it stands.
"""

from __future__ import annotations

import stat
from pathlib import Path

from diagnose.capture.record.gzip_io import packed

__all__ = ["name_originals"]

TEXTS = (".json", ".log", ".txt")
MAX_BYTES = 512 << 20  # a trace is smaller; a script could leave anything


def name_originals(folder: Path, root: Path) -> None:
    """Take the name of ``root`` out of every text in the folder, and out of every packed trace."""
    for path in folder.glob("*"):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            continue
        if path.suffix == ".gz":
            _rename_packed(path, bytes(root))
        elif path.suffix in TEXTS:
            data = path.read_bytes()
            if bytes(root) in data:
                path.write_bytes(data.replace(bytes(root), b""))


def _rename_packed(path: Path, root: bytes) -> None:
    from isal import igzip

    data = igzip.decompress(path.read_bytes())
    if root in data:
        path.write_bytes(packed(data.replace(root, b"")))
