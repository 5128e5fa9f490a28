"""What torch.compile is given, and what it keeps of the run: broken graphs, what it compiled when, which guards failed.

Dynamo keeps all of it by itself, so nothing is hooked, and nothing is imported for a script that compiles nothing. Of
compilations it keeps the last 64, so these are read at each step.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from msgspec import structs

from diagnose.capture.record.constructions import Constructions
from diagnose.capture.record.sampler import users_frames
from diagnose.model.locations import is_user_file
from diagnose.model.records import BreakRecord, CompilationRecord, CompileCallRecord, CompiledRecord, VersionsRecord
from diagnose.text.masking import mask_text

_GUARD = re.compile(r"^\d+/(?P<version>\d+): (?P<guard>.*?)(\s+# .*)?$")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")
_HINT = re.compile(r"^\s*Hint: (?P<hint>.+)$", re.MULTILINE)
_FRAME = re.compile(r"^Line: (?P<line>\d+), Name: .*, Filename: (?P<file>.+)$")
_GUARDED = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)
_STAGES = {  # each is called by the one before, and the first of them by Dynamo
    "AOTAutograd": "aot_autograd_cumulative_compile_time_us",
    "Inductor": "inductor_cumulative_compile_time_us",
    "Triton": "triton_compile_time_us",
}
_NAMES = ("Dynamo", *_STAGES)


class CompilationLog:
    """Keeps what was compiled when; ``look`` is called at each step."""

    def __init__(self) -> None:
        self.compilations: list[CompilationRecord] = []
        self.skipped: list[BreakRecord] = []
        self.stages_us: Counter[str] = Counter()  # of first compilations
        self._last: Any = None
        self._num: Counter[tuple[str, int, str]] = Counter()
        self._by_id: dict[str, CompilationRecord] = {}

    def has(self, file: str, line: int) -> bool:
        """Return whether the function that begins there was compiled, or that was tried."""
        return any(code[:2] == (file, line) for code in self._num)

    def look(self) -> None:
        """Take down what has been compiled since the last call."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        metrics = utils.get_compilation_metrics() if hasattr(utils, "get_compilation_metrics") else []
        if not metrics or metrics[-1] is self._last:
            return
        known = next((i for i, each in enumerate(metrics) if each is self._last), -1)
        self._last = metrics[-1]
        for each in metrics[known + 1 :]:
            if len(self.compilations) < 2_000 and getattr(each, "start_time_us", None):  # kept of a run
                self._add(each)

    def _add(self, metrics: Any) -> None:
        """Take down one compilation; that of a backward pass has the number of its function's."""
        of = self._by_id.get(metrics.compile_id)
        began_ns, took_ns = int(1000 * metrics.start_time_us), int(1000 * (metrics.duration_us or 0))
        if metrics.co_filename is None:
            of = of or CompilationRecord(began_ns=began_ns, took_ns=took_ns)
            if not of.version:
                self.stages_us.update(_stages_us(metrics))
            self.compilations.append(structs.replace(of, began_ns=began_ns, took_ns=took_ns))
            return
        code = metrics.co_filename, metrics.co_firstlineno or 0, metrics.co_name or ""
        reason = str(getattr(metrics, "recompile_reason", None) or "")
        failed = _GUARD.match(reason.partition("\n")[0])
        file, line = _place(metrics) or code[:2]
        record = CompilationRecord(
            began_ns=began_ns,
            took_ns=took_ns,
            id=str(metrics.compile_id or ""),
            file=file,
            line=line,
            function=_function(code[2]),
            version=self._num[code],
            guard=_cut(failed["guard"].strip()) if failed else "",
            at=next(
                ((m["file"], int(m["line"])) for m in _GUARDED.finditer(reason) if is_user_file(m["file"])),
                None,
            ),
        )
        if not record.version:
            self.stages_us.update(_stages_us(metrics))
        self._num[code] += 1
        self._by_id[metrics.compile_id] = record
        self.compilations.append(record)
        broken_in = metrics.fail_user_frame_filename
        if metrics.fail_type and not metrics.has_guarded_code and broken_in and is_user_file(broken_in):
            self.skipped.append(_skipped(metrics))


def compiled_record(log: CompilationLog | None = None, calls: Sequence[CompileCallRecord] = ()) -> CompiledRecord:
    """Return what has been noted so far; nothing of a release that keeps it elsewhere, which is no reason to fail."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    log = log or CompilationLog()
    try:
        log.look()
        return CompiledRecord() if utils is None else _record(utils, log, calls)
    except AttributeError:
        return CompiledRecord()


def _record(utils: Any, log: CompilationLog, calls: Sequence[CompileCallRecord]) -> CompiledRecord:
    versions = [_versions(code, failures) for code, failures in utils.guard_failures.items()]
    spent_ns: Mapping[str, float] = utils.cumulative_time_spent_ns
    took = sum(spent_ns.get(f"entire_{part}_compile", 0.0) for part in ("frame", "backward"))
    return CompiledRecord(
        breaks=tuple(dict.fromkeys([*log.skipped, *filter(None, map(_break, utils.graph_break_reasons))])),
        versions=tuple(sorted(filter(None, versions), key=lambda one: -one.num)),
        compilations=tuple(log.compilations),
        calls=tuple(
            structs.replace(each, is_idle=_shows_all(utils) and not log.has(*each.functions[0][1:3])) for each in calls
        ),
        stages={name: round(log.stages_us[name] / 1e6, 3) for name in _NAMES if log.stages_us[name]},
        took_s=round(took / 1e9, 3),
        backend_s=round(spent_ns.get("backend_compile", 0.0) / 1e9, 3),
    )


def _shows_all(utils: Any) -> bool:
    """Return whether each compilation is noted, and none is switched off."""
    config: Any = sys.modules["torch._dynamo.config"]
    return hasattr(utils.CompilationMetrics, "start_time_us") and not config.disable


def compiled_places(compiled: CompiledRecord) -> list[tuple[str, int]]:
    """Return the files and lines that are named."""
    broken = [(each.file, each.line) for each in compiled.breaks]
    again = [each for each in compiled.compilations if each.version]
    places = [each.at or (each.file, each.line) for each in again]
    calls = [(each.file, each.line) for each in compiled.calls]
    return list(dict.fromkeys([*broken, *((each.file, each.line) for each in compiled.versions), *places, *calls]))


def _break(noted: Any) -> BreakRecord | None:
    """Return the innermost place of the user's at which a graph was broken."""
    frame = next((each for each in reversed(noted.user_stack) if is_user_file(each.filename)), None)
    if frame is None:
        return None
    text = str(noted.reason)
    hint = _HINT.search(text)
    return BreakRecord(
        file=frame.filename,
        line=frame.lineno or 0,
        function=_function(frame.name),
        reason=_cut(text.partition("\n")[0]),
        hint=_cut(hint["hint"]) if hint else "",
    )


