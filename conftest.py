"""What holds for every test: which run, in which order, and that every JSON that one makes keeps the contract.

Tests marked ``full`` or ``timing`` run only where ``-m`` names their mark, or where a test is asked for by its name;
``--pick N`` runs N of the tests that are left, drawn with ``--pick-seed`` from as many files as can be;
``--full-pick N`` adds N of those marked ``full`` to the others, ``--full-of FOLDER`` those of a folder.

In several processes at once (``--dist loadfile``) what takes longest comes first, and files that share what takes
seconds to make are run by one process (tests/scheduling.py); those that are marked ``timing`` run alone: they hold a
lock by themselves that all others share.
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from diagnose.model.capture import Capture, RunSteps
from diagnose.model.diagnosis import Diagnosis
from diagnose.pipeline.find import build_tables
from diagnose.pipeline.rank import analyze_rank
from diagnose.reports import json as json_report
from diagnose.trace_reader import read_trace
from tests.scheduling import sorted_units, unit_of

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in every process that a test starts

TESTS = Path(__file__).parent / "tests"
NOT_EVERYDAY = ("full", "timing")
CPU_BEFORE = pytest.StashKey[float]()
TRACES = Path(__file__).parents[1] / "shared" / "traces"
SECOND_TRACES = TRACES.with_name("traces_second")
MAX_EVERYDAY_BYTES = 200_000  # of a recorded trace: the larger ones take most of the time
Value = TypeVar("Value")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that draw a part of the tests."""
    parser.addoption("--pick", type=int, metavar="N", help="run N of the selected tests, drawn at random")
    parser.addoption("--pick-seed", default="0", metavar="TEXT", help="what a draw depends on (default: 0)")
    parser.addoption("--full-pick", type=int, default=0, metavar="N", help="add N tests marked full, drawn at random")
    parser.addoption("--full-of", action="append", default=[], metavar="FOLDER", help="add those of a folder")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not of every day, then all but the tests that are drawn; put what takes longest first."""
    kept = _everyday(config, items)
    num: int | None = config.getoption("--pick")
    if num is not None:
        kept = _drawn(config, kept, num)
    if len(kept) < len(items):
        ids = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in ids])
        items[:] = kept
    if hasattr(config, "workerinput"):  # one of several processes
        _put_longest_first(items)


def _everyday(config: pytest.Config, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests without those marked ``full`` or ``timing``, unless they are asked for."""
    asked: str = config.getoption("markexpr")
    if any("::" in argument for argument in config.args):
        return list(items)
    marks = [mark for mark in NOT_EVERYDAY if mark not in asked]
    kept = [item for item in items if not _has_mark(item, *marks)]
    others = [item for item in items if _has_mark(item, "full") and not _has_mark(item, "timing")]
    folders = tuple(f"{folder}/" for folder in config.getoption("--full-of"))
    of_folders = [item for item in others if _place(item).startswith(folders)] if folders else []
    ids = {id(item) for item in (*kept, *of_folders)}
    drawn = _drawn(config, [item for item in others if id(item) not in ids], config.getoption("--full-pick"))
    ids |= {id(item) for item in drawn}
    return [item for item in items if id(item) in ids]


def _drawn(config: pytest.Config, items: Sequence[pytest.Item], num: int) -> list[pytest.Item]:
    if num >= len(items):
        return list(items)
    return [items[i] for i in drawn_places([_place(item) for item in items], num, config.getoption("--pick-seed"))]


def _put_longest_first(items: list[pytest.Item]) -> None:
    """Sort by unit; units with a test that is not of every day come first, as those may take minutes."""
    units = [unit_of(_place(item)) for item in items]
    not_everyday = {unit for unit, item in zip(units, items, strict=True) if _has_mark(item, *NOT_EVERYDAY)}
    order = {unit: i for i, unit in enumerate(sorted_units(dict.fromkeys(units), not_everyday.__contains__))}
    items[:] = [item for _, item in sorted(zip(units, items, strict=True), key=lambda pair: order[pair[0]])]


def _has_mark(item: pytest.Item, *names: str) -> bool:
    return any(item.get_closest_marker(name) is not None for name in names)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out units of files where ``--dist loadfile`` would hand out files."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(super()._split_scope(nodeid).removeprefix("tests/"))

    return Units(config, log)


def drawn_places(files: Sequence[str], num: int, seed: str) -> list[int]:
    """Return the places of ``num`` tests, given the file of each: from as many files as can be.

    One large matrix, whose cases are alike, would otherwise be nearly all that is drawn.
    """
    order = random.Random(seed).sample(range(len(files)), len(files))
    seen: dict[str, int] = defaultdict(int)
    rounds = []
    for place in order:
        rounds.append((seen[files[place]], place))
        seen[files[place]] += 1
    rounds.sort(key=lambda pair: pair[0])
    return sorted(place for _, place in rounds[:num])


