"""``diagnose prove``: say what will run, diagnose, run the trials, diagnose what is left, answer."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from diagnose.answering import Request, answer, examine_paths, prepare
from diagnose.errors import CaptureError, UsageError
from diagnose.findings import Diagnosis
from diagnose.output import check
from diagnose.progress import Progress
from diagnose.proof.budget import Budget
from diagnose.proof.candidates import check_ids
from diagnose.proof.outcome import arguments_of, proven, with_proof
from diagnose.proof.recording import record
from diagnose.proof.runs import Command, Runner
from diagnose.reading.documents import read_info

__all__ = ["ProveRequest", "command_of", "parse_budget", "prove_and_answer"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class ProveRequest(Request):
    """What ``diagnose prove`` was asked for."""

    script: str = ""
    args: Sequence[str] = ()
    module: bool = False
    apply: Sequence[str] = ()
    budget: str = "10m"
    cwd_mode: Literal["copy", "same"] = "copy"
    launcher: str = ""
    step_on: str = "auto"
    keep: str | None = None  # folder for the runs' outputs
    yes: bool = False
    write_patch: str | None = None  # where the diff of the script with the changes that helped goes
    patches: dict[str, dict[str, object]] = field(default_factory=dict)


def prove_and_answer(request: ProveRequest) -> int:
    """Prove and print; return the exit code.

    Raises:
        UsageError: the request makes no sense, or nobody was there to agree to it.
        CaptureError: the script could not be traced or measured.
    """
    budget_s = parse_budget(request.budget)
    check_ids(request.apply)
    files = prepare(request)
    if request.write_patch:
        check(Path(request.write_patch), force=request.force)
    command, capture = command_of(request)
    _agree(request, command, budget_s)
    budget = Budget(budget_s)
    with _folder(request.keep) as folder:
        runner = Runner(command, folder.path, cwd_mode=request.cwd_mode, step_on=request.step_on)
        if capture is None:
            capture = folder.path / "capture"
            with budget.recording():
                record(runner, (), capture, budget.left, request.progress)
        diagnosis = examine_paths([capture], request.progress)
        runner.arguments = arguments_of(diagnosis)
        proof = proven(runner, diagnosis, request.apply, budget.for_trials, request.progress.say)
        goes_on = budget.records(proof.best, proof.notes)
        diagnosis = with_proof(diagnosis, proof)
        if goes_on:
            after = _after(runner, proof.best, folder.path / "after", budget.left, request.progress)
            diagnosis = replace(diagnosis, after=after)
        answer(diagnosis, request, files)
        if request.write_patch:
            _write_patch(request, command, diagnosis, proof.best)
        if request.keep:
            request.progress.say(f"the output of every run is in {folder.path}")
    return 0


def parse_budget(text: str, *, name: str = "--budget") -> float:
    """Return seconds from 90, 90s, 10m or 1h; ``name`` is what the option is called.

    Raises:
        UsageError: it is none of these, or not above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"{name} {text} is no time; give 90s, 10m or 1h.")
    return seconds


def command_of(request: ProveRequest) -> tuple[Command, Path | None]:
    """Return what to run, and the capture that tells of it where one was named instead of a script.

    Raises:
        UsageError: there is no such script, or the capture does not know its command.
    """
    launcher = tuple(request.launcher.split())
    path = Path(request.script)
    if request.module:
        return Command(("-m", request.script, *request.args), Path.cwd(), launcher), None
    if not path.exists():
        raise UsageError(f"There is no script or capture {request.script}; check the path.")
    if not path.is_dir() or (path / "__main__.py").is_file():
        return Command((request.script, *request.args), Path.cwd(), launcher), None
    return _of_capture(path, launcher), path


def _of_capture(path: Path, launcher: tuple[str, ...]) -> Command:
    described = sorted(path.glob("capture*.json"))
    if not described:
        raise UsageError(
            f"{path} is no capture of diagnose trace, so the command to run is not known; name the script."
        )
    info = read_info(described[0])
    script, cwd, world = info.command, Path(info.cwd or "."), info.world_size
    if not script or script[0] == "<notebook>" or not cwd.is_dir():
        raise UsageError(f"{path} was not captured from a script that can be run again; name the script.")
    if world > 1 and not launcher:
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}")
    return Command(script, cwd, launcher)


