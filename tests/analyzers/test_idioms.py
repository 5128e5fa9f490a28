"""The catalogue of slow forms: each is found by its tree, and the printed form gives what the line gave."""

import os
import random
from itertools import count

import numpy as np
import pytest
import torch

from diagnose.analyzers.common.idioms import idiom_of
from diagnose.analyzers.common.idioms.source import source_at
from diagnose.capture.record.source_lines import SourceLines
from diagnose.model.assignments import Binding


@pytest.fixture
def found(tmp_path):
    """Return the idiom of the line that ends in ``# slow``, as a capture holds its source."""
    names = count()

    def idiom(text):
        path, lines = tmp_path / f"train{next(names)}.py", text.strip("\n").split("\n")
        line = next(number for number, each in enumerate(lines, 1) if each.endswith("# slow"))
        path.write_text("\n".join(each.removesuffix("# slow").rstrip() for each in lines))
        os.utime(path, (1e9, 1e9))
        file = SourceLines(tmp_path).stored([(path.name, line)])["files"][path.name]
        functions = [(int(first), each) for first, each in file["texts"].items()]
        sampled = {int(number): each for number, each in file["lines"].items()}
        source = source_at(line, functions, sampled, [Binding(*each) for each in file["bindings"]])
        return idiom_of(source) if source is not None else None

    return idiom


def ran(text, result):
    """Run a script with a seed, and return what it leaves under a name, as plain values."""
    names = {"np": np, "torch": torch, "random": random}
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    exec(text, names)
    return plain(names[result])


def plain(value):
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic | torch.Tensor) else value


