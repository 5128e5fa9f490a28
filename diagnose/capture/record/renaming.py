"""Gives other names to files of the program in a capture that is written: a cell its number, a copy its original."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diagnose.capture.record.gzip_io import packed
from diagnose.model.files import replace_private
from diagnose.text.patterns import lazy_pattern

__all__ = ["name_cells", "rewrite_texts"]

TEXTS = (".json", ".log", ".txt")
MAX_BYTES = 512 << 20  # a trace is smaller; a script could leave anything
ANONYMOUS_CELL = lazy_pattern(rb"<ipython-input-(\d+)-\w+>")


def rewrite_texts(folder: Path, rewrite: Callable[[bytes], bytes]) -> None:
    """Rewrite every text in the folder, and every packed one."""
    for path in folder.glob("*"):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            continue
        if path.suffix == ".gz":
            data = _unpacked(path.read_bytes())
            if (after := rewrite(data)) != data:
                replace_private(path, packed(after))
        elif path.suffix in TEXTS:
            data = path.read_bytes()
            if (after := rewrite(data)) != data:
                replace_private(path, after)


def _unpacked(data: bytes) -> bytes:
    from isal import igzip

    decompress: Any = igzip.decompress
    return bytes(decompress(data))


def name_cells(folder: Path) -> None:
    """Call the cells of a notebook by their numbers, as its tracebacks do; outside of one nothing is done."""
    numbers = _numbers()
    if numbers is None:
        return
    names = {file.encode(): b"cell %d" % number for file, number in numbers.items()}
    known = re.compile(b"|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None

    def rewrite(data: bytes) -> bytes:
        data = known.sub(lambda found: names[found[0]], data) if known is not None else data
        return ANONYMOUS_CELL.sub(rb"cell \1", data)

    rewrite_texts(folder, rewrite)


def _numbers() -> Mapping[str, int] | None:
    """Return the number of each cell by the name of the file that it is compiled as, None without IPython."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    if shell is None:
        return None
    found = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return found if isinstance(found, dict) else {}
