"""Whether a loop over a DataLoader is itself in a loop: whether a script comes back to its samples."""

from __future__ import annotations

import ast
import linecache
import warnings
from types import FrameType

__all__ = ["comes_again"]

MAX_FRAMES = 100
_LAUNCHERS = ("runpy", "diagnose.")  # modules below the script's own


def comes_again(frame: FrameType | None) -> bool | None:
    """Return whether one of the open calls is in the body of a loop, None where a call's source is not at hand.

    Args:
        frame: the call that begins to go over the loader; the line of a `for` that does so is no part of its body.
    """
    for _ in range(MAX_FRAMES):
        if frame is None or frame.f_globals.get("__name__", "").startswith(_LAUNCHERS):
            return False
        inside = _is_in_a_loop(frame.f_code.co_filename, frame.f_lineno)
        if inside is not False:
            return inside
        frame = frame.f_back
    return None


def _is_in_a_loop(file: str, line: int) -> bool | None:
    text = "".join(linecache.getlines(file))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes: the script had them already
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if not text:
        return None
    scopes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))
    around = [node for node in scopes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    begins = max((node.lineno for node in around), default=0)  # a loop around a function's definition runs it no more
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While))
    return any(
        node.lineno >= begins and node.body[0].lineno <= line <= (node.end_lineno or node.lineno) for node in loops
    )
