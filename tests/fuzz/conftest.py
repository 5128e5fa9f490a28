"""The fuzzer of evaluation/, importable."""

import sys
from pathlib import Path

EVALUATION = Path(__file__).resolve().parents[2] / "evaluation"
if str(EVALUATION) not in sys.path:
    sys.path.append(str(EVALUATION))
