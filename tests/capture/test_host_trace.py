"""Calls of host code on hot lines: what they are given is seen by value, and the script sees nothing of it."""

import sys
import weakref
from itertools import count

import numpy as np
import pytest

from diagnose.capture.host.trace import HostTrace

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11) or sys.gettrace() is not None, reason="instructions have no places, or are traced"
)


@pytest.fixture
def seen(tmp_path):
    """Run a script of steps under the trace, and return what was seen of the expression on the line ``# slow``."""

    numbers = count()

    def run(text, *, steps=2, with_names=False):
        path, names = tmp_path / f"train{next(numbers)}.py", {"np": np, "__name__": "train"}
        path.write_text(text)
        exec(compile(text, str(path), "exec"), names)
        lines = [(str(path), n) for n, line in enumerate(text.split("\n"), 1) if line.endswith("# slow")]
        trace = HostTrace(lines)
        if "step" in names:
            trace.start()
            for _ in range(steps):
                names["step"]()
                trace.end_step()
        else:
            names["main"](trace)
        record = trace.stop()
        assert record.steps == steps
        return (record, names) if with_names else record.calls[0]

    return run


def operand(call, text):
    (found,) = [each for each in call.operands if each.text == text]
    return found


def test_an_operand_that_stays_the_same_is_told_from_one_that_is_new(seen):
    call = seen("""
known = np.arange(5000)
def step():
    wanted = np.random.randint(0, 9, 100)
    return np.isin(wanted, known)  # slow
""")
    assert (call.name, call.text, call.line, call.function, call.num) == (
        "numpy.isin", "np.isin(wanted, known)", 5, "step", 2,
    )  # fmt: skip
    assert call.ns > 0
    known, wanted = operand(call, "known"), operand(call, "wanted")
    assert (known.kind, known.size, known.is_kept, known.same, known.changed) == ("numpy.ndarray", 5000, True, True, 0)
    assert (wanted.size, wanted.is_kept, wanted.same) == (100, False, False)


def test_few_changes_of_a_store_and_views_of_it(seen):
    call = seen("""
class Store:
    def __init__(self):
        self.tree, self.at = np.zeros(1 << 17), 0
    def add(self):
        self.leaf = self.tree[1 << 16:]
        self.leaf[self.at] = self.leaf.max() + 1  # slow
        self.at += 1
store = Store()
def step():
    for _ in range(3):
        store.add()
""")
    (leaf,) = call.operands
    assert (call.name, call.num) == ("numpy.ndarray.max", 6)
    assert (leaf.text, leaf.is_kept, leaf.same) == ("self.leaf", True, False)
    assert 0 < leaf.changed < 0.01


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("7 in names", "builtins.list in"),
        ("names.index(3)", "builtins.list.index"),
        ("sorted(names)", "builtins.sorted"),
        ("np.max(names)", "numpy.max"),
        ("table['x']", "builtins.dict[]"),
        ("labels == 3", "numpy.ndarray compared"),
        ("draw.choice(4, p=weights)", "numpy.Generator.choice"),
        ("np.random.choice(4, p=weights)", "numpy.RandomState.choice"),
        ("(labels + 1).max()", ".max"),
    ],
)
def test_what_is_called_has_a_name_by_value(seen, expression, name):
    call = seen(f"""
names, table, labels = [1, 2, 3], {{"x": 1}}, np.arange(4)
draw, weights = np.random.default_rng(0), np.full(4, 0.25)
def step():
    return {expression}  # slow
""")
    assert call.name.replace("amax", "max") == name


def test_a_list_that_grows_and_a_file_of_arrays_that_is_read_again(seen, tmp_path):
    call = seen("""
names = []
def step():
    names.extend(range(len(names), len(names) + 50))
    return 9 in names  # slow
""")
    assert (operand(call, "names").grows, operand(call, "names").size) == (True, 100)
    np.savez(tmp_path / "held.npz", a=np.arange(9), b=np.arange(3))
    record, names = seen(
        f"""
held = np.load({str(tmp_path / "held.npz")!r})
def step():
    return [held[key][0] for key in ("a", "a", "b")]  # slow
""",
        with_names=True,
    )
    names["held"].close()
    call = next(each for each in record.calls if each.name == "numpy.NpzFile[]")
    assert (call.looks, call.num_given) == (6, 2)


def test_each_call_counts_once_also_where_it_ends_a_statement_or_a_chain(seen):
    call = seen("""
values = np.arange(900)
def step():
    total = 0
    for _ in range(3):
        total += (
            values
            .max()  # slow
        )
    return total
""")
    assert (call.text, call.num) == ("values.max()", 6)


def test_lists_that_are_made_anew_are_no_list_that_grows(seen):
    call = seen("""
num = [0]
def step():
    num[0] += 300
    names = [1.5 * i + num[0] for i in range(num[0])]
    return 9 in names  # slow
""")
    (names,) = [each for each in call.operands if each.text == "names"]
    assert (names.grows, names.is_kept) == (True, False)


