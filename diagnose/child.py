"""The process that runs the traced script: started by ``diagnose trace``, it captures and does nothing else.

Usage (by ``diagnose.launch``): ``main()`` with ``sys.argv[1]`` the options as JSON, then [-m] SCRIPT and its arguments.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from diagnose.capture.options import CaptureOptions
from diagnose.errors import DiagnoseError

__all__ = ["encode", "main"]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def encode(options: CaptureOptions, parent: int) -> str:
    """Return the options as one argument."""
    values = {name: getattr(options, name) for name in CaptureOptions.__slots__}
    return json.dumps({"options": {**values, "output": str(options.output)}, "parent": parent})


def main() -> NoReturn:
    """Run the script under capture and end as it ended."""
    asked = json.loads(sys.argv[1])
    _die_with_parent(asked["parent"])
    options = CaptureOptions(**{**asked["options"], "output": Path(asked["options"]["output"])})
    module = sys.argv[2] == "-m"
    target, *args = sys.argv[3 if module else 2 :]
    from diagnose.capture import trace_script

    try:
        code = trace_script(target, args, options=options, module=module)
    except DiagnoseError as error:
        print(f"diagnose: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(code)


def _die_with_parent(parent: int) -> None:
    """Ask Linux to end this process when ``diagnose trace`` is killed: no training run is left without its owner."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)
