"""The commands and their options: each gathers what was asked for and calls one function, imported only then.

Nothing heavy is imported here: ``diagnose --help`` has to answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from typing import Any

import click
from click.core import ParameterSource

from diagnose import __version__
from diagnose.cli import options as shared
from diagnose.cli.help import (
    Command,
    Former,
    Group,
    option,
    show_all_help,
)
from diagnose.errors import UsageError, missing_extra
from diagnose.model.limits import EXPORTS, OVERLAPPED

RECORDING, RANKS, OUTPUT, CHANGES, RUNS = "Recording", "Ranks", "Output", "Change", "Trial"
COMPARISON, GATE, WATCH, WINDOWS, METRICS, SERVER = "Comparison", "Gate", "Watch", "Window", "Metrics", "Server"
HELP_ALL = "Show the help of all commands with all options, and exit."
FORMER = {
    **{name: Former(("trace",)) for name in ("profile", "run", "record")},
    "summarize": Former(("analyze",), "analyze --partial FILE", {"-o": "--partial=", "--output": "--partial="}),
    "reduce": Former(("analyze", "--merge"), "analyze --merge"),
    "history": Former(("watch", "--list"), "watch --list"),
    "export": Former(
        ("analyze",), "analyze --export KIND=FILE", {f"--{kind}": f"--export={kind}=" for kind in EXPORTS}
    ),
}
"""Other names of commands, and former ones, which are now options of another command."""
_recording = partial(option, group=RECORDING)
_ranks = partial(option, group=RANKS)
_output = partial(option, group=OUTPUT)
_change = partial(option, group=CHANGES)
_trial = partial(option, group=RUNS)
_comparison = partial(option, group=COMPARISON)
_gating = partial(option, group=GATE)
_watching = partial(option, group=WATCH)
_window = partial(option, group=WINDOWS)
_metrics = partial(option, group=METRICS)
# Of `analyze`: what goes with a diagnosis, and with one of recordings; of no use where summaries are written, or read.
ANSWER = ("merge", "keep", "as_json", "output", "html", "open_browser", "verbose", "select", "ignore")
RECORDINGS = ("exports", "cross_check")


@click.group(
    cls=Group,
    former=FORMER,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=[
        "diagnose trace train.py --epochs 3",
        "diagnose analyze trace.json.gz --html report.html",
        "diagnose explain data-stall",
    ],
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=show_all_help, help=HELP_ALL)
def cli() -> None:
    """Find out why a PyTorch training step is slow, on which line, and what to change.

    diagnose COMMAND --help describes a command.
    """


@click.command(
    cls=Command,
    short_help="Run a script, record a few steps and diagnose them.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose trace train.py --epochs 3",
        "diagnose trace --steps 20 --html report.html -m package.train --epochs 3",
        "torchrun --nproc-per-node 8 -m diagnose trace train.py",
    ],
)
@shared.module_option(RECORDING)
@_recording(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Record N steady steps in the timing window.  [default: 10, more if steps are short]",
)
@_recording(
    "--skip",
    type=click.IntRange(min=0),
    metavar="N",
    help="Wait at most N steps for stable step times; several ranks wait exactly N.  [default: 40; several ranks: 20]",
)
@shared.step_on_option(RECORDING)
@_recording(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Record for at most S seconds.  [default: 300]",
)
@_recording(
    "--max-mb",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MB",
    help="Record at most MB megabytes of trace, before compression.  [default: 200]",
)
@_recording("--quick", is_flag=True, help="Record one short window of at most 4 seconds, without stacks.")
@shared.dataflow_option(RECORDING)
@_recording("--keep-going", is_flag=True, help="Let the script run to its end after the recording.")
@_recording(
    "--copy",
    is_flag=True,
    help="Run the script in a copy of the working folder, so that it overwrites none of your files.",
)
@_recording(
    "--ranks",
    metavar="LIST",
    help="Record these ranks of several, such as 0,1,8-15; the script then runs to its end.  [default: all]",
)
@_recording(
    "--capture", "folder", metavar="FOLDER", help="Write the capture to FOLDER.  [default: diagnose-capture-TIME]"
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


@click.command(
    cls=Command,
    short_help="Diagnose traces or captures that exist already.",
    examples=[
        "diagnose analyze trace.json.gz",
        "diagnose analyze capture/ --html report.html",
        "diagnose analyze --export perfetto=causes.json trace.json.gz",
    ],
)
@_ranks(
    "--partial",
    metavar="FILE",
    help="Only write the summaries of these ranks to FILE, for --merge: .ranks.",
)
@_ranks("--merge", is_flag=True, help="PATHs are files of summaries, or folders of them: diagnose the job.")
@shared.worker_options
@shared.keep_option
@_output(
    "--export",
    "exports",
    multiple=True,
    metavar="KIND=FILE",
    help=f"Write the answer for other tools: {', '.join(EXPORTS)}; repeatable.",
)
@_output(
    "--query",
    metavar="SQL",
    help="Print what a query finds in the tables events, steps and devices, and end.",
)
@_output(
    "--cross-check",
    type=click.Choice(["hta"]),
    metavar="TOOL",
    help="Add the figures of Holistic Trace Analysis (hta) and what explains each difference.",
)
@shared.report_options
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def analyze(paths: tuple[str, ...], partial: str | None, merge: bool, **asked: Any) -> None:  # typed by JobRequest
    """Diagnose recorded traces: capture folders, or files and folders of torch.profiler.

    A PATH is a trace (.json, .gz, .zst), a folder of them, or a quoted pattern. Profiles of Nsight Systems
    (.nsys-rep, .sqlite) and rocprofv3 (.db) are read too. A trace can also be a URL such as s3://bucket/run/,
    or - for standard input. Several are the ranks of one run. Neither a GPU nor the script is needed.
    """
    shared.one_thread()
    from diagnose.cli.job import JobRequest, SummaryRequest, analyze_and_answer, merge_and_answer, summarize

    if partial:
        _refuse("--partial", *ANSWER, *RECORDINGS)
        of_summaries = {field.name for field in fields(SummaryRequest)} - {"output"}
        summarize(paths, SummaryRequest(output=partial, **{name: asked[name] for name in of_summaries}))
    elif merge:
        _refuse("--merge", *RECORDINGS)
        merge_and_answer(paths, JobRequest(**asked))
    else:
        analyze_and_answer(paths, JobRequest(**asked))


def _refuse(option: str, *others: str) -> None:
    """Refuse options that were typed next to one that leaves them without a meaning."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in others and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            other = max(parameter.opts, key=len)
            raise UsageError(f"{option} and {other} exclude each other; use one of them.")


