"""The command that records a script; what it asked for is gathered here and carried out elsewhere."""

from __future__ import annotations

from typing import Any

import click

from diagnose.cli import options as shared
from diagnose.cli.help import option
from diagnose.cli.script_arguments import ScriptCommand

__all__ = ["trace"]

RECORDING = "Recording"


@click.command(
    cls=ScriptCommand,
    short_help="Run a script, record a few steps and diagnose them.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose trace train.py --epochs 3",
        "diagnose trace --steps 20 --html report.html -m package.train --epochs 3",
        "torchrun --nproc-per-node 8 -m diagnose trace train.py",
    ],
)
@shared.module_option(RECORDING)
@option(
    "--steps",
    group=RECORDING,
    type=click.IntRange(min=1),
    metavar="N",
    help="Record N steady steps in the timing window.  [default: 10, more where steps are short]",
)
@option(
    "--skip",
    group=RECORDING,
    type=click.IntRange(min=0),
    metavar="N",
    help="Wait at most N steps for stable step times; several ranks wait exactly N.  [default: 40; several ranks: 20]",
)
@shared.step_on_option(RECORDING)
@option(
    "--max-seconds",
    group=RECORDING,
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Record for at most S seconds.  [default: 300]",
)
@option(
    "--max-mb",
    group=RECORDING,
    type=click.FloatRange(min=0, min_open=True),
    metavar="MB",
    help="Record at most MB megabytes of trace, before compression.  [default: 200]",
)
@option("--quick", group=RECORDING, is_flag=True, help="Record one short window of at most 4 seconds, without stacks.")
@option(
    "--no-dataflow",
    "dataflow",
    group=RECORDING,
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not record which values two steps compute and use; rules about values are not run.",
)
@option("--keep-going", group=RECORDING, is_flag=True, help="Let the script run to its end after the recording.")
@option(
    "--copy",
    group=RECORDING,
    is_flag=True,
    help="Run the script in a copy of the working folder, so that it overwrites none of your files.",
)
@option(
    "--ranks",
    group=RECORDING,
    metavar="LIST",
    help="Record these ranks of several, such as 0,1,8-15; the script then runs to its end.  [default: all]",
)
@option(
    "--capture",
    "folder",
    group=RECORDING,
    metavar="FOLDER",
    help="Write the capture to FOLDER.  [default: diagnose-capture-TIME]",
)
@shared.report_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def trace(**asked: Any) -> int:  # what click read, typed by TraceRequest
    """Run SCRIPT as Python would, record a few steady steps, and diagnose them.

    Options go before SCRIPT; everything after it is passed to the script. The script is stopped after the recording
    unless --keep-going is given. Without an output option an HTML report is written next to the capture. Other names of
    this command are profile, run and record.
    """
    from diagnose.cli.trace import TraceRequest, trace_and_answer

    return trace_and_answer(TraceRequest(**asked))