# What stands before the line, the line, the name of its result, and a part of what is printed.
LINES = {
    "choice of places": (
        "rng, w = np.random.default_rng(0), np.arange(1, 9) / 36",
        "got = rng.choice(len(w), (4, 5), p=w)", "got", "cumulative.searchsorted(rng.random((4, 5))",
    ),
    "choice of items": (
        "items = np.array([4, 6, 9])\nshare = np.array([0.2, 0.3, 0.5])",
        "got = [np.random.choice(items, 3, True, share) for _ in range(6)]", "got", "items[cumulative.searchsorted(",
    ),
    "choices": ("w = [3, 1, 2]", 'got = random.choices("abc", weights=w, k=20)', "got", "cum_weights=cumulative"),
    "one choice": ("w = [3, 1, 2]", "got = [random.choices('abc', w) for _ in range(9)]", "got", "accumulate(w)"),
    "next by pop": ("queue = list('abc')", "got = queue.pop(0) + queue[-1]", "got", "queue = deque(list('abc'))"),
    "front by pop": ("queue = [5, 6, 7]", "got = [queue.pop(0), queue.pop()]", "got", "queue.popleft()"),
    "places in a list": (
        "tags = sorted('qwerty')", "got = [tags.index(c) for c in 'wet' if c in tags]", "got", "tags_position[c]",
    ),
    "first of equals": ("kinds = list('abca')", "got = [kinds.index('a') for _ in '12']", "got", "kinds_position["),
    "a tuple": ("stop = tuple(range(90))", "got = [i for i in range(99) if i not in stop]", "got", "i not in stop_set"),
    "smallest": ("d = np.random.rand(99)", "got = np.argsort(d)[:7]", "got", "np.argpartition(d, 6)[:7]"),
    "largest, in order": ("d = np.abs(np.random.rand(99))", "got = d.argsort()[::-1][:7]", "got", "[::-1]"),
    "largest, at the end": ("d, k = np.random.rand(99), 4", "got = np.argsort(d * 2)[-k:]", "got", "values = d * 2"),
    "of each row": ("d = np.random.rand(9, 99)", "got = np.argsort(d, axis=1)[:, :3]", "got", "take_along_axis"),
    "of a tensor": ("d = torch.rand(99)", "got = torch.argsort(d)[:3]", "got", "d.topk(3, largest=False)"),
    "of a tensor, at the end": ("d = torch.rand(99)", "got = d.argsort()[-3:]", "got", ".flip(-1)"),
    "sorted": ("d = [3, 1, 2] * 9", "got = sorted(d)[:4]", "got", "heapq.nsmallest(4, d)"),
    "sorted by a key": (
        "d = [(i % 7, i) for i in range(99)]", "got = sorted(d, key=lambda p: p[0], reverse=True)[:4]",
        "got", "nlargest(4, d, key=",
    ),
    "tensor of arrays": (
        "a = np.ones(3, np.float32)", "got = torch.tensor([a * 2, np.zeros(3, np.float32)])", "got", "np.stack([a * 2",
    ),
    "tensor of made arrays": (
        "", "got = torch.FloatTensor([np.full(3, i) for i in range(4)])", "got", "dtype=torch.float32",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
@pytest.mark.parametrize(("before", "line", "result", "part"), LINES.values(), ids=LINES)
def test_the_printed_form_gives_what_the_line_gave(found, before, line, result, part):
    body = f"{before}\n{line}".strip("\n").replace("\n", "\n    ")
    idiom = found(f"def work():\n    {body}  # slow")
    assert part in idiom.after
    assert idiom.is_identical
    assert ran(f"{before}\n{line}", result) == ran(f"{before}\n{idiom.after}", result)


# A script with a loop; the printed loop takes the place of all that follows the blank line.
LOOPS = {
    "cut by a slice": """
left, got = list(range(50)), []

while len(left) >= 7:
    got.append((left[0], left[-1], left[2:7]))
    left = left[7:]  # slow
""",
    "until it is empty": """
text, got = "abcdefghijk", []

while text:
    got.append(text[:3])
    text = text[3:]  # slow
""",
    "all but the last": """
left, got = list(range(50)), []

while len(left) >= 7:
    got.append((left[1:-2], left[-3:], left[i] if (i := 2) else 0))
    left += [1]
    left[:7] = []  # slow
""",
    "cut by del": """
left, got = list(range(50)), []

for i in range(6):
    left.extend([i, i])
    got.append(sum(left[: i + 2]) + len(left))
    del left[: i + 2]  # slow
""",
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
def test_a_position_takes_the_place_of_a_cut(found, text):
    idiom = found(text)
    begun = text.partition("\n\n")[0]
    name = "text" if "text" in text else "left"
    for result in ("got", name):  # what is left is the same too
        assert ran(text, result) == ran(f"{begun}\n{idiom.after}", result)


def test_inside_another_loop_what_is_used_up_goes_after_it(found):
    text = """
files, buffer, got = [list(range(9))] * 5, [], []
for file in files:
    buffer.extend(file)
    while len(buffer) > 4:
        got.append(buffer[:4])
        buffer = buffer[4:]  # slow
"""
    idiom = found(text)
    inner = "\n".join(f"    {line}" for line in idiom.after.split("\n"))
    begun = text.partition("    while")[0]
    for result in ("got", "buffer"):
        assert ran(text, result) == ran(f"{begun}\n{inner}", result)
    assert idiom.needs == "no other name for the same list"


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("w = torch.arange(1.0, 6.0)", "got = torch.multinomial(w, 40_000, replacement=True)"),
        (
            "w = torch.tensor([0.1, 0.0, 0.9])",
            "got = w[torch.multinomial(w, num_samples=9000, replacement=True)].round()",
        ),
    ],
)
def test_rows_that_torch_draws_have_the_same_distribution(found, before, line):
    idiom = found(f"def work():\n    {before}\n    {line}  # slow")
    assert not idiom.is_identical
    one, other = (np.unique(ran(f"{before}\n{text}", "got"), return_counts=True) for text in (line, idiom.after))
    assert one[0].tolist() == other[0].tolist()
    assert np.allclose(one[1], other[1], rtol=0.1)


DEQUES = {
    "bounded": ("kept = deque(maxlen=20)", "got = [kept[i] for i in range(3, 17)]"),
    "by a name": ("kept, i = deque([], 20), 7", "got = [kept[i + 2], kept[-1 + i]]"),
    "without a bound": ("kept = deque()", "got = [kept[i] for i in (4, 9)]"),
    "drawn from": ("kept = deque()", "got = random.sample(kept, 5)"),
}


@pytest.mark.parametrize(("made", "line"), DEQUES.values(), ids=DEQUES)
def test_a_deque_that_is_indexed_becomes_a_list(found, made, line):
    idiom = found(f"def work():\n    {made}\n    {line}  # slow")
    fill = "for item in range(33):\n    {}"
    start = f"from collections import deque\n{made}\n"
    once, *_, now = idiom.after.split("\n")
    appended = idiom.after.partition("\n\n")[2].partition("\n\n")[0] or "kept.append(item)"
    new = f"{once}\n" + fill.format(appended.replace("\n", "\n    ")) + f"\n{now}"
    assert ran(start + fill.format("kept.append(item)") + f"\n{line}", "got") == ran(start + new, "got")


GROWING = {
    "flat, read afterwards": ("log = np.empty(0)", "log = np.append(log, [i, i + 1])", "", "parts.append(np.ravel("),
    "rows, read afterwards": ("log = np.zeros((1, 2))", "log = np.vstack((log, [i, i]))", "", "np.atleast_2d"),
    "flat, read in the loop": ("log = np.empty(0)", "log = np.append(log, [i, i])", "got = log.sum()", "room[num :"),
    "rows, read in the loop": (
        "log = np.zeros((1, 2))", "log = np.concatenate([log, np.full((3, 2), i)])", "got = log.sum()", "room[num :",
    ),
    "a list": ("log = [0]", "log = log + [i]", "got = log[-1]", "log.append(i)"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "line", "read", "part"), GROWING.values(), ids=GROWING)
def test_what_grows_is_not_copied(found, made, line, read, part):
    body = f"for i in range(200):\n    {line}  # slow\n    {read}".rstrip()
    idiom = found(f"def work():\n    {made}\n    " + body.replace("\n", "\n    "))
    assert part in idiom.after
    once, _, each = idiom.after.partition("\n\n")
    if each:
        new = f"{once}\nfor i in range(200):\n    " + f"{each}\n{read}".replace("\n", "\n    ")
    elif "parts" in idiom.after:
        first, middle, last = idiom.after.split("\n")
        new = f"{first}\nfor i in range(200):\n    {middle}\n{last}"
    else:
        new = f"for i in range(200):\n    {idiom.after}\n    {read}"
    for result in ("log", *(["got"] if read else [])):
        assert ran(f"{made}\n{body}", result) == ran(f"{made}\n{new}", result)


TREE = """
prio = np.random.rand(37)

def main():
    for step in range(30):
        p = prio / prio.sum()
        rows = np.random.choice(37, 8, p=p)  # slow
        prio[rows] = step + 1.0
"""


def test_weights_that_change_by_item_are_kept_in_a_tree(found):
    """Its draws are those of the sums of all weights, for the same random numbers."""
    idiom = found(TREE)
    assert "set_weights(rows, weights):   # at first of all rows, then beside prio[rows]" in idiom.after
    assert not idiom.is_identical
    prio = np.arange(1.0, 38.0)
    names = {"np": np, "prio": prio}
    made = idiom.after.rpartition("\nrows = draw(8)[0]")[0]
    exec(
        f"{made}\nset_weights(np.arange(37), prio)\nprio[[3, 9]] = 50.0\nset_weights(np.array([3, 9]), prio[[3, 9]])",
        names,
    )
    np.random.seed(5)
    rows, probability = names["draw"](500)
    np.random.seed(5)
    assert rows.tolist() == np.random.choice(37, 500, p=prio / prio.sum()).tolist()
    assert np.allclose(probability, (prio / prio.sum())[rows])


def test_weights_that_are_made_anew_are_searched_without_checks(found):
    idiom = found(
        "def draw(logits):\n    p = np.exp(logits)\n    p = p / p.sum()\n    return rng.choice(9, 4, p=p)  # slow"
    )
    assert idiom.after.endswith("return sums.searchsorted(rng.random(4), side='right')")
    assert "np.cumsum(p" in idiom.after
    p = np.exp(np.random.default_rng(1).normal(size=9))
    names = {"np": np, "p": p / p.sum(), "rng": np.random.default_rng(2)}
    exec(idiom.after.replace("return", "got ="), names)
    assert names["got"].tolist() == np.random.default_rng(2).choice(9, 4, p=p / p.sum()).tolist()


TABLE = (
    "import pandas as pd\ndf = pd.DataFrame({'x': [1.5, 2.5, 3.5], 'y': [4, 5, 6], 'name': ['a', 'b', 'c']})\ni = 1\n"
)
ROWS = {
    "by name": 'row = df.iloc[i]\ngot = [row["x"], row["name"]]',
    "of a column": 'got = [df["y"].iloc[i]]',
    "by label": 'got = [df.loc[i, "name"], df.at[i, "y"]]',
    "as an array": 'got = df[["x", "y"]].iloc[i].values',
    "part of a row": "got = df.iloc[i, :2].to_numpy()",
    "by a variable": 'row = df.iloc[i]\ngot = [row[each] for each in [*"xy"]] + [row["name"]]',
    "a whole row": 'row = df.iloc[i]\ngot = [row[each] for each in ("x", "y")]',
}


@pytest.mark.parametrize("text", ROWS.values(), ids=ROWS)
def test_rows_of_a_table_become_items_of_arrays(found, text):
    pytest.importorskip("pandas")
    first, _, rest = text.partition("\n")
    body = f"    {first}  # slow\n" + (f"    {rest}\n" if rest else "")
    idiom = found(f"def row(df, i):\n{body}    return got")
    assert ".iloc[i" not in idiom.after
    after = idiom.after.replace("return got", "") + (f"\n{rest}" if "_rows" in idiom.after else "")
    assert ran(TABLE + text, "got") == ran(TABLE + after, "got")


ONCE = {
    "a file": (
        "class Rows:\n    def __init__(self, path):\n        self.path = path\n    def __getitem__(self, i):\n"
        "        with open(self.path) as f:\n            known = json.load(f)  # slow\n        return known[i]",
        "with open(self.path) as f:\n    self.kept_known = json.load(f)\n\nknown = self.kept_known",
    ),
    "a pattern": (
        "def clean(text):\n    return re.compile('[^a-z]+').sub(' ', text)  # slow",
        "# once, above the function\nkept = re.compile('[^a-z]+')\n\nreturn kept.sub(' ', text)",
    ),
    "in a loop": (
        "def main(name):\n    for batch in loader:\n        tok = AutoTokenizer.from_pretrained(name)  # slow",
        "# once, before the loop\nkept_tok = AutoTokenizer.from_pretrained(name)\n\ntok = kept_tok",
    ),
}


@pytest.mark.parametrize(("text", "after"), ONCE.values(), ids=ONCE)
def test_what_stays_the_same_is_made_once(found, text, after):
    assert found(text).after.endswith(after)


@pytest.mark.parametrize(
    "text",
    [
        "def draw(rng, w):\n    return rng.choice(9, 4, p=w, replace=False)  # slow",
        "def draw(rng, w, size):\n    return rng.choice(*size, p=w)  # slow",
        "def draw(w):\n    return w.multinomial(5, replacement=True)  # slow",
        "def few(d):\n    return np.argsort(*d)[:3]  # slow",
        "def draw(rng):\n    return rng.choice(9, 4)  # slow",
        "def draw(w):\n    return torch.multinomial(w, 4)  # slow",
        "def cut(x: np.ndarray):\n    while len(x):\n        x = x[4:]  # slow",
        "def cut(x):\n    x = torch.ones(9)\n    x = x[1:]  # slow",
        "def cut(x):\n    while x:\n        use(x)\n        x = x[4:]  # slow",
        "def cut(x):\n    while x:\n        got.append(x[::2])\n        x = x[4:]  # slow",
        "def cut(x):\n    while x:\n        x = x[4:]  # slow\n        if done(): x = []",
        "def tail(x):\n    x = x[-20:]  # slow",
        "def first(d):\n    d = {}\n    return d.pop(0)  # slow",
        "v = dict(a=1)\ndef ids(words):\n    return [word in v for word in words]  # slow",
        "WANTED = ('a', 'b')\ndef of(rows):\n    return [row for row in rows if row in WANTED]  # slow",
        "def rank(scores, label):\n    order = sorted(scores)\n    return order.index(label)  # slow",
        "for i in rows:\n    ids = []\n    while len(ids) < 8:\n        if draw() not in ids:  # slow",
        "def rank(rows):\n    for row in rows:\n        order = sorted(row)\n        use(order.index(3))  # slow",
        "def read(link, left):\n    while left:\n        left = left[link.recv_into(left):]  # slow",
        "def draw():\n    return random.choices(names, (3, 1))  # slow",
        "def where(text, part):\n    return text.index(part)  # slow",
        "def load(path):\n    return np.load(path)  # slow",
        "class Rows:\n    def __init__(self, path):\n        self.rows = np.load(PATH)  # slow",
        "def load(paths):\n    for path in paths:\n        with open(path) as f:\n            json.load(f)  # slow",
        "def order(d):\n    return np.argsort(d)  # slow",
        "def order(d):\n    return sorted(d)[2:]  # slow",
        "def join(rows):\n    return torch.tensor([row[1] for row in rows])  # slow",
        "def scale(dist, i):\n    return dist.loc[i]  # slow",
        "def rows(df, i):\n    return df.iloc[i:i + 8]  # slow",
        "def grow(a, b):\n    return np.concatenate([a, b])  # slow",
        "def grow(a):\n    a = a + 1  # slow",
        "x = (  # slow",
    ],
)
def test_what_is_none_of_the_forms_or_may_be_something_else(found, text):
    assert found(text) is None