@click.command(
    cls=Command,
    short_help="Describe a rule or a change.",
    examples=["diagnose explain", "diagnose explain data-stall", "diagnose explain load-in-workers --json"],
)
@shared.result_options
@click.argument("name", required=False, metavar="[RULE|CHANGE]")
def explain(name: str | None, **asked: Any) -> None:  # what click read, typed by ExplainRequest
    """Describe a rule or a change; without a name, list all of them.

    A rule's page states what it looks for, why it costs time, what to do, and how sure it is. A change's page states
    what it may alter in the results and how prove measures it.
    """
    from diagnose.cli.explain import ExplainRequest, explain_and_answer

    explain_and_answer(ExplainRequest(name=name, **asked))


@click.command(
    cls=Command,
    short_help="Measure each prescribed change by running the script.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose prove train.py --epochs 3",
        "diagnose prove --yes --budget 5m --apply load-in-workers,autocast train.py",
        "diagnose prove capture/",
    ],
)
@shared.module_option(RUNS)
@_trial(
    "--apply",
    "ids",
    metavar="ID,…",
    help="Try only these changes. [default: every one that can be applied from outside]",
)
@_trial(
    "--against",
    metavar="FILE",
    help="Measure FILE, a copy of the script with your own edit, against SCRIPT, instead of the prescribed changes.",
)
@_trial("--budget", default="10m", metavar="TIME", help="End all runs and recordings within TIME: 90s, 10m or 1h.")
@_trial(
    "--cwd-mode",
    type=click.Choice(["copy", "same"]),
    metavar="MODE",
    default="copy",
    help="copy: run in a copy of the working folder, which reads files outside it; same: in the folder itself, whose "
    "files runs may overwrite.",
)
@_trial(
    "--writable",
    multiple=True,
    metavar="PATH",
    help="Let runs write to PATH, a file or folder that exists outside the copy; repeatable.",
)
@_trial(
    "--network",
    is_flag=True,
    help="Let runs use the network, experiment trackers included. [default: this machine's loopback only]",
)
@_trial(
    "--launcher",
    default="",
    metavar="COMMAND",
    help="Start the ranks with COMMAND, such as 'torchrun --nproc-per-node 2'.",
)
@shared.step_on_option(RUNS)
@_trial(
    "--keep-runs",
    metavar="FOLDER",
    help="Keep the capture and the output of every run in FOLDER, which is new or empty.",
)
@_trial(
    "--write-patch", metavar="FILE", help="Write the changes that helped to FILE, a diff of the script for git apply."
)
@_trial("--yes", is_flag=True, help="Run the script repeatedly without asking for confirmation.")
@_trial("--trust-command", is_flag=True, help="With --yes, also run a command that a capture recorded.")
@shared.report_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def prove(ids: str | None, **asked: Any) -> int:  # what click read, typed by ProveRequest
    """Run SCRIPT with each prescribed change and without it, and measure both.

    Several processes run the script and take turns, until the result is certain. Step time, losses and memory are
    compared. If SCRIPT is a capture folder, its recorded command is run. Options go before SCRIPT.
    """
    from diagnose.cli.prove import ProveRequest, prove_and_answer

    return prove_and_answer(ProveRequest(apply=_names(ids or ""), **asked))


