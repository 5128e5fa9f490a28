"""Which function of the user's calls operators one by one, as the lines show that the sampler saw around them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.tables import Tables
from diagnose.tables.no_grad_calls import HEAVY
from diagnose.tables.python_calls import Issuer, names_of, repeats

__all__ = ["LIBRARY", "MIN_OPERATOR_SHARE", "MIN_PER_STEP", "NUM_NAMED", "PASSES_ON", "READ", "sampled_issuer"]

MIN_OPERATOR_SHARE = 0.3  # of the operators that Python calls: below it no function stands out
MIN_PER_STEP = 50
MAX_HEAVY = 0.05  # of the operators that a function calls: products and convolutions are a model's
MIN_SAMPLES, MIN_MAIN_SHARE = 8, 0.7  # of the samples, that one function is seen in
NUM_NAMED = 3
# A line to call what other lines called again. An environment's step computes what no other line called.
PASSES_ON = re.compile(r"(\.backward|(?<!env)(?<!envs)\.step)\(|autograd\.grad\(")
LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|torch|numpy|diagnose)/|^<")
READ = "aten::item"


def sampled_issuer(t: Tables) -> tuple[Issuer, Rows] | None:
    """Return the function that most operators lie in by samples, and these; None for one that does a model's work.

    An operator is a function's where the sampler saw the thread in that function on both sides of it.
    """
    samples, rows = t.capture.samples, t.called_by_python
    if samples is None or len(samples.time_ns) < 2 or not len(rows) or not t.trace.epoch_ns:
        return None
    functions = sorted({(file, function) for file, _, function in samples.places})
    number = {each: i for i, each in enumerate(functions)}
    of_place = np.array([number[file, function] for file, _, function in samples.places] + [-1], np.int64)
    seen = of_place[samples.place]
    after = np.searchsorted(samples.time_ns - t.trace.epoch_ns, t.trace.events.start[rows])
    inside = (after > 0) & (after < len(seen))
    after = np.clip(after, 1, len(seen) - 1)
    owner = np.where(inside & (seen[after] == seen[after - 1]), seen[after], -1)
    if t.device_id < 0:
        main = _main_function(t, seen, len(functions))
        owner = np.where(main >= 0, main, owner)
    if not (owner >= 0).any():
        return None
    most = int(np.bincount(owner[owner >= 0]).argmax())
    mine, (file, function) = rows[owner == most], functions[most]
    called = Counter(names_of(t, mine))
    heavy = sum(num for name, num in called.items() if HEAVY.match(name))
    if LIBRARY.search(file) or heavy > MAX_HEAVY * len(mine) or len(mine) < MIN_OPERATOR_SHARE * len(rows):
        return None
    if len(mine) / t.steps.num < MIN_PER_STEP:
        return None
    lines = Counter(samples.places[i][1] for i in samples.place[seen == most].tolist())
    line = lines.most_common(1)[0][0]
    issuer = Issuer(
        frame=f"{file}({line}): {function}",
        file=file,
        line=line,
        function=function,
        num=len(mine) / t.steps.num,
        share=len(mine) / len(rows),
        reads=called[READ] / t.steps.num,
        median_ns=int(np.median((t.trace.events.end - t.trace.events.start)[mine])),
        in_model=False,
        names=tuple(name for name, _ in called.most_common(NUM_NAMED)),
        repeats=repeats(t, mine),
    )
    return issuer, mine


def _main_function(t: Tables, seen: Ints, num_functions: int) -> int:
    """Return the function that nearly all samples are in, lines left out that only pass on what others called; else -1.

    Without a device operators take the thread's time where they are called, however far apart the samples are.
    """
    assert t.capture.samples is not None
    lines = (t.capture.lines.get((file, line), "") for file, line, _ in t.capture.samples.places)
    passes = [PASSES_ON.search(text) is not None for text in lines]
    at = t.capture.samples.place
    counted = np.bincount(seen[(at >= 0) & ~np.array([*passes, False])[at]], minlength=num_functions)
    most = int(counted.argmax())
    return most if counted[most] >= max(MIN_SAMPLES, MIN_MAIN_SHARE * counted.sum()) else -1
