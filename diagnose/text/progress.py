"""Progress on standard error: a spinner on a terminal, plain lines elsewhere, nothing when quiet.

While the user's script runs only whole lines are written (`report`): a live display would fight with the script's own
progress bars. The spinner (`phase`) belongs to the stages after it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from diagnose.text.plain_text import one_line

PREFIX = "diagnose: "  # marks our lines among the script's


class Progress(NamedTuple):
    """Where progress goes; ``stream`` None means wherever ``sys.stderr`` points at that moment."""

    quiet: bool = False
    stream: TextIO | None = None

    def report(self, text: str) -> None:
        """Write one line. A standard error that is closed or full is no reason to stop."""
        if self.quiet:
            return
        from diagnose.text.masking import mask_text  # a dozen patterns, which --help does not need

        stream = self.stream or sys.stderr
        try:
            print(f"{PREFIX}{one_line(mask_text(text))}", file=stream, flush=True)
        except (OSError, ValueError):
            return

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Show that ``text`` is going on until the block ends."""
        stream = self.stream or sys.stderr
        if self.quiet or not stream.isatty():
            self.report(text)
            yield
            return
        from rich.console import Console
        from rich.text import Text

        from diagnose.text.masking import mask_text

        with Console(file=stream).status(Text(one_line(mask_text(text)))):
            yield