def _names(text: str) -> tuple[str, ...]:
    """Split a list of names at its commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@click.command(
    "what-if",
    cls=Command,
    short_help="Predict the step time after changes.",
    examples=[
        "diagnose what-if trace.json.gz",
        "diagnose what-if capture/ --apply load-in-workers,autocast",
        "diagnose what-if trace.json.gz --scale 'gemm=0.5' --json",
    ],
)
@_change("--apply", "ids", metavar="ID,…", default="", help="Apply these changes, in this order.")
@_change("--without", "rules", multiple=True, metavar="RULE", help="Remove all idle time of this rule; repeatable.")
@_change(
    "--loader-workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Load batches in N worker processes.",
)
@_change(
    "--bucket-mb",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MB",
    help="Reduce gradients in buckets of MB megabytes.",
)
@_change(
    "--overlap",
    multiple=True,
    type=click.Choice(OVERLAPPED),
    metavar="COLLECTIVE",
    help=f"Overlap these collectives with computation: {', '.join(OVERLAPPED)}; repeatable.",
)
@_change(
    "--scale",
    "scales",
    multiple=True,
    metavar="PATTERN=FACTOR",
    help="Multiply the time of kernels whose name matches PATTERN by FACTOR; repeatable.",
)
@_change(
    "--memory",
    metavar="SIZE",
    help="List what to checkpoint so that the step's peak memory is at most SIZE, such as 20GB or 20GiB.",
)
@shared.page_options
@click.argument("path")
def what_if(path: str, **asked: Any) -> None:  # lists of texts
    """Predict the step time of a recording after changes, applied one after the other.

    The steady steps of one rank are replayed as a dependency graph. Without a change the critical path is shown. Of a
    job, --bucket-mb, --overlap and --without straggler replay all ranks.
    """
    from diagnose.cli.what_if import WhatIfOptions, predict_and_answer

    predict_and_answer(path, WhatIfOptions(apply=_names(asked.pop("ids")), **asked))


_tolerance = _comparison(
    "--tolerance",
    default="5%",
    metavar="SHARE",
    help="Count a difference of up to SHARE of the step as none: 5% or 0.05.",
)
_allow_differences = _comparison(
    "--allow-differences", is_flag=True, help="Compare although device, batch size or other conditions differ."
)


@click.command(
    cls=Command,
    short_help="Compare two recordings, or the runs of two versions.",
    examples=[
        "diagnose compare before/ after/",
        "diagnose compare --before run1 --before run2 --before run3 new1 new2 new3",
        "diagnose compare baseline.json trace.json.gz --json",
    ],
)
@_comparison("--before", multiple=True, metavar="PATH", help="A run of the earlier side; repeatable.")
@_tolerance
@_allow_differences
@shared.rule_options
@shared.page_options
@click.argument("paths", nargs=-1, metavar="BEFORE AFTER...")
def compare(before: tuple[str, ...], paths: tuple[str, ...], **asked: Any) -> None:  # typed by the request
    """Compare captures, traces or JSON reports: step time, its parts, causes and kernels.

    Runs of one script differ, so give two or more runs of each side; with --before every PATH is a run of the later
    side. The exit code is 0 for every result: slower, faster, the same, undecided or not comparable.
    """
    from diagnose.cli.gate import CompareRequest, compare_and_answer

    before, after = _sides(before, paths, "BEFORE", "AFTER")
    compare_and_answer(CompareRequest(before=before, after=after, **asked))


def _sides(
    named: Sequence[str], paths: Sequence[str], first: str, second: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runs of both sides: the first argument is the earlier one where no option names it."""
    earlier, later = (named, paths) if named else (paths[:1], paths[1:])
    if not earlier or not later:
        raise click.UsageError(f"Missing argument '{second if earlier else first}'.")
    return tuple(earlier), tuple(later)


