"""Writes the traces of a simulated case, and prints what each of its wastes truly costs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simulation.cases import draw_case
from simulation.checks import faults
from simulation.dialects import DIALECTS
from simulation.kineto import write_run
from simulation.truth import truth_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, default=0, help="which case of the seed")
    parser.add_argument("--dialect", choices=[dialect.name for dialect in DIALECTS], help="instead of the drawn one")
    parser.add_argument("-o", "--output", type=Path, help="an existing folder for the traces, one for each rank")
    options = parser.parse_args()
    case = draw_case(options.seed, options.case)
    truth = truth_of(case.situation)
    recorded = case.situation.recorded()
    dialect = next((d for d in DIALECTS if d.name == options.dialect), case.dialect)
    gpu = case.situation.machine.gpu
    if dialect.vendor != gpu.vendor:
        parser.error(f"case {case.name} runs on {gpu.name}, which {dialect.name} cannot describe; leave --dialect out")
    if options.output and not options.output.is_dir():
        parser.error(f"Invalid folder {options.output}: use an existing one")
    written = write_run(recorded, dialect, options.output) if options.output else []
    answer = {
        "case": case.name,
        "family": case.family,
        "gpu": gpu.name,
        "dialect": dialect.name,
        "step_ms": truth.step_ns / 1e6,
        "without_any_ms": truth.clean_ns / 1e6,
        "savings": {waste.kind: round(truth.saving(waste.kind), 4) for waste in case.situation.wastes},
        "best": truth.best,
        "limit": truth.limit,
        "faults": faults(recorded),
        "files": [path.name for path in written],
    }
    print(json.dumps(answer, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
