"""``diagnose prove``: announce what will run, diagnose, run the trials, diagnose what is left, answer."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT
from typing import Literal

from diagnose.answer.screen import answer as screen
from diagnose.capture.process.script import check_utf8
from diagnose.changes.edits.source_edits import OWN_EDIT, Edits, diffs_of, edited_files, with_diffs, write_patch
from diagnose.cli.output import Request, analyze_with_progress, answer, prepare
from diagnose.errors import BudgetEndedError, CaptureError, OriginalsChangedError, UsageError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.files import Reservation, cannot_write, check_distinct, check_file, printable
from diagnose.text.commands import command_line
from diagnose.text.plain_text import one_line
from diagnose.text.progress import Progress
from diagnose.trials.candidates import arguments_for_edits, arguments_of, check_ids
from diagnose.trials.copying import plan_copy
from diagnose.trials.launch import EndedBySignal, ended_by_signals, remove_leftovers, run_folder
from diagnose.trials.limits import Limits, limits_of
from diagnose.trials.prove import (
    OWN_RANKS,
    Budget,
    parse_budget,
    proven,
    starts_own_ranks,
    with_trials,
)
from diagnose.trials.runs import Command, Runner, in_the_copy, record, recorded_command
from diagnose.trials.trials import NOTHING_TRIED, ProveResult


@dataclass(frozen=True, slots=True)
class ProveRequest(Request):
    """What ``diagnose prove`` was asked for."""

    script: str = ""
    args: Sequence[str] = ()
    module: bool = False
    apply: Sequence[str] = ()
    against: str | None = None  # the script as its author has edited it: what is tried, besides what `apply` asks for
    budget: str = "10m"
    cwd_mode: Literal["copy", "same"] = "copy"
    launcher: str = ""
    step_on: str = "auto"
    keep_runs: str | None = None  # folder for the runs' outputs
    writable: Sequence[str] = ()  # what runs may write to besides their own folders
    network: bool = False  # whether runs reach more than this machine's loopback
    yes: bool = False
    trust_command: bool = False  # a command that a capture has recorded may run
    write_patch: str | None = None  # where the diff of the script with the changes that helped goes


def prove_and_answer(request: ProveRequest) -> int:
    """Prove and print; return the exit code, for a run that a signal ended 128 and its number.

    Ctrl-C while changes are tried prints what is known so far.

    Raises:
        UsageError: the request makes no sense, or nobody was there to agree to it.
        CaptureError: the script could not be traced or measured; where only its ranks could not, its diagnosis has
            been printed.
        OriginalsChangedError: the user's files changed while it ran; what was measured until then has been printed.
        BudgetEndedError: there was no time to try a change; the diagnosis has been printed.
    """
    try:
        with ended_by_signals():
            return _prove_and_answer(request)
    except EndedBySignal as ended:
        return ended.exit_code


def _prove_and_answer(request: ProveRequest) -> int:
    budget_s = parse_budget(request.budget)
    check_ids(request.apply)
    files = prepare(request)
    _check_patch(request)
    command, capture = command_of(request)
    own = _own_edit(request, command)
    first = command.script[0]
    check_utf8(command.cwd if first == "-m" else Path(command.cwd, first).resolve())
    _check_launcher(command)
    if remove_leftovers():
        request.progress.report("removed the temporary files of an earlier prove that was killed")
    with _kept(request.keep_runs) as keep, run_folder() as private:
        plan = plan_copy(command.cwd, without=[keep] if keep else []) if request.cwd_mode == "copy" else None
        folder = keep or private
        runner = Runner(
            command,
            folder,
            cwd_mode=request.cwd_mode,
            step_on=request.step_on,
            private=private,
            plan=plan,
            report=request.progress.report,
            edits=command.file.is_file(),
            own=own,
            limits=_limits(request, private, folder),
        )
        _agree(request, runner, capture, budget_s)
        try:
            diagnosis, result = _proven(request, runner, capture, Budget(budget_s))
        finally:
            runner.close()
        try:
            answer(diagnosis, request, files)
        finally:  # a report that cannot be written costs no patch
            if request.write_patch:
                _write_patch(request, runner, diagnosis, result.best)
        if keep:
            request.progress.report(f"the output of every run is in {one_line(str(keep))}")
    if result.interrupted:
        return 128 + SIGINT
    if runner.changed:
        raise OriginalsChangedError(runner.changed)
    if starts_own_ranks(diagnosis, command.launcher):
        raise CaptureError(OWN_RANKS)
    if result.nothing_tried:
        raise BudgetEndedError(NOTHING_TRIED)
    return 0


def _own_edit(request: ProveRequest, command: Command) -> Path | None:
    """Return the file of --against.

    Raises:
        UsageError: there is none, or no script that it is an edit of.
    """
    if request.against is None:
        return None
    own = Path(request.against).absolute()
    if not own.is_file():
        raise UsageError(f"Invalid --against: the file {printable(request.against)} does not exist; check the path.")
    if not command.file.is_file():
        raise UsageError("--against needs the file of the script that was edited, and this module has none here.")
    return own


def _limits(request: ProveRequest, private: Path, results: Path) -> Limits:
    """Return what the runs may do: what is printed before consent and enforced then.

    Raises:
        UsageError: a place that runs are to write to does not exist.
    """
    places = [Path(place).absolute() for place in request.writable]
    for place in places:
        if not place.exists():
            raise UsageError(f"Invalid --writable: {printable(place)} does not exist; create it first.")
    return limits_of(private, results, places, restricted=request.cwd_mode == "copy", network=request.network)


def _check_patch(request: ProveRequest) -> None:
    if request.write_patch:
        options = {"--html": request.html, "--output": request.output, "--write-patch": request.write_patch}
        check_distinct(options, [request.script])
        check_file(Path(request.write_patch), force=request.force)


def _proven(
    request: ProveRequest, runner: Runner, capture: Path | None, budget: Budget
) -> tuple[Diagnosis, ProveResult]:
    """Return the diagnosis with its trials, and what the runs showed."""
    with budget.recording() if capture is None else nullcontext():
        recorded = runner.folder / "capture" if capture is None else capture
        if capture is None:
            record(runner, (), recorded, budget.left, request.progress)
        with budget.analysis():
            diagnosis = request.chosen(analyze_with_progress([recorded], request.progress))  # whose changes are tried
    if starts_own_ranks(diagnosis, runner.command.launcher):
        return diagnosis, ProveResult()
    script, folder = runner.command.file, runner.command.cwd
    diagnosis = with_diffs(diagnosis, None, folder)  # that of a capture may be another one than this
    runner.arguments = (
        arguments_for_edits(diagnosis, script, request.apply) if runner.edits else arguments_of(diagnosis)
    )
    runner.diffs = diffs_of(diagnosis)
    asked = (*request.apply, *([OWN_EDIT] if runner.own is not None else []))
    try:
        result = proven(runner, diagnosis, asked, budget, request.progress.report)
    except CaptureError as error:
        raise CaptureError(f"{error}{in_the_copy(runner)}") from error
    goes_on = not runner.changed and not result.interrupted and budget.records(result.best, result.notes)
    diagnosis = with_trials(diagnosis, result, asked, edits=runner.edits)
    if goes_on:
        try:
            after = _after(runner, result.best, runner.folder / "after", budget.for_recording, request.progress)
            diagnosis = replace(diagnosis, after=after)
        except KeyboardInterrupt:
            result.interrupted = True
    return diagnosis, result


def command_of(request: ProveRequest) -> tuple[Command, Path | None]:
    """Return what to run, and the capture that describes it where one was named instead of a script.

    Raises:
        UsageError: there is no such script, or the capture does not know its command.
    """
    launcher = _words(request.launcher)
    path = Path(request.script)
    if request.module:
        return Command(("-m", request.script, *request.args), Path.cwd(), launcher), None
    if not path.exists():
        raise UsageError(f"The script or capture {printable(request.script)} does not exist; check the path.")
    if not path.is_dir() or (path / "__main__.py").is_file():
        return Command((request.script, *request.args), Path.cwd(), launcher), None
    return recorded_command(path, launcher), path


def _words(launcher: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(launcher))
    except ValueError as error:
        raise UsageError(f"Invalid --launcher '{launcher}': {error}; check its quotes.") from error


def _check_launcher(command: Command) -> None:
    if command.launcher and shutil.which(command.launcher[0]) is None:
        raise UsageError(
            f"Invalid --launcher: the command {one_line(command.launcher[0])} was not found; check its name and PATH."
        )


@contextmanager
def _kept(keep: str | None) -> Iterator[Path | None]:
    """Give the folder for the runs' outputs, which must be new and is this run's alone, where one was asked for."""
    if keep is None:
        yield None
        return
    path = Path(keep).absolute()
    try:
        reservation = Reservation(path)
        is_empty = not any(path.iterdir())
    except BlockingIOError as error:
        raise UsageError(
            f"The folder {printable(keep)} is in use by another run; choose another --keep-runs."
        ) from error
    except (OSError, ValueError) as error:
        raise cannot_write(keep, error) from error
    try:
        if not is_empty:
            raise UsageError(f"The folder {printable(keep)} is not empty; choose another --keep-runs.")
        yield path
    finally:
        reservation.release()


def _agree(request: ProveRequest, runner: Runner, capture: Path | None, budget_s: float) -> None:
    """Show what is about to run, and ask unless that was agreed to already.

    Raises:
        UsageError: there is nobody to ask, or the answer is no.
    """
    report, command, plan = request.progress.report, runner.command, runner.plan
    where = (
        f"in copies of the working folder ({plan.size_text} each), restored before each run and removed at the end"
        if plan is not None
        else "each time in the working folder itself"
    )
    is_of_minutes = budget_s >= 120 and budget_s % 60 == 0
    duration_text = f"{budget_s / 60:g} min" if is_of_minutes else f"{budget_s:g} s"
    report(
        f"this runs {command.text} repeatedly for up to {duration_text}, {where}; "
        f"each run is stopped once it has trained for long enough. {runner.enforced.text}"
    )
    if plan is None:
        report(
            "with --cwd-mode same each run may overwrite, append to and remove files of the working folder "
            f"{one_line(str(command.cwd))}, checkpoints and logs included; nothing is checked or restored"
        )
    if capture is not None:
        report(
            f"the command was recorded in {one_line(str(capture))}, with the working folder "
            f"{one_line(str(command.cwd))}"
        )
    if request.yes and (capture is None or request.trust_command):
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(_why_asked(command, capture))
    import click

    shown = f"Run {command.text}?" if capture is not None else "Run it?"
    try:
        is_agreed = click.confirm(shown, default=capture is None, err=True)
    except click.Abort:  # the input has ended, or Ctrl-C
        click.echo(err=True)
        is_agreed = False
    if not is_agreed:
        agrees = "--yes" if capture is None else "--yes --trust-command"
        raise UsageError(f"Not confirmed: nothing was run. Answer y, or pass {agrees} to run without the question.")


def _why_asked(command: Command, capture: Path | None) -> str:
    if capture is None:
        return "Nothing was run: without a terminal, pass --yes to agree to these runs."
    return (
        f"The command comes from the capture {one_line(str(capture))}, which --yes does not cover; check it, and pass "
        f"--trust-command to run it: {command.text}"
    )


def _after(
    runner: Runner, best: tuple[str, ...], capture: Path, budget_s: float, progress: Progress
) -> Diagnosis | None:
    """Return the diagnosis with the best combination applied, None where it could not be traced."""
    try:
        record(runner, best, capture, budget_s, progress)
        return analyze_with_progress([capture], progress)
    except (CaptureError, OSError) as error:
        progress.report(f"the step with the changes could not be traced: {error}")
        return None


def _write_patch(request: ProveRequest, runner: Runner, diagnosis: Diagnosis, best: Sequence[str]) -> None:
    """Write what helped, and what no trial can apply, into a diff of the script; name what is left to its author."""
    from diagnose.changes import CHANGES

    report, patch, command = request.progress.report, str(request.write_patch), runner.command
    tried = {name for trial in diagnosis.trials if not trial.failure for name in (trial.ids or (trial.id,))}
    changes = [CHANGES[p.id] for p in diagnosis.prescriptions if p.id in CHANGES]
    writable = [change.id for change in changes if change.patch is None and change.edit is not None]
    untried = [name for name in writable if name not in tried]
    wanted = [name for name in (*best, *untried) if name != OWN_EDIT]
    if not wanted:
        report(f"no change made the step faster, so {patch} was not written")
        return
    arguments = arguments_for_edits(diagnosis, command.file, wanted)
    edits = Edits(command.file, command.cwd, runner.diffs, arguments=arguments)
    made = write_patch(edits, wanted, Path(patch), force=request.force)
    _, as_run = edited_files(edits, [name for name in wanted if name not in untried])
    if made.diff:
        apply = command_line(["git", "apply", patch])
        titles = {t.id: t.title for t in diagnosis.trials} | {p.id: p.title for p in diagnosis.prescriptions}
        cards = [card.prescription.id for card in screen(diagnosis).cards]
        report(f"wrote {patch}; apply it with {apply}")
        for name in made.done:
            which = f"change {cards.index(name) + 1}" if name in cards else name
            report(f"{patch} makes {which}: {titles.get(name, name)}")
        for name in (name for name in cards[:1] if name not in made.done):
            report(f"{patch} does not make change 1: {titles[name]}")
    for name in (name for name in made.done if name in untried or name not in as_run):
        how = "was not measured" if name in untried else "was measured by a patch while the script ran"
        report(f"{name} {how}; review its part of the diff")
    for name, why in made.left.items():
        report(f"{name} must be applied by hand: {why}")