@click.command(
    cls=Command,
    short_help="Fail if the step is slower than a baseline.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose gate --update baseline.json train.py --epochs 1",
        "diagnose gate --tolerance 5% --junit gate.xml baseline.json train.py",
        "diagnose gate baseline.json run1 run2 run3",
    ],
)
@_comparison("--baseline", multiple=True, metavar="PATH", help="A run of the baseline; repeatable.")
@_tolerance
@_allow_differences
@shared.module_option(GATE)
@_gating("--runs", type=click.IntRange(1, 100), metavar="N", help="Trace the script N times.  [default: 3]")
@_gating("--update", is_flag=True, help="Replace the baseline by all runs of TARGET, and pass.")
@_gating("--junit", metavar="FILE", help="Write a JUnit report to FILE.")
@shared.rule_options
@shared.page_options
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, metavar="BASELINE TARGET [ARGS]...")
def gate(baseline: tuple[str, ...], paths: tuple[str, ...], **asked: Any) -> int:  # typed by the request
    """Fail if the step became slower than in BASELINE, by more than the tolerance and the spread of equal runs.

    TARGET is a script, which is traced three times, or captures, traces or reports, one of each run. BASELINE is a
    file that --update wrote from several runs, or a single run; with --baseline there is no argument BASELINE.
    Options go before both.

    Exit codes: 0 passed, or undecided (too few or too uneven runs); 3 slower; 7 not comparable, such as another device
    or batch size.
    """
    from diagnose.cli.gate import GateRequest, gate_and_answer

    baseline, rest = _sides(baseline, paths, "BASELINE", "TARGET")
    return gate_and_answer(GateRequest(baseline=baseline, target=rest[0], args=rest[1:], **asked))