def _place(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""


def pytest_collection_finish() -> None:
    """Set aside what modules are made of: collections within tests, hundreds of them, would walk all of torch."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let the test, with the fixtures that it sets up, wait for its turn."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        item.stash[CPU_BEFORE] = _cpu_s()
        return (yield)
    with _turn(run, alone=item.get_closest_marker("timing") is not None):
        item.stash[CPU_BEFORE] = _cpu_s()
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Give the report the CPU time of the test and of processes it waited for; see scripts/test_durations."""
    if call.when == "teardown":
        item.user_properties.append(("cpu_s", round(_cpu_s() - item.stash[CPU_BEFORE], 3)))
    return (yield)


def _cpu_s() -> float:
    return sum(os.times()[:4])


@contextmanager
def _turn(run: str, *, alone: bool) -> Iterator[None]:
    import fcntl

    door, room = (Path(tempfile.gettempdir(), f"diagnose-tests-{run}-{name}") for name in ("door", "room"))
    with room.open("w") as inside:
        with door.open("w") as entering:  # who waits to be alone holds the door, so that nobody overtakes it
            fcntl.flock(entering, fcntl.LOCK_EX)
            fcntl.flock(inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(entering, fcntl.LOCK_UN)
        try:
            yield
        finally:  # closing would not do: processes that the test has forked, and left behind, hold the file open too
            fcntl.flock(inside, fcntl.LOCK_UN)


@cache
def _schema() -> Any:  # the package jsonschema may be missing
    """Return the compiled schema of the JSON, None where the package jsonschema is missing."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        return None
    return Draft202012Validator(json_report.schema())


def assert_keeps_contract(answer: dict[str, Any]) -> None:
    """Check a JSON diagnosis against the schema, and what a schema cannot state of its numbers."""
    if (schema := _schema()) is not None:
        schema.validate(answer)
    step_ms = answer["step_ms"] or 0.0
    for prescription in answer["prescriptions"]:
        least, most = (saved or 0.0 for saved in prescription["saves_ms"])
        assert least <= most <= max(step_ms, prescription["mean_step_ms"] or 0.0) + 1e-6, prescription
    for forecast in (answer["waterfall"] or {}).get("forecasts", ()):
        low, high = forecast["range_ms"]
        assert low <= forecast["step_ms"] <= high, forecast
    if answer["critical_path"]:
        assert math.isclose(sum(answer["critical_path"].values()), 1, abs_tol=1e-6)


def checked(make: Callable[[Diagnosis], str]) -> Callable[[Diagnosis], str]:
    """Return a renderer of JSON whose texts are checked before anyone gets them."""

    @wraps(make)
    def render(d: Diagnosis) -> str:
        text = make(d)
        assert_keeps_contract(json.loads(text, parse_constant=pytest.fail))
        return text

    return render


json_report.render = checked(json_report.render)  # before any test imports it


class OnDemand(Mapping[str, Value]):
    """Makes the value of a name the first time that it is asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Value]) -> None:
        self.names, self.make, self.made = tuple(names), make, dict[str, Value]()

    def __getitem__(self, name: str) -> Value:
        if name not in self.made:
            self.made[name] = self.make(name)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Corpus:
    """The recorded traces beside the repository, each read and analyzed once, and only where a test wants it."""

    def __init__(self) -> None:
        self.first, self.second = _traces(TRACES), _traces(SECOND_TRACES)
        self.files = self.first | self.second
        self.captures = OnDemand(self.files, lambda name: Capture(read_trace(self.files[name])))
        self.tables = OnDemand(self.files, lambda name: build_tables(self.captures[name], self.captures[name].trace))
        self.diagnoses = OnDemand(self.files, lambda name: analyze_rank(self.captures[name]))

    def of(self, extent: str, *, second: bool = False) -> list[str]:
        """Return the names of all traces, or of those that are small enough for every day.

        Args:
            extent: "all" or "small".
            second: with those of the second folder, which most tests leave out.
        """
        files = self.files if second else self.first
        return [name for name, path in files.items() if extent == "all" or path.stat().st_size < MAX_EVERYDAY_BYTES]


def _traces(folder: Path) -> dict[str, Path]:
    files = [path for path in sorted(folder.glob("*.json.gz")) if "not_kineto" not in path.name]
    return {path.name.removesuffix(".json.gz"): path for path in files}


@pytest.fixture(params=["small", pytest.param("all", marks=pytest.mark.full)])
def extent(request: pytest.FixtureRequest) -> str:
    """Run a test over the small recorded traces, and under ``full`` over all."""
    return str(request.param)


@pytest.fixture(scope="session")
def recorded() -> Corpus:
    """Return the corpus; skip where it is absent."""
    if not TRACES.is_dir():
        pytest.skip("the recorded traces (../shared/traces) are not here")
    return Corpus()


@pytest.fixture
def run_steps() -> Callable[..., RunSteps]:
    """Give what makes the steps of a run."""
    return make_run_steps


def make_run_steps(
    took: Sequence[float],
    *,
    state: Sequence[int] = (),
    sampled: Sequence[tuple[float, Sequence[tuple[str, int, str]]]] = (),
    **phases: Sequence[float],
) -> RunSteps:
    """Return steps of a run, one after the other from 0; times and phases are ms.

    ``state`` is 0 where nothing was recorded, 1 in a timing window; ``sampled`` are times and the lines then.
    """
    paths = list(dict.fromkeys(tuple(path) for _, path in sampled))
    return RunSteps(
        began_ns=np.concatenate([[0], np.cumsum(_ns(took))[:-1]]),
        took_ns=_ns(took),
        state=np.array(state or [0] * len(took), np.int8),
        phases={
            name: np.array(values, np.int64) if name in ("backwards", "work") else _ns(values)
            for name, values in phases.items()
        },
        paths=tuple(paths),
        sampled_ns=_ns([time for time, _ in sampled]),
        path=np.array([paths.index(tuple(path)) for _, path in sampled], np.int32),
    )


def _ns(values: Sequence[float]) -> npt.NDArray[np.int64]:
    return np.round(np.array(values, np.float64) * 1e6).astype(np.int64)
