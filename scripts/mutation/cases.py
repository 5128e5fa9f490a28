"""The wrong lines: a text that stands exactly once in the sources, what it becomes, and the tests that should notice.

A text is searched for over all sources, so that a file can be moved; tests are patterns, so that theirs can, too. An
everyday test looks every text and every pattern up: who rewrites a line that stands here writes it anew here.
"""

from __future__ import annotations

from typing import NamedTuple

from further_lines import FIFTH, FOURTH, SECOND, THIRD
from kernel_lines import KERNELS

__all__ = ["CASES", "Case"]


class Case(NamedTuple):
    """One wrong line."""

    area: str
    old: str
    new: str
    tests: tuple[str, ...]


_TESTS = {
    "queue": ("tests/tables",),
    "causes": ("tests/tables", "tests/pipeline/test_rank.py", "tests/pipeline/test_odd_traces.py"),
    "verdict": ("tests/pipeline/test_verdict.py", "tests/pipeline/test_rank.py", "tests/answer"),
    "replay": ("tests/replay",),
    "statistics": ("tests/**/test_statistics.py", "tests/trials/test_prove.py"),
    "patches": ("tests/**/test_patches.py", "tests/**/test_scaling_patch.py", "tests/changes"),
    "loaders": ("tests/kernels/test_*loader*.py", "tests/kernels/test_background*.py", "tests/kernels/test_conc*.py"),
}
_LINES = {
    "queue": (
        ("np.clip(np.minimum(begun, tasks.start), window[0]", "np.clip(np.maximum(begun, tasks.start), window[0]"),
        ("empty_share=float(weight[depth <= 0].sum()", "empty_share=float(weight[depth <= 1].sum()"),
        ("_weighted_percentiles(depth, weight, (0.5, 0.9))", "_weighted_percentiles(depth, weight, (0.5, 0.8))"),
        ("tasks.start[known] - trace.events.end[tasks.launch[known]]",
         "tasks.start[known] - trace.events.start[tasks.launch[known]]"),
        ("return float(late_tasks(trace, tasks)[", "return 1 - float(late_tasks(trace, tasks)["),
    ),
    "causes": (
        ("mine = intersect(left, union(claim(left)))", "mine = union(claim(left))"),
        ("left = subtract(left, mine)", "left = subtract(idle, mine)"),
        ("order = np.argsort(-sums, kind=\"stable\")", "order = np.argsort(sums, kind=\"stable\")"),
        ("gap = np.searchsorted(gaps.start, start, side=\"right\") - 1",
         "gap = np.searchsorted(gaps.start, start, side=\"left\") - 1"),
    ),
    "verdict": (
        ("if queue.idle_share <= at.significant_idle:", "if queue.idle_share <= 0.0:"),
        ("busy_depth_p50 <= at.shallow_depth", "busy_depth_p50 > at.shallow_depth"),
        ("if is_shallow(queue, at) or (queue.idle_share", "if is_shallow(queue, at) and (queue.idle_share"),
        ("cold >= at.cold_share * queue.idle_share", "cold >= 4 * at.cold_share * queue.idle_share"),
        ("key=lambda f: (-f.worth_ns, -f.lost_ns)", "key=lambda f: (f.worth_ns, -f.lost_ns)"),
        ("first.worth_ns >= floor_ns else None", "first.worth_ns < floor_ns else None"),
    ),
    "replay": (
        ("latest = max(begin, ends[a] + a_late,", "latest = min(begin, ends[a] + a_late,"),
        ("add(latest + duration)", "add(latest)"),
        ("late.one[source] + delay, late.other[source] + delay", "late.one[source], late.other[source]"),
        ("sound = (rank[src] < rank[dst]) & (slack >= -MARGIN_NS)",
         "sound = (rank[src] < rank[dst]) & (slack >= 10 * MARGIN_NS)"),
        ("late = np.flatnonzero(tasks.start - allowed > LATE_NS)",
         "late = np.flatnonzero(tasks.start - allowed < LATE_NS)"),
        ("ended = tasks[lanes.end[tasks] <= latest[call]]", "ended = tasks[lanes.end[tasks] > latest[call]]"),
        ("duration[tasks[hit]] - less[at[hit]]", "duration[tasks[hit]] + less[at[hit]]"),
        ("ready = end - self.duration_ns", "ready = end"),
        ("fraction * finding.lost_ns * t.steps.num / float(", "fraction * finding.lost_ns / float("),
    ),
    "statistics": (
        ("baseline[:, :, np.newaxis] / variant[:, np.newaxis, :]",
         "variant[:, np.newaxis, :] / baseline[:, :, np.newaxis]"),
        ("noise *= (USUAL_RUNS / min(len(baseline), len(variant))) ** 0.5", "noise *= 1.0"),
        ("float(max(high, ratio) * (1 + noise))", "float(max(high, ratio))"),
        ("float(np.max(np.abs(means / np.median(means) - 1)))",
         "float(np.min(np.abs(means / np.median(means) - 1)))"),
        ("tail = (1 - COVERAGE) / 2", "tail = COVERAGE / 2"),
    ),
    "patches": (
        ("return as_float(output, torch.bfloat16)", "return output"),
        ("{\"num_workers\": num, \"persistent_workers\": True, **given}",
         "{\"num_workers\": num, \"persistent_workers\": False, **given}"),
        ("if type(self) is not cls or _has(signature", "if _has(signature"),
        ("            original(self, **changed)\n", "            original(self, **before)\n"),
        ("NO_BROADCAST = _ddp(broadcast_buffers=False)", "NO_BROADCAST = _ddp(broadcast_buffers=True)"),
        ("self._has_gradients = True", "self._has_gradients = False"),
    ),
    "loaders": (
        ("best.seconds > MIN_SPEED_UP * trial.seconds", "best.seconds > trial.seconds"),
        ("costs.transfer < MIN_HIDEABLE_SHARE * costs.step", "costs.transfer > MIN_HIDEABLE_SHARE * costs.step"),
        ("number < len(self.expected) and not same(batch, self.expected[number])",
         "number < len(self.expected) and same(batch, self.expected[number])"),
        ("for _ in range(self.ahead))", "for _ in range(self.ahead + 3))"),
        ("entries is None and not hasattr(loader.dataset, \"set_epoch\")", "entries is None"),
        ("min(trial.seconds, again)", "max(trial.seconds, again)"),
    ),
}  # fmt: skip
CASES = [Case(area, old, new, _TESTS[area]) for area, lines in _LINES.items() for old, new in lines]
CASES += [
    Case(area, old, new, tests)
    for number, lines in enumerate((KERNELS, SECOND, THIRD, FOURTH, FIFTH), 1)
    for area in [f"kernels-{number}" if number > 1 else "kernels"]
    for old, new, tests in lines
]
