"""The command: one module per command, and where their answers go.

The import of any module of the command checks first that the files of `diagnose` are those of this distribution.
"""

from __future__ import annotations

import sys
from pathlib import Path

OF_ANOTHER_PACKAGE = "patchlib.py"  # a file of the distribution `diagnose`, which imports under the same name

if (Path(__file__).parents[1] / OF_ANOTHER_PACKAGE).exists():
    sys.stderr.write(
        "diagnose: error: Another package is installed under the name diagnose, and the two overwrite each other: run "
        "pip uninstall -y diagnose torch-diagnose, then pip install torch-diagnose.\n"
    )
    sys.exit(2)  # as for wrong arguments