def test_functions_that_run_already_are_watched_and_left_as_they_were(seen):
    record, names = seen(
        """
from weakref import ref
class Held: pass
frames = []
def main(trace):
    import sys
    frames.append(sys._getframe())
    known, held = np.arange(300), Held()
    trace.start()
    for _ in range(2):
        total = known.sum()  # slow
        trace.end_step()
    trace.stop_here = trace.stop()
    gone = ref(held)
    del held
    assert gone() is None
    trace.stop = lambda: trace.stop_here
""",
        with_names=True,
    )
    assert (record.calls[0].name, record.calls[0].num) == ("numpy.ndarray.sum", 2)
    assert names["frames"][0].f_trace is None
    assert sys.gettrace() is None


def test_nothing_of_the_script_is_run_or_changed(seen):
    record, names = seen(
        """
class Odd:
    asked = 0
    def __getattr__(self, name):
        Odd.asked += 1
        raise RuntimeError(name)
    @property
    def rows(self):
        Odd.asked += 1
        return np.arange(1000)
    def __len__(self):
        Odd.asked += 1
        return 3
    def __eq__(self, other):
        Odd.asked += 1
        return False
    __hash__ = None
odd, draws = Odd(), np.random.default_rng(1)
def step():
    return max(odd.rows), isinstance(odd, Odd), draws.random()  # slow
first = draws.bit_generator.state
""",
        with_names=True,
    )
    assert names["Odd"].asked == 2  # by the script
    replayed = np.random.default_rng(1)
    replayed.random(2)
    assert names["draws"].bit_generator.state == replayed.bit_generator.state
    assert {call.num for call in record.calls} == {2}


def test_an_exception_goes_on_and_many_instructions_end_the_watch(seen, monkeypatch):
    monkeypatch.setattr("diagnose.capture.host.trace.MAX_EVENTS", 100)
    record, names = seen(
        """
done = []
def step():
    for i in range(1000):
        try:
            [].index(i)  # slow
        except ValueError:
            done.append(i)
""",
        with_names=True,
    )
    assert len(names["done"]) == 2000
    assert sum(call.num for call in record.calls) < 40


def test_a_thread_that_is_traced_already_is_left_alone(seen):
    tracer = lambda *_: None
    sys.settrace(tracer)
    try:
        trace = HostTrace([(__file__, 1)])
        trace.start()
        assert sys.gettrace() is tracer
        assert trace.stop().calls == ()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)


def test_no_array_is_kept_alive(seen):
    _, names = seen(
        """
from weakref import ref
made = []
def step():
    values = np.arange(5000)
    made.append(ref(values))
    return values.max()  # slow
""",
        with_names=True,
    )
    assert [each() for each in names["made"]] == [None, None]
    assert isinstance(names["made"][0], weakref.ref)


def test_a_function_that_gives_the_same_in_each_step_is_noted(seen):
    record, _ = seen("""
parts = [np.arange(900.0) for _ in range(4)]
calls = 0
@property
def unused(self):
    return 0
def joined():
    whole = np.concatenate([p for p in parts])  # slow
    return whole * 2
def counted():
    global calls
    calls += 1
    return np.full(900, calls).astype(float)  # slow
def once():
    return np.ones(900).astype(int)  # slow
first = True
def step():
    global first
    joined(), joined(), counted()
    if first:
        once()
    first = False
""", with_names=True)  # fmt: skip
    (result,) = record.same_results
    assert (result.function, result.line, result.last_line, result.size) == ("joined", 7, 9, 3600)
    assert result.looks == 4


def test_a_comprehension_over_a_list_is_a_call_and_its_items_are_left_alone(seen):
    if sys.version_info >= (3, 12):
        pytest.skip("comprehensions are part of their function")
    record, _ = seen("""
kinds = [i % 7 for i in range(9000)]
def step():
    for k in range(3):
        found = [i for i in range(len(kinds)) if kinds[i] == k]  # slow
    return found
""", with_names=True)  # fmt: skip
    call = record.calls[0]
    assert (call.name, call.num, call.function) == ("comprehension", 6, "step")
    (kinds,) = call.operands
    assert (kinds.text, kinds.size, kinds.same, kinds.is_kept) == ("kinds", 9000, True, True)


def test_tensors_that_functions_give_are_not_computed_with(seen):
    record, names = seen("""
import torch
kept = []
def rows():
    kept.append(torch.ones(900))
    found = np.sort(np.arange(50_000))  # slow
    return kept[-1]
def step():
    rows(), rows()
""", with_names=True)  # fmt: skip
    assert record.same_results == ()
    assert (len(names["kept"]), record.calls[0].num) == (4, 4)  # the watch went on to the end
