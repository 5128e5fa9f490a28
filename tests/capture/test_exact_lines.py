"""The sampler outside the process names the line that takes the time: twelve slow lines, each among fast ones."""

import json
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from diagnose.capture.record.sampler import is_users
from diagnose.capture.record.samplers import Samplers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read on Linux")

PERIOD_MS = 1.0
ENOUGH = 100  # samples of a function of which four fifths go to one line
HUNG_S = 300  # far above what any wait here takes, so that a hang fails

numbers, same = list(range(60_000)), list(range(60_000))
small = np.arange(20_000.0)
pattern = re.compile(r"(\w+) (\w+)")
words, document = "word " * 10_000, json.dumps({str(i): i for i in range(5_000)})
table = {i: i for i in range(60_000)}
large = 7**20_000
fast = id


def helper(num):
    total = 0
    for i in range(num):
        total += i  # SLOW
    return total


def loop():
    before, total = fast(1), 0
    for i in range(50_000):
        total += i * i  # SLOW
    return fast(total), before


def membership():
    before = fast(1)
    found = -1 in numbers  # SLOW
    after = fast(found)
    return fast(after), before


def comparison():
    before = fast(1)
    equal = numbers == same  # SLOW
    after = fast(equal)
    return fast(after), before


def slices():
    before = fast(1)
    num = len(numbers[::-1] + numbers)  # SLOW
    after = fast(num)
    return fast(after), before


def big_integers():
    before = fast(1)
    product = large * large  # SLOW
    after = fast(product)
    return fast(after), before


def merging():
    before = fast(1)
    num = len(table | table)  # SLOW
    after = fast(num)
    return fast(after), before


def comprehension():
    before = fast(1)
    num = len([i * 2 for i in numbers])  # SLOW
    after = fast(num)
    return fast(after), before


def sorting():
    before = fast(1)
    num = len(sorted(numbers, key=str))  # SLOW
    after = fast(num)
    return fast(after), before


def parsing():
    before = fast(1)
    num = len(json.loads(document))  # SLOW
    after = fast(num)
    return fast(after), before


def substitution():
    before = fast(1)
    text = pattern.sub(r"\2 \1", words)  # SLOW
    after = fast(text)
    return fast(after), before


def called():
    before = fast(1)
    total = helper(50_000)
    after = fast(total)
    return fast(after), before


def summing_an_array():
    before = fast(1)
    total = sum(small)  # SLOW
    after = fast(total)
    return fast(after), before


VARIANTS = (
    loop, membership, comparison, slices, big_integers, merging,
    comprehension, sorting, parsing, substitution, called, summing_an_array,
)  # fmt: skip


def slow_lines(function):
    """Return the lines that may be named: the marked one, or of a loop its head too."""
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    code = (helper if function is called else function).__code__
    inside = {line for _, _, line in code.co_lines() if line is not None}
    (marked,) = (line for line in inside if source[line - 1].endswith("# SLOW"))
    return {marked, marked - 1} if source[marked - 2].strip().startswith("for ") else {marked}


def seen_in(samplers):
    rows = samplers.in_windows.rows()
    return [tuple(rows["places"][row]) for row in rows["place"]]


def count(samplers):
    return len(samplers.in_windows.time_ns)


def in_a_window(samplers, work, enough):
    samplers.sample_window(on=True)
    end = time.monotonic() + HUNG_S
    while count(samplers) < enough:
        assert time.monotonic() < end, "no sample was taken"
        begun = time.monotonic()
        while time.monotonic() < begun + 0.02:
            work()
    samplers.sample_window(on=False)


@pytest.fixture
def samplers():
    """Return samplers that may take the time that so many samples need."""
    made = Samplers(PERIOD_MS, max_share=1.0)
    made.prepare()
    yield made
    made.stop()


@pytest.fixture(params=["alone", "beside a thread"])
def beside(request):
    """Give the process an idle thread, or none."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="prefetch")
    if request.param != "alone":
        thread.start()
    yield
    over.set()
    if thread.ident is not None:
        thread.join()


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("function", VARIANTS, ids=lambda each: each.__name__)
def test_the_slow_line_among_fast_ones(samplers, function):
    in_a_window(samplers, function, ENOUGH)
    waiting = in_a_window.__name__, count.__name__  # for what was sampled
    lines = Counter(line for file, line, name in seen_in(samplers) if file == __file__ and name not in waiting)
    assert samplers.summary["method"] == "memory"
    assert sum(lines.values()) >= ENOUGH / 2
    assert sum(lines[line] for line in slow_lines(function)) > 0.5 * sum(lines.values()), lines


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "torchinductor_ada", "mine"])
def test_a_package_of_another_environment_is_no_code_of_the_users(samplers, folder):
    file, names = f"/opt/other/lib/{folder}/x/loop.py", dict[str, object]()
    exec(compile("def called():\n    sum(range(20_000))", file, "exec"), names)
    called = names["called"]
    in_a_window(samplers, called, 20)
    assert is_users(called.__code__) == any(seen[0] == file for seen in seen_in(samplers)) == (folder == "mine")
