"""The cell magic ``%%diagnose`` of IPython and Jupyter, loaded by ``%load_ext diagnose``.

    %%diagnose --steps 10
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()

The cell is one step: it is run until enough of them are recorded, and its diagnosis is the cell's result.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from diagnose.api import Diagnosis, analyze
from diagnose.errors import UsageError
from diagnose.text.plain_text import one_line

__all__ = ["register"]


class _Options(argparse.ArgumentParser):
    """The options of the magic; wrong ones are an error of diagnose instead of the interpreter's end."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%diagnose: {one_line(message)}. Use --steps N, --quick, --html FILE.")


def register(shell: Any) -> None:
    """Give a shell of IPython the magic."""
    shell.register_magic_function(_magic_of(shell), "cell", "diagnose")


def _magic_of(shell: Any) -> Any:
    def magic(line: str, cell: str) -> Diagnosis:
        """Record and diagnose the cell as one step: %%diagnose [--steps N] [--quick] [--html FILE]."""
        asked = _options().parse_args(shlex.split(line))
        source = shell.transform_cell(cell)
        code = compile(source, shell.compile.cache(source), "exec")  # under that name IPython finds the lines again

        def step() -> None:
            exec(code, shell.user_ns)

        diagnosis = analyze(step, steps=asked.steps, quick=asked.quick)
        if asked.html:
            diagnosis.to_html(asked.html)
        return diagnosis

    return magic


def _options() -> _Options:
    options = _Options(prog="%%diagnose", add_help=False)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--html")
    return options