def _stages_us(metrics: Any) -> dict[str, int]:
    """Return what each stage of a compilation took itself; torch counts what one calls as its own too.

    A backward pass is compiled later, without Dynamo.
    """
    whole = int(metrics.duration_us or 0)
    times = [whole, *(min(int(getattr(metrics, name, 0) or 0), whole) for name in _STAGES.values())]
    if metrics.co_filename is None:
        times[1] = whole
    return {name: max(mine - inner, 0) for name, mine, inner in zip(_NAMES, times, [*times[1:], 0], strict=True)}


def _place(metrics: Any) -> tuple[str, int] | None:
    """Return where a function of torch's own, such as an optimizer's step, is called in the user's code."""
    if is_user_file(metrics.co_filename):
        return metrics.co_filename, metrics.co_firstlineno or 0
    frames = (m for m in map(_FRAME.match, metrics.stack_trace or ()) if m and is_user_file(m["file"]))
    return next(((m["file"], int(m["line"])) for m in reversed(list(frames))), None)


def _skipped(metrics: Any) -> BreakRecord:
    reason = str(metrics.fail_reason)
    hint = _HINT.search(reason)
    return BreakRecord(
        file=metrics.fail_user_frame_filename,
        line=metrics.fail_user_frame_lineno or 0,
        function=_function(metrics.co_name or ""),
        reason=_cut(reason.strip().partition("\n")[0]),
        hint=_cut(hint["hint"]) if hint else "",
        skips=True,
    )


def _versions(code: Any, failures: Iterable[object]) -> VersionsRecord | None:
    """Return how often a function was compiled; ``failures`` name each version that did not fit a call."""
    found = [match for text in failures if (match := _GUARD.match(str(text).partition("\n")[0]))]
    if not found or not is_user_file(code.co_filename):
        return None
    num = 2 + max(int(match["version"]) for match in found)
    config: Any = sys.modules["torch._dynamo.config"]
    limit = config.recompile_limit if hasattr(config, "recompile_limit") else config.cache_size_limit
    guards = dict.fromkeys(_cut(match["guard"].strip()) for match in reversed(found))
    return VersionsRecord(
        file=code.co_filename,
        line=code.co_firstlineno,
        function=_function(code.co_name),
        num=min(num, limit),
        guards=tuple(guards)[:3],
        gave_up=num > limit,
    )


def _function(name: str) -> str:
    """Return the name of a function, also of the rest of it that a graph break left."""
    resumed = _RESUMED.match(name)
    return resumed["function"] if resumed else name


def _cut(text: str) -> str:
    # A guard may hold any content of the script's.
    return mask_text(text)[:200]


MAX_CALLS = 100  # of torch.compile: of a list of layers each may have one

_Function = tuple[str, str, int, int]  # name, file, first and last line


def compile_call(target: Any, backend: object, constructions: Constructions) -> CompileCallRecord | None:
    """Return the user's call of torch.compile that is being executed, None for a target that is not the user's."""
    frame = next(users_frames(sys._getframe(1)), None)
    if getattr(target, "__name__", "") == "_call_impl":  # what Module.compile passes on
        target = target.__self__
    codes = list(_codes(target))
    if frame is None or not codes:
        return None
    made = constructions.call(frame, name="torch.compile")
    return CompileCallRecord(
        file=frame.f_code.co_filename,
        line=made.begin[0] if made is not None else frame.f_lineno or 0,
        name=getattr(target, "__name__", type(target).__name__),
        functions=tuple(codes),
        backend=backend if isinstance(backend, str) else getattr(backend, "__name__", ""),
        made=made and structs.replace(made, takes_any=True),
    )


def _codes(target: Any) -> Iterator[_Function]:
    """Yield the function, or the forward of a module and then what else its classes define; nothing of a library's."""
    forward: Callable[..., Any] | None = getattr(type(target), "forward", None)
    first = getattr(target if forward is None else forward, "__code__", None)
    if first is None or not is_user_file(first.co_filename):
        return
    own = [each for cls in type(target).__mro__ for each in vars(cls).values()] if forward is not None else []
    codes = (getattr(each, "__code__", None) for each in own)
    for code in dict.fromkeys([first, *codes]):
        if code is not None and is_user_file(code.co_filename) and code.co_name != "__init__":
            yield code.co_name, code.co_filename, code.co_firstlineno, _last_line(code)


def _last_line(code: CodeType) -> int:
    inner = [_last_line(each) for each in code.co_consts if isinstance(each, CodeType)]
    return max([code.co_firstlineno, *inner, *(line for _, _, line in code.co_lines() if line is not None)])
