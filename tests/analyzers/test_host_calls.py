"""Calls of host code: what they go through each time though it hardly changes, and what makes them cheap."""

import os
from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers.common.idioms.draws import weighted_draws
from diagnose.analyzers.common.idioms.host_calls import gone_through
from diagnose.analyzers.common.idioms.observed import observed_idiom
from diagnose.analyzers.common.idioms.source import source_at
from diagnose.capture.record.source_lines import SourceLines
from diagnose.changes.edits.statement_edits import rewritten
from diagnose.model.assignments import Binding
from diagnose.model.capture import CaptureInfo
from diagnose.model.records import (
    ExpressionRecord,
    HostCallRecord,
    HostRecord,
    HostResultRecord,
    LoadedRecord,
    OperandRecord,
)


def operand(text, *, size=9000, looks=4, **seen):
    return OperandRecord(text=text, size=size, looks=looks, **({"is_kept": True, "same": True} | seen))


def call(text, name, *operands, num=8, line=7, num_given=4):
    return HostCallRecord(
        file="train.py", line=line, text=text, name=name, num=num, ns=num * 500_000, looks=4, num_given=num_given,
        operands=operands,
    )  # fmt: skip


KNOWN, FEW = operand("self.known"), {"same": False, "changed": 0.01}
ASKED = operand("asked", size=20, is_kept=False, same=False, changed=1.0)
ALL, SAME = "goes through all 9,000 elements of self.known", "goes through the same 9,000 elements of"


@pytest.mark.parametrize(
    ("seen", "title"),
    [
        (call("np.isin(asked, self.known)", "numpy.isin", ASKED, KNOWN), f"np.isin() {SAME} self.known each time"),
        (
            call("self.known.max()", "numpy.ndarray.max", operand("self.known", **FEW)),
            f"self.known.max() {ALL} though few of them have changed",
        ),
        (
            call("rng.choice(9000, p=self.known)", "numpy.Generator.choice", KNOWN),
            "rng.choice() adds up the same 9,000 weights of self.known each time",
        ),
        (
            call(
                "x in self.known",
                "builtins.list in",
                operand("self.known", kind="builtins.list", same=False, grows=True),
            ),
            f"x in self.known {ALL} while it grows",
        ),
        (
            call("self.known.sum()", "numpy.ndarray.sum", operand("self.known", same=False, same_in_step=True)),
            f"self.known.sum() {SAME} self.known several times per step",
        ),
        (
            call("held['a']", "numpy.NpzFile[]", operand("held", size=0), operand("'a'", size=1), num_given=1),
            "held['a'] reads the whole array from the file each time",
        ),
        (
            call("[i for i in range(len(t)) if t[i] == k]", "comprehension", operand("t", kind="builtins.list")),
            f"a comprehension {SAME} t each time",
        ),
        (
            call("t[t['u'] == u]", "pandas.DataFrame[]", operand("t")),
            f"t[t['u'] == u] {SAME} t each time",
        ),
        (
            call("np.mean(losses)", "numpy.mean", operand("losses", kind="builtins.list", same=False, grows=True)),
            "np.mean() goes through all 9,000 elements of losses while it grows",
        ),
        (
            call("t.iloc[i]", "pandas.DataFrame.iloc[]", operand("t"), operand("i", size=0, kind="builtins.int")),
            "t.iloc[i] makes a row of pandas each time",
        ),
        (
            call("copy.deepcopy(net)", "copy.deepcopy", operand("net", size=0)),
            "copy.deepcopy() copies all of net each time",
        ),
    ],
)
def test_what_is_wrong_with_a_call(seen, title):
    assert gone_through(seen, 2).title == title


@pytest.mark.parametrize(
    "seen",
    [
        call("np.isin(asked, self.known)", "numpy.isin", ASKED, operand("self.known", size=255)),
        call("np.isin(asked, self.known)", "numpy.isin", ASKED, operand("self.known", is_kept=False)),
        call("np.isin(asked, self.known)", "numpy.isin", ASKED, operand("self.known", looks=1)),
        call("np.isin(asked, self.known)", "numpy.isin", ASKED),  # computed there
        call("np.take(self.known, asked)", "numpy.take", KNOWN, ASKED),  # reads a part
        call("np.sort(self.known)", "numpy.sort", operand("self.known", same=False, changed=0.9)),
        call("np.sort(self.known)", "numpy.sort", operand("self.known", same=False, changed=None)),
        call("self.known.max()", "numpy.ndarray.max", operand("self.known", same=False, grows=True)),
        call("self.known == other", "numpy.ndarray compared", KNOWN, operand("other", is_kept=False)),
        call("held[key]", "numpy.NpzFile[]", operand("held", size=0), operand("key", size=5), num_given=4),
        call("self.known.sum()", "numpy.ndarray.sum", operand("self.known", same=False, same_in_step=True), num=2),
        call("t.iloc[at]", "pandas.DataFrame.iloc[]", operand("t"), operand("at", kind="numpy.ndarray")),
        call("t.iloc[0]", "pandas.DataFrame.iloc[]", operand("t"), operand("0", size=0, kind="builtins.int"), num=2),
        call("np.isin(asked, self.kno", "numpy.isin", KNOWN),  # cut
        call("f(self.known)", "", KNOWN),
        call("[f(x) for x in self.known]", "comprehension", KNOWN),
    ],
)
def test_of_what_changes_or_may_be_read_in_part_nothing_is_claimed(seen):
    assert gone_through(seen, 2) is None


