"""One case in this process: the command with both outputs caught, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzzing.cases import Case

__all__ = ["Outcome", "base_reports", "rss_mb", "run_case", "watch_rules"]

FORMAT_LIMIT = 4000  # characters of an origin's message


@dataclass
class Outcome:
    """How a case ended."""

    code: object = None  # the exit code
    stdout: str = ""
    stderr: str = ""
    written: dict[str, bytes] = field(default_factory=dict)  # files that were not there before
    changed: list[str] = field(default_factory=list)  # inputs that are not as they were
    raised: str = ""  # origin of an exception that left the command
    failed_rules: list[str] = field(default_factory=list)  # origins of exceptions in rules
    warned: list[str] = field(default_factory=list)
    seconds: float = 0.0
    rss_mb: float = 0.0  # the most that the process had until then
    held_mb: float = 0.0  # of it, before the case


_failed_rules: list[str] = []


def watch_rules() -> None:
    """Note where exceptions came from that the analysis turned into notes."""
    from diagnose.pipeline import find as module

    note = module.Note

    def watched(text: str, *rest: object) -> object:
        error = sys.exc_info()[1]
        if error is not None and "failed on this trace" in text:
            _failed_rules.append(origin(error))
        return note(text, *rest)

    module.Note = watched


def _root() -> Path:
    """Return the folder of the package under test; reports and analyzers are links out of it."""
    import diagnose

    return Path(diagnose.__file__).resolve().parents[1]


def origin(error: BaseException) -> str:
    """Return file:line:type of the innermost frame of the product, and what was raised."""
    root = _root()
    place = "?"
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename).resolve()
        if file.is_relative_to(root) and not {"fuzzing", ".venv"} & set(file.parts):
            place = f"{file.relative_to(root)}:{frame.lineno}"
    return f"{place}:{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def run_case(case: Case, scratch: Path | None = None) -> Outcome:
    """Write the files, run the command there, and return what came of it."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="mutant-") as name:
        folder = Path(name)
        for file, data in case.files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        before = Path.cwd()
        os.chdir(folder)
        try:
            outcome = _run(case.argv)
        finally:
            os.chdir(before)
        _look_at_files(folder, case, outcome)
        return outcome


def _look_at_files(folder: Path, case: Case, outcome: Outcome) -> None:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    for name, path in found.items():
        if name not in case.files:
            outcome.written[name] = path.read_bytes()
        elif path.read_bytes() != case.files[name] and "--update" not in case.argv:
            outcome.changed.append(name)
    outcome.changed += [name for name in case.files if str(Path(name)) not in found]


def _run(argv: tuple[str, ...]) -> Outcome:
    from diagnose.cli import main as cli

    outcome = Outcome()
    _failed_rules.clear()
    outcome.held_mb = rss_mb()
    started = time.process_time()  # of this process: other processes of the machine do not count
    with _outputs() as (out, err), _caught(outcome):
        try:
            outcome.code = cli.run(list(argv))
        except SystemExit as leaving:
            outcome.code = leaving.code
        except BaseException as error:  # exactly this must not happen
            outcome.raised = origin(error)
        outcome.seconds = time.process_time() - started
        sys.stdout.flush()
        sys.stderr.flush()
    outcome.stdout, outcome.stderr = (raw.getvalue().decode("utf-8", "surrogateescape") for raw in (out, err))
    outcome.failed_rules = list(dict.fromkeys(_failed_rules))
    outcome.rss_mb = rss_mb()
    if outcome.code == cli.INTERNAL_ERROR and not outcome.raised:
        outcome.raised = _where_it_failed(argv)
    return outcome


def _where_it_failed(argv: tuple[str, ...]) -> str:
    """Run the command again without its own handler, to see where the exception comes from."""
    from diagnose.cli import main as cli

    shutil.rmtree("again", ignore_errors=True)
    for name in ("r.html", "r.json", "r.txt"):
        Path(name).unlink(missing_ok=True)
    with _outputs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cli.cli.main(args=list(argv), prog_name="diagnose", standalone_mode=False)
        except BaseException as error:  # shown, whatever it is
            return origin(error)
    return "?: did not fail the second time"


@contextlib.contextmanager
def _outputs() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Catch both outputs, strict as a UTF-8 terminal is."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = (
        io.TextIOWrapper(out, encoding="utf-8", errors="strict"),
        io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace"),
    )
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        yield out, err
    for stream in streams:
        with contextlib.suppress(ValueError):
            stream.detach()


@contextlib.contextmanager
def _caught(outcome: Outcome) -> Iterator[None]:
    """Note every warning that Python shows by default."""
    root = _root()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", hidden)
        yield
    for warning in caught:
        file = Path(warning.filename)
        shown = file.resolve().relative_to(root) if file.resolve().is_relative_to(root) else file.name
        outcome.warned.append(f"{shown}:{warning.lineno}:{warning.category.__name__}: {str(warning.message)[:120]}")
    outcome.warned = list(dict.fromkeys(outcome.warned))


def rss_mb() -> float:
    """Return the largest memory that this process has had since it began; ``ru_maxrss`` begins with its parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peak = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


def base_reports(scratch: Path | None = None) -> list[str]:
    """Return reports in JSON of some small traces and captures, by the product itself."""
    import random

    from fuzzing import folders, made, values
    from fuzzing.cases import _file

    texts = []
    for flavour in ("gpu", "stalled", "cpu", "rank", "attribution"):
        rng = random.Random(flavour)  # reproducible is the point
        data = values.dump(made.trace(flavour, rng)).encode()
        texts.append(run_case(Case(("analyze", "t.json", "--json", "--quiet"), {"t.json": data}), scratch).stdout)
    for ranks in (1, 2):
        documents = folders.capture(random.Random(ranks), ranks=ranks)  # the same
        files = {f"c/{name}": _file(name, document) for name, document in documents.items()}
        texts.append(run_case(Case(("analyze", "c", "--json", "--quiet"), files), scratch).stdout)
    return [text for text in texts if text]
