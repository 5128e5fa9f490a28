"""Runs the command on damaged traces, captures and reports; pages/fuzz.md describes the bars."""

from __future__ import annotations

import sys

from fuzzing.command import main

if __name__ == "__main__":
    sys.exit(main())
