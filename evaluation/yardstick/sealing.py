"""A truth that lies packed in the tree until its set is opened, so that it is read on purpose or not at all."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

__all__ = ["has_truth", "read_truth", "seal", "unseal"]


def _packed(truth: Path) -> Path:
    return truth.with_suffix(".sealed")


def has_truth(truth: Path) -> bool:
    """Return whether a file of truth is there, packed or not."""
    return truth.is_file() or _packed(truth).is_file()


def read_truth(truth: Path) -> str:
    """Return the text of a file of truth, packed or not."""
    if truth.is_file():
        return truth.read_text(encoding="utf-8")
    return zlib.decompress(base64.b64decode(_packed(truth).read_bytes())).decode()


def seal(truth: Path) -> None:
    """Pack a file of truth into one next to it."""
    packed = base64.encodebytes(zlib.compress(read_truth(truth).encode(), 9))
    _packed(truth).write_bytes(packed)
    truth.unlink(missing_ok=True)


def unseal(truth: Path) -> None:
    """Unpack a file of truth, if it is packed."""
    if _packed(truth).is_file():
        truth.write_text(read_truth(truth), encoding="utf-8")
        _packed(truth).unlink()