class _WatchCommand(Command):
    """After ``--list`` no script follows, so that options may stand behind the name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = "list_runs" in self.make_parser(ctx).parse_args(list(args))[0]
        return super().parse_args(ctx, args)


@click.command(
    cls=_WatchCommand,
    short_help="Run a script and record it when it becomes slower.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "diagnose watch train.py --epochs 90",
        "diagnose watch --name resnet --slow 10 -m package.train",
        "diagnose watch --list resnet",
    ],
)
@shared.module_option(WATCH)
@_watching("--name", default="", metavar="NAME", help="Name of the run.  [default: the script's]")
@_watching("--every", type=click.IntRange(min=2), default=50, metavar="N", help="Sum up every N steps.")
@shared.step_on_option(WATCH)
@_window(
    "--slow",
    type=click.FloatRange(min=0, min_open=True),
    default=20,
    metavar="PERCENT",
    help="Record a window if steps become PERCENT slower than the run's own first ones.",
)
@_window("--windows", type=click.IntRange(min=0), default=5, metavar="N", help="Record at most N windows.")
@_window(
    "--window-mb",
    "max_mb",
    type=click.FloatRange(min=0, min_open=True),
    default=500,
    metavar="MB",
    help="Keep at most MB megabytes of windows.",
)
@shared.dataflow_option(WINDOWS)
@_metrics(
    "--prometheus",
    default="",
    metavar="[ADDRESS:]PORT",
    help="Serve metrics for Prometheus, on 127.0.0.1 if no address is given.",
)
@_output("--list", "list_runs", is_flag=True, help="Run nothing: list the runs of the NAME that follows.")
@_output("--folder", default="diagnose-runs", metavar="FOLDER", help="Keep runs in FOLDER/NAME.")
@shared.result_options
@click.argument("script", required=False, metavar="SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def watch(
    script: str | None, args: tuple[str, ...], folder: str, list_runs: bool, **asked: Any
) -> int | None:  # what click read, typed by the requests
    """Run SCRIPT to its end, timing every step; if steps become slower, record a window and diagnose it.

    Without a window nothing is profiled. Steps, waits for batches, memory and NVML are summed up every N steps in
    FOLDER/NAME. A file named "record" in the run's folder requests a window. If memory grows, two steps
    show which variable holds what stays. Options go before SCRIPT.
    """
    from diagnose.cli.watch import HistoryRequest, WatchRequest, history_and_answer, watch_and_answer

    where = {name: asked.pop(name) for name in ("as_json", "output", "force")}
    if list_runs:
        if args:
            raise click.UsageError(f"Unexpected argument after --list {script}: {args[0]}.")
        history_and_answer(HistoryRequest(name=script, folder=folder, quiet=asked["quiet"], **where))
        return None
    if script is None:
        raise click.UsageError("Missing argument 'SCRIPT'.")
    if any(where.values()):
        raise click.UsageError("--json, --output and --force go with --list; a run is kept in --folder.")
    return watch_and_answer(WatchRequest(script=script, args=args, folder=folder, **asked))


@click.command(
    cls=Command,
    short_help="Check what a recording on this machine would lack.",
    examples=["diagnose doctor", "diagnose doctor --json"],
)
@shared.result_options
def doctor(**asked: Any) -> int:  # what click read, typed by ResultRequest
    """Check torch, the GPU, its profiler, NVML, Triton, compilers, Linux and container limits.

    For each that is limited it states what a recording would lack, and the fix. The exit code is 1 if no recording
    is possible, else 0.
    """
    from diagnose.cli.doctor import examine_and_answer
    from diagnose.cli.output import ResultRequest

    return examine_and_answer(ResultRequest(**asked))


@click.command(
    cls=Command,
    short_help="List slow forms of Python that a source shows by itself.",
    examples=["diagnose lint train.py", "diagnose lint train.py data.py --json"],
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@shared.result_options
def lint(files: tuple[str, ...], **asked: Any) -> int:
    """List lines of Python files that have a faster form, without running them.

    Only lines that run again and again are looked at: in training loops, in samples of a dataset, in a module's
    forward. None is measured. The exit code is 0 whether there are any or not.
    """
    from diagnose.cli.lint import lint_and_answer
    from diagnose.cli.output import ResultRequest

    return lint_and_answer(files, ResultRequest(**asked))


@click.command(
    cls=Command,
    short_help="Print what a shell needs to complete diagnose.",
    examples=["diagnose completion bash", "diagnose completion zsh"],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell; have the shell source it.

    In bash: eval "$(diagnose completion bash)" in ~/.bashrc; in zsh the same in ~/.zshrc; in fish: diagnose completion
    fish > ~/.config/fish/completions/diagnose.fish.
    """
    from click.shell_completion import get_completion_class

    from diagnose.cli.output import print_result

    found = get_completion_class(shell)
    assert found is not None
    print_result(found(context.find_root().command, {}, "diagnose", "_DIAGNOSE_COMPLETE").source())


@click.command(
    cls=Command,
    short_help="Serve diagnose to a coding agent.",
    examples=["diagnose mcp", "diagnose mcp --root . --root /data/captures"],
)
@option(
    "--root",
    "roots",
    group=SERVER,
    multiple=True,
    metavar="FOLDER",
    help="Read below FOLDER only; repeatable.  [default: the working folder]",
)
@option(
    "--trust-client",
    group=SERVER,
    is_flag=True,
    help="Let trace and prove run scripts without confirmation; only the client decides whether its user must agree.",
)
def mcp(roots: tuple[str, ...], trust_client: bool) -> None:
    """Serve the commands for agents over the Model Context Protocol, on standard input and output.

    An agent's client starts this command. Before trace or prove run a script, the client must get its user's
    consent. A client that cannot is refused, unless --trust-client is given. Needs pip install 'torch-diagnose[mcp]'.
    """
    if find_spec("mcp") is None or find_spec("mcp_types") is None:  # the second one came with version 2
        raise missing_extra("diagnose mcp serves the Model Context Protocol", "mcp")
    from diagnose.cli.mcp import serve

    serve(roots, agreed=trust_client)


for each in (trace, analyze, explain, prove, what_if, compare, gate, watch, lint, doctor, completion, mcp):
    cli.add_command(each)