def _agree(request: ProveRequest, command: Command, budget_s: float) -> None:
    """Tell what is about to run, and ask unless told not to.

    Raises:
        UsageError: there is nobody to ask, or the answer is no.
    """
    where = (
        "each time in a copy of the working folder, which is thrown away"
        if request.cwd_mode == "copy"
        else "each time in the working folder itself, where it may write"
    )
    request.progress.say(
        f"this runs {command.text} again and again for up to {_told_time(budget_s)}, {where}; "
        "every run is stopped after some dozens of steps. What it writes to elsewhere is not protected."
    )
    if request.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Nobody can be asked whether to run the script repeatedly; agree to it with --yes.")
    import click

    if not click.confirm("Run it?", default=True, err=True):
        raise UsageError("Nothing was run.")


def _told_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _after(
    runner: Runner, best: tuple[str, ...], capture: Path, budget_s: float, progress: Progress
) -> Diagnosis | None:
    """Return the diagnosis with the best combination applied, None where it could not be traced."""
    try:
        record(runner, best, capture, budget_s, progress)
        return examine_paths([capture], progress)
    except (CaptureError, OSError) as error:
        progress.say(f"it could not be traced with the changes: {error}")
        return None


def _write_patch(request: ProveRequest, command: Command, diagnosis: Diagnosis, best: Sequence[str]) -> None:
    """Write what helped, and what no trial can apply, into a diff of the script; say what is left to its author."""
    from diagnose.proof.patches import BY_HAND
    from diagnose.proof.source_edits import EDITS, write_patch

    say, patch = request.progress.say, str(request.write_patch)
    untried = [p.id for p in diagnosis.prescriptions if p.id in EDITS and p.id in BY_HAND]
    if not best and not untried:
        say(f"no change made the step faster, so {patch} was not written")
        return
    if command.script[0] == "-m":
        raise UsageError("--write-patch changes a script, not a module; name the file instead of -m.")
    script = Path(command.cwd, command.script[0])
    arguments = {**arguments_of(diagnosis), "defer-sync": {"lines": _lines(diagnosis, "host-sync", script)}}
    arguments["autocast"] = {**arguments.get("autocast", {}), "device": "cuda" if diagnosis.queue else "cpu"}
    written = write_patch(script, [*best, *untried], arguments, Path(patch))
    if written.diff:
        say(f"wrote {patch} with {', '.join(written.done)}: git apply {patch}")
    for name in (name for name in untried if name in written.done):
        say(f"{name} was not measured: {BY_HAND[name]}; check what the diff makes of it")
    for name, why in written.left.items():
        say(f"{name} has to be written by hand: {why}")


def _lines(diagnosis: Diagnosis, rule: str, script: Path) -> tuple[int, ...]:
    """Return the lines of the script that the rule's finding names, and those of its examples."""
    found = [f for f in (diagnosis.findings) if f.rule == rule]
    places = [place for f in found for place in (*f.where, *(e.where for e in f.examples))]
    mine = {p.line for p in places if p.line and p.file and script.resolve().match(Path(p.file).as_posix())}
    return tuple(sorted(mine))


class _folder:  # noqa: N801  # a context manager, used like a function
    """A folder for the runs: kept where a name was given, thrown away otherwise."""

    def __init__(self, keep: str | None) -> None:
        self._keep = keep
        self.path = Path()

    def __enter__(self) -> _folder:
        if self._keep is None:
            self.path = Path(tempfile.mkdtemp(prefix="diagnose-prove-"))
            return self
        self.path = Path(self._keep).absolute()
        if self.path.exists() and any(self.path.iterdir()):
            raise UsageError(f"The folder {self._keep} is not empty; give --keep a new name.")
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._keep is None:
            shutil.rmtree(self.path, ignore_errors=True)