def test_the_evidence_counts_calls_and_elements():
    assert gone_through(call("np.isin(asked, self.known)", "numpy.isin", ASKED, KNOWN), 2).text == (
        "np.isin() runs 4 times a step, 500 µs each. It goes through the 9,000 elements of self.known; these were the "
        "same in the 4 calls that were compared."
    )


SEARCH = """
import numpy as np

class Graph:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.edges = self.rng.integers(0, 5000, 900)

    def draw(self):
        tails = self.rng.integers(0, 5000, 50)
        clash = np.isin(tails * 1, self.edges)  # slow
        while clash.any():
            tails[clash] = self.rng.integers(0, 5000, clash.sum())
            clash = np.isin(tails * 1, self.edges)
        return tails.tolist(), np.isin(tails, self.edges).sum()

graph = Graph(3)
got = [graph.draw() for _ in range(5)]
"""
MEMBERS = """
import numpy as np

class Rows:
    def __init__(self, path):
        self.held = np.load(path)
        self.num = len(self.held["a"])

    def row(self, name, at):
        return self.held[name][at] + self.held["b"].sum()  # slow

    def close(self):
        self.held.close()

rows = Rows(path)
got = [rows.row(name, at) for at in range(3) for name in "ab"]
rows.close()
"""
SORTED = """
import numpy as np

lengths = np.random.default_rng(0).integers(0, 99, 500)

def easy(num):
    order = np.argsort(lengths, kind="stable")[:num]  # slow
    return order.tolist()

got = [easy(num) for num in (3, 30)]
"""


@pytest.mark.parametrize(
    ("text", "seen", "written"),
    [
        (SEARCH, ("np.isin(tails * 1, self.edges)", "numpy.isin", operand("self.edges")), "self.edges_sorted = np.u"),
        (
            MEMBERS, ("self.held[name]", "numpy.NpzFile[]", operand("self.held", size=0), operand("name", size=1)),
            "self.held_arrays = dict(self.held)",
        ),
        (SORTED, ("np.argsort(lengths, kind='stable')", "numpy.argsort", operand("lengths")), "kept_argsort = np.arg"),
    ],
)  # fmt: skip
def test_a_script_with_its_edits_gives_what_it_gave(tmp_path, text, seen, written):
    path, names, text = tmp_path / "train.py", {"path": str(tmp_path / "held.npz")}, text.strip("\n")
    np.savez(names["path"], a=np.arange(40), b=np.arange(3))
    line = next(number for number, each in enumerate(text.split("\n"), 1) if each.endswith("# slow"))
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    file = SourceLines(tmp_path).stored([(path.name, line)])["files"][path.name]
    functions = [(int(first), each) for first, each in file["texts"].items()]
    source = source_at(line, functions, {}, [Binding(*each) for each in file["bindings"]])
    idiom = observed_idiom(source, gone_through(call(*seen, num_given=1), 2))
    made = rewritten(text, idiom.edits)
    assert written in made
    assert "np.isin" not in made
    before, after = dict(names), dict(names)
    exec(text, before)
    exec(made, after)
    assert before["got"] == after["got"]


DRAW = """
import numpy as np

class Beats:
    def __init__(self, num):
        self.rng, self.num = np.random.default_rng(0), len(range(num)) * 1
        self.prob = np.full(num, 1 / num)

    def beat(self):
        return self.rng.choice({of}, 3, p=self.prob).tolist()  # slow

beats = Beats(40)
got = [beats.beat() for _ in range(9)]
"""


