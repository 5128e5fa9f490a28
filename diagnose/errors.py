"""Every error a user can meet, each one sentence with a remedy.

    DiagnoseError            exit 1   anything below
    ├── UsageError           exit 2   the command line or arguments make no sense
    ├── InputError           exit 4   the trace or capture cannot be read
    │   └── NotATraceError   exit 4   the file is readable but is not a Kineto trace
    ├── CaptureError         exit 5   the script ran but no step could be captured
    ├── OutputError          exit 6   the result cannot be written where asked
    ├── OriginalsChangedError exit 1  files of the user changed while prove ran the script
    └── BudgetEndedError     exit 1   the budget of prove ended before a change could be tried

Exit codes 3 and 7 are no errors but verdicts of a gate: slower, and not comparable. A traced script's own exit code
passes through unchanged.
"""

from __future__ import annotations

import os

DEBUG = "DIAGNOSE_DEBUG"  # the environment variable under which a fault of diagnose itself is shown in full


def is_debugging() -> bool:
    """Return whether faults are to be raised and shown with their traceback instead of noted in one sentence."""
    return bool(os.environ.get(DEBUG))


class DiagnoseError(Exception):
    """Base of all errors raised on purpose; the command prints its text and exits with ``exit_code``."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the sentence; what it quotes may hold credentials, which are masked."""
        from diagnose.text.masking import mask_text

        return mask_text(super().__str__())


class UsageError(DiagnoseError):
    """The request itself makes no sense."""

    exit_code = 2


class InputError(DiagnoseError):
    """A trace or capture folder cannot be read."""

    exit_code = 4


class NotATraceError(InputError):
    """The file is readable, but it is not a trace of torch.profiler."""


class CaptureError(DiagnoseError):
    """The script ran, but no step of it could be captured."""

    exit_code = 5


class OutputError(DiagnoseError):
    """A result cannot be written where it was asked for."""

    exit_code = 6


class OriginalsChangedError(DiagnoseError):
    """Files of the user changed while the script was run to be measured, so no further run may start."""


class BudgetEndedError(DiagnoseError):
    """No change could be tried in the time that was given."""


def missing_extra(what: str, extra: str) -> InputError:
    """Return the error for what needs a package that only an extra of this one installs; ``what`` is a sentence."""
    return InputError(f"{what}, which needs packages that are not installed: pip install 'torch-diagnose[{extra}]'.")
