"""Runs a script until its fourth optimizer step and prints the constructor calls that were taken down, as JSON.

python run_with_calls.py SCRIPT [ARGS…]; it runs in the script's folder, as its user would.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import msgspec
from torch.optim.optimizer import register_optimizer_step_post_hook

from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps.hooks import watch_constructions

STEPS = 4  # fixtures save at their third


class Enough(BaseException):
    """Ends a script that goes on for long."""


def main():
    config, steps = ScriptConfig(), []
    watch_constructions(config.constructed)

    def stepped(_optimizer, _args, _kwargs):
        steps.append(1)
        if len(steps) == STEPS:
            raise Enough

    register_optimizer_step_post_hook(stepped)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)  # as Python does
    printed, sys.stdout = sys.stdout, sys.stderr
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        if len(steps) < STEPS:  # else it was stopped: a folder cannot be removed as a saver still writes into it
            raise
    printed.write(json.dumps({"calls": [msgspec.to_builtins(call) for call in config.calls], "steps": len(steps)}))
    printed.flush()
    os._exit(0)  # workers, and threads of frameworks, are not waited for


if __name__ == "__main__":
    main()
