"""Faults for the fuzzer's workers, which import this module: the name of the file in the command picks one."""

import os
import sys
import time

from fuzzing import worker
from fuzzing.cases import Case

from diagnose.cli import main as cli

FAULTS = ("fine", "hang", "memory", "death", "stray")


def _make(_seed, _kind, index, _inputs):
    return Case(("what-if", FAULTS[index]), {})


def _run(argv):
    match argv[1]:
        case "hang":
            time.sleep(600)
        case "memory":
            bytearray(1100 << 20)
        case "death":
            os._exit(9)
        case "stray":
            os.write(1, b"past sys.stdout")
    print("step now")
    return 0


worker.base_reports = list
worker.make = _make
worker.watch_rules = lambda: None
cli.run = _run
assert "pytest" not in sys.modules, "for workers only"
