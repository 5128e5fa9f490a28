"""Names the user's files in what a run has written about the copies: reports, sentences and logs show the originals.

A copy is called like its original, below one folder; so that folder's name is taken out wherever it stands.
"""

from __future__ import annotations

from pathlib import Path

from diagnose.capture.record.folder import rewrite_texts

__all__ = ["name_originals"]


def name_originals(folder: Path, root: Path) -> None:
    """Take the name of ``root`` out of every text in the folder, and out of every packed trace."""
    rewrite_texts(folder, lambda data: data.replace(bytes(root), b""))