@pytest.mark.parametrize(
    ("of", "types"),
    [("self.num", {"self.num": "builtins.int"}), ("self.prob.shape[0]", {}), ("self.prob.size", {})],
)
def test_what_a_type_was_seen_to_be_lets_more_be_written(tmp_path, of, types):
    text = DRAW.strip("\n").format(of=of)
    (tmp_path / "train.py").write_text(text)
    os.utime(tmp_path / "train.py", (1e9, 1e9))
    file = SourceLines(tmp_path).stored([("train.py", 9)])["files"]["train.py"]
    functions = [(int(first), each) for first, each in file["texts"].items()]
    source = replace(source_at(9, functions, {}, [Binding(*each) for each in file["bindings"]]), seen=types)
    made = rewritten(text, edits) if (edits := weighted_draws(source).edits) else ""
    assert bool(made) == (of != "self.prob.size")
    before, after = {}, {}
    exec(text, before)
    exec(made or text, after)
    assert before["got"] == after["got"]


@pytest.mark.parametrize(
    ("seen", "title"),
    [
        (call("x in names", "builtins.list in", operand("names")), "Keep a set or a dict of names, and look up in it"),
        (call("labels == c", "numpy.ndarray compared", operand("labels")), "Group labels by its values once, and take"),
        (call("np.std(seen)", "numpy.std", operand("seen", **FEW)), "Keep the result of np.std(seen) up to date when"),
        (call("np.std(seen)", "numpy.std", operand("seen")), "Keep the result of np.std(seen) instead of computing"),
        (call("np.setdiff1d(x, seen)", "numpy.setdiff1d", operand("seen")), "Sort seen once, and look the values up"),
    ],
)
def test_without_a_source_the_change_is_in_words(seen, title):
    idiom = observed_idiom(None, gone_through(seen, 2))
    assert idiom.title.startswith(title)
    assert idiom.edits == ()


@pytest.fixture
def named(late):
    """Let a line be sampled that calls what was observed."""

    def name(*seen, text="hit = np.isin(asked, self.known)", same=()):
        late.lines["train.py", 7] = text
        late.samples_every(10, 300, 690, ("train.py", 7, "draw"), running=1)
        late.info = CaptureInfo(host=HostRecord(steps=2, calls=seen, same_results=same))
        return late.find("python-stall"), late.prescribe("python-stall")

    return name


def test_python_between_operators_is_explained_by_the_call_of_its_line(named):
    finding, prescribed = named(call("np.isin(asked, self.known)", "numpy.isin", ASKED, KNOWN))
    assert finding.title == f"np.isin() {SAME} self.known each time"
    assert finding.evidence[2].startswith("np.isin() runs 4 times a step, 500 µs each.")
    (p,) = prescribed
    assert (p.id, p.title) == ("cheaper-line", "Sort self.known once, and look the values up in it (train.py:7)")


@pytest.mark.parametrize(
    ("first", "last", "size", "is_named"), [(5, 8, 9000, True), (5, 8, 20, False), (8, 12, 9000, False)]
)
def test_a_function_that_gives_the_same_each_time_explains_its_lines(named, first, last, size, is_named):
    given = HostResultRecord(file="train.py", line=first, last_line=last, function="points", looks=4, size=size)
    finding, (p,) = named(same=(given,), text="return np.concatenate([each.raw for each in parts])")
    title = "points gives the same 9,000 elements each time"
    assert finding.title == (title if is_named else "Python between operators delays the step")
    assert (p.title == "Keep the result of points instead of computing it again (train.py:7)") == is_named


@pytest.mark.parametrize(
    "others",
    [
        (),
        (call("np.isin(asked, fresh)", "numpy.isin", ASKED),),
        (  # another call of the line takes most of its time
            call("draw(asked)", "", ASKED, num=99),
            call("np.isin(asked, self.known)", "numpy.isin", ASKED, KNOWN),
        ),
        (call("np.isin(asked, self.known)", "numpy.isin", ASKED, KNOWN, line=8),),
    ],
)
def test_a_line_without_such_a_call_keeps_its_advice(named, others):
    finding, (prescribed,) = named(*others)
    assert finding.title == "Python between operators delays the step"
    assert prescribed.id == "python-off-the-loop"


def test_loading_is_explained_by_the_call_that_takes_most_of_a_sample(late):
    late.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 300, 690)
    text = "np.isin(asked, self.known)"
    one = ExpressionRecord(file="data.py", line=9, text=text, ns=500, own_ns=500, is_constant=True)
    seen = HostCallRecord(
        file="data.py", line=9, text=text, name="numpy.isin", num=4, ns=500, operands=(ASKED, KNOWN)
    )  # fmt: skip
    loaded = LoadedRecord(samples=4, total_ns=1000, expressions=(one,), calls=(seen,))
    late.info = CaptureInfo(loaded=loaded)
    finding = late.find("wasted-sample")
    assert finding.title == f"np.isin() {SAME} self.known each time"
    assert finding.lost_ns == pytest.approx(390_000)  # four fifths of half of each batch, of which one waits so long
    assert "cheaper-line" in [p.id for p in late.prescribe("wasted-sample")]
