"""The catalogue of slow forms: each is found by its tree, and the script with its edits gives what the script gave."""

import os
import random
from collections import deque
from itertools import count

import numpy as np
import pytest
import torch

from diagnose.analyzers.common.idioms import idiom_of
from diagnose.analyzers.common.idioms.source import source_at
from diagnose.capture.record.source_lines import SourceLines
from diagnose.changes.edits.statement_edits import RewriteError, rewritten
from diagnose.model.assignments import Binding


@pytest.fixture
def found(tmp_path):
    """Return the idiom of the line that ends in ``# slow``, as a capture holds its source."""
    names = count()

    def idiom(text):
        path, lines = tmp_path / f"train{next(names)}.py", text.strip("\n").split("\n")
        line = next(number for number, each in enumerate(lines, 1) if each.endswith("# slow"))
        path.write_text("\n".join(lines))
        os.utime(path, (1e9, 1e9))
        file = SourceLines(tmp_path).stored([(path.name, line)])["files"][path.name]
        functions = [(int(first), each) for first, each in file["texts"].items()]
        sampled = {int(number): each for number, each in file["lines"].items()}
        source = source_at(line, functions, sampled, [Binding(*each) for each in file["bindings"]])
        return idiom_of(source) if source is not None else None

    return idiom


@pytest.fixture
def edited(found):
    """Return a script with the edits of its idiom, which leave all other lines as they are."""

    def after(text):
        script, idiom = text.strip("\n"), found(text)
        made = rewritten(script, idiom.edits)
        edits = [edit for edit in idiom.edits if edit.before]
        touched = {edit.line + i for edit in edits for i in range(edit.before.count("\n") + 1)}
        kept = [line for number, line in enumerate(script.split("\n"), 1) if number not in touched]
        left = iter(made.split("\n"))
        assert all(line in left for line in kept)
        assert made != script
        return made

    return after


def ran(text, *results):
    """Run a script with a seed, and return what it leaves under some names, as plain values."""
    names = {}
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    exec(text, names)
    return [plain(names[each]) for each in results]


def plain(value):
    if isinstance(value, list | tuple | deque):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic | torch.Tensor) else value


IMPORTS = "import json, os, random, re\n\nimport numpy as np\nimport torch\n\n"
# What stands before the line, the line, and a part of what is written.
LINES = {
    "choice of places": (
        "rng, w = np.random.default_rng(0), np.arange(1, 9) / 36\nuse = w",
        "got = rng.choice(len(w), (4, 5), p=use)", "cumulative.searchsorted(rng.random((4, 5))",
    ),
    "choice of items": (
        "items = np.array([4, 6, 9])\nshare = np.array([0.2, 0.3, 0.5])   # of each",
        "got = [np.random.choice(items, 3, True, share) for _ in range(6)]", "items[cumulative.searchsorted(",
    ),
    "choices": ("w = [3, 1, 2]", 'got = random.choices("abc", weights=w, k=20)', "cum_weights=cumulative"),
    "one choice": ("w = [3, 1, 2]", "got = [random.choices('abc', w) for _ in range(9)]", "accumulate(w)"),
    "next by pop": ("queue = list('abc')", "got = queue.pop(0) + queue[-1]", "queue = deque(list('abc'))"),
    "front by pop": ("queue = [5, 6, 7]", "got = [queue.pop(0), queue.pop()]", "queue.popleft()"),
    "places in a list": (
        "tags = sorted('qwerty')", "got = [tags.index(c) for c in 'wet' if c in tags]", "tags_position[c]",
    ),
    "first of equals": ("kinds = list('abca')", "got = [kinds.index('a') for _ in '12']", "kinds_position["),
    "a tuple": ("stop = tuple(range(90))", "got = [i for i in range(99) if i not in stop]", "i not in stop_set"),
    "smallest": ("d = np.random.rand(99)", "got = np.argsort(d)[:7]", "np.argpartition(d, 6)[:7]"),
    "largest, in order": ("d = np.abs(np.random.rand(99))", "got = d.argsort()[::-1][:7]", "[::-1]"),
    "largest, at the end": ("d, k = np.random.rand(99), 4", "got = np.argsort(d * 2)[-k:]", "values = d * 2"),
    "of each row": ("d = np.random.rand(9, 99)", "got = np.argsort(d, axis=1)[:, :3]", "take_along_axis"),
    "of a tensor": ("d = torch.rand(99)", "got = torch.argsort(d)[:3]", "d.topk(3, largest=False)"),
    "of a tensor, at the end": ("d = torch.rand(99)", "got = d.argsort()[-3:]", ".flip(-1)"),
    "sorted": ("d = [3, 1, 2] * 9", "got = sorted(d)[:4]", "heapq.nsmallest(4, d)"),
    "sorted by a key": (
        "d = [(i % 7, i) for i in range(99)]", "got = sorted(d, key=lambda p: p[0], reverse=True)[:4]",
        "nlargest(4, d, key=",
    ),
    "in an f-string": ("d = [3, 1, 2] * 9", 'got = (f"{len(d)}", sorted(d)[:4])', "heapq.nsmallest(4, d)"),
    "tensor of arrays": (
        "a = np.ones(3, np.float32)", "got = torch.tensor([a * 2, np.zeros(3, np.float32)])", "np.stack([a * 2",
    ),
    "part of a file": (
        "np.save('a.npy', np.arange(90.0))\nat = slice(3, 40)", "got = np.load('a.npy')[at] * 2", 'mmap_mode="r")[at])',
    ),
    "part of a data set": ("held = np.arange(90)", "got = held[:][3:40] * 2", "got = held[3:40] * 2"),
    "tensor of made arrays": ("", "got = torch.FloatTensor([np.full(3, i) for i in range(4)])", "dtype=torch.float32"),
}  # fmt: skip
FORMS = {
    "a function": "def work():\n    {}\n    return got\n\n\ngot = work()",
    "a closure": (
        "def outer():\n    def work():   # inner\n        {}\n        return got\n\n    return work()\n\n\n"
        "got = outer()"
    ),
    "a decorated method": (
        "class Work:\n    @staticmethod\n    def of():\n        {}\n        return got\n\n\ngot = Work.of()"
    ),
}


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("before", "line", "part"), LINES.values(), ids=LINES)
def test_the_edited_script_gives_what_the_script_gave(edited, before, line, part, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "use = w" in before and "closure" not in form:
        before, line = before.partition("\n")[0], line.replace("p=use", "p=w")
    if before.startswith("rng, w"):
        before = (
            before.replace("rng, w = ", "rng = ").replace(", np.arange", "\nw = np.arange").replace("\nuse = w", "")
        )
        line = line.replace("p=use", "p=w")
    indent = form.partition("{")[0].rpartition("\n")[2]
    body = f"{before}\n{line}  # slow".strip("\n").replace("\n", f"\n{indent}")
    script = IMPORTS + form.format(body)
    after = edited(script)
    assert part in after
    assert ran(after, "got") == ran(script, "got")
    assert "# slow" in after or "sums" in after or "few" in after


LOOPS = {
    "cut by a slice": """
left, got = list(range(50)), []
while len(left) >= 7:
    got.append((left[0], left[-1], left[2:7]))   # all but one
    left = left[7:]  # slow
""",
    "until it is empty": """
left, got = "abcdefghijk", []
while left:
    got.append(left[:3])
    left = left[3:]  # slow
""",
    "all but the last": """
left, got = list(range(50)), []
while len(left) >= 7:
    got.append(
        (left[1:-2], left[-3:],   # both
         left[i] if (i := 2) else 0)
    )
    left += [1]
    left[:7] = []  # slow
""",
    "cut by del": """
left, got = list(range(50)), []
for i in range(6):
    left.extend([i, i])
    if i:
        got.append(sum(left[: i + 2]) + len(left))
    del left[: i + 2]  # slow
""",
    "inside another loop": """
files, left, got = [list(range(9))] * 5, [], []
for file in files:
    left.extend(file)
    while len(left) > 4:
        got.append(left[:4])
        left = left[4:]  # slow
""",
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("is_in_function", [False, True])
def test_what_is_cut_at_its_front_is_not_moved(edited, text, is_in_function):
    if is_in_function:
        text = "def work():" + text.replace("\n", "\n    ").rstrip() + "\n    return left, got\n\nleft, got = work()"
    after = edited(IMPORTS + text)
    assert "begin += " in after
    assert ran(after, "got", "left") == ran(IMPORTS + text, "got", "left")


def test_a_queue_becomes_a_deque(edited):
    text = f"""{IMPORTS}def work():
    left, got = 0, []
    queue = []   # what is to come
    for i in range(9):
        queue.append(i)
        if len(queue) > 3:
            got.append(queue.pop(0))  # slow
    while queue:
        left += queue[-1] + queue.pop(0)
    return left, got

got = work()
"""
    after = edited(text)
    assert "from collections import deque\n" in after
    assert "    queue = deque()   # what is to come\n" in after
    assert after.count("queue.popleft()") == 2
    assert ran(after, "got") == ran(text, "got")


GROWING = {
    "flat": ("log = np.empty(0)", "log = np.append(log, [i, i + 1])", "parts.append(np.ravel("),
    "rows": ("log = np.zeros((1, 2))", "log = np.vstack((log, [i, i]))", "parts.append(np.atleast_2d("),
    "tensors": (
        "log = torch.zeros(1)",
        "log = torch.cat([log, torch.full((2,), i)])",
        "log = torch.cat([log, *parts])",
    ),
    "a list": ("log = [0]", "log = log + [i]", "log.append(i)"),
}


@pytest.mark.parametrize(("made", "line", "part"), GROWING.values(), ids=GROWING)
def test_what_grows_is_not_copied(edited, made, line, part):
    body = f"{made}\nfor i in range(200):\n    {line}  # slow\nreturn log".replace("\n", "\n    ")
    text = f"{IMPORTS}def work():\n    {body}\n\nlog = work()"
    after = edited(text)
    assert part in after
    assert ran(after, "log") == ran(text, "log")


TABLE = "import pandas as pd\n\ndf = pd.DataFrame({'x': [1.5, 2.5, 3.5], 'y': [4, 5, 6], 'name': ['a', 'b', 'c']})\n"
ROWS = {
    "by name": ("row = df.iloc[i]", '[row["x"], row["name"]]'),
    "of a column": ('got = [df["y"].iloc[i]]', "got"),
    "by label": ('got = [df.loc[i, "name"], df.at[i, "y"]]', "got"),
    "as an array": ('got = df[["x", "y"]].iloc[i].values', "got"),
    "part of a row": ("got = df.iloc[i, :2].to_numpy()", "got"),
    "by a variable": ("row = df.iloc[i]", '[row[each] for each in [*"xy"]] + [row["name"]]'),
}


@pytest.mark.parametrize(("line", "value"), ROWS.values(), ids=ROWS)
def test_rows_of_a_table_become_items_of_arrays(edited, line, value):
    pytest.importorskip("pandas")
    text = f"{TABLE}\ndef of(i):\n    {line}  # slow\n    return {value}\n\ngot = [of(1), of(2)]"
    after = edited(text)
    assert ".iloc[i" not in after
    assert "(i)" in after
    assert ran(after, "got") == ran(text, "got")


ONCE = {
    "a file": (
        "class Rows:\n    def __init__(self, path):\n        self.path = path   # of the rows\n\n"
        "    def __getitem__(self, i):\n"
        "        with open(self.path) as f:\n            known = json.load(f)  # slow\n        return known[i]\n\n"
        "got = Rows('known.json')[1]",
        "        self.path = path   # of the rows\n        with open(self.path) as f:\n"
        "            self.kept_known = json.load(f)\n",
    ),
    "a pattern": (
        "def clean(text):\n    return re.compile('[^a-z]+').sub(' ', text)  # slow\n\ngot = clean('a  B c')",
        "kept = re.compile('[^a-z]+')\n\ndef clean(text):\n    return kept.sub(' ', text)  # slow",
    ),
    "in a loop": (
        "def main(name):\n    got = []\n    for i in range(2):\n        tok = json.loads(name)  # slow\n"
        "        got.append(tok)\n    return got\n\ngot = main('3')",
        "    got = []\n    kept_tok = json.loads(name)\n    for i in range(2):\n        tok = kept_tok  # slow\n",
    ),
}


@pytest.mark.parametrize(("text", "part"), ONCE.values(), ids=ONCE)
def test_what_stays_the_same_is_made_once(edited, tmp_path, monkeypatch, text, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.json").write_text("[3, 4]")
    after = edited(IMPORTS + text)
    assert part in after
    assert ran(after, "got") == ran(IMPORTS + text, "got")


DRAWS = """
class Rows:
    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.weights = np.arange(1.0, 6.0) / 15   # of each row

    def draw(self):
        return self.rng.choice(5, size=3, p=self.weights)  # slow


rows = Rows()
got = [rows.draw() for _ in range(9)]
"""


def test_weights_of_an_object_are_added_up_where_they_are_made(edited):
    after = edited(IMPORTS + DRAWS)
    assert "   # of each row\n        self.cumulative = np.cumsum(self.weights, dtype=np.float64)\n" in after
    assert ran(after, "got") == ran(IMPORTS + DRAWS, "got")


def test_weights_that_are_made_anew_are_searched_without_checks(edited):
    text = f"""{IMPORTS}rng = np.random.default_rng(2)

def draw(logits):
    p = np.exp(logits)
    p = p / p.sum()
    return rng.choice(9, 4, p=p)  # slow

got = draw(np.arange(9) / 9)
"""
    after = edited(text)
    assert "    sums = np.cumsum(p, dtype=np.float64)\n" in after
    assert ran(after, "got") == ran(text, "got")


def test_rows_that_torch_draws_have_the_same_distribution(edited, found):
    line = "got = torch.multinomial(w, 9000, replacement=True)  # slow"
    text = f"{IMPORTS}def work():\n    w = torch.tensor([0.1, 0.0, 0.9])\n    {line}\n    return got\n\ngot = work()"
    assert found(text).promise == "other"
    one, other = (np.unique(ran(each, "got")[0], return_counts=True) for each in (text, edited(text)))
    assert one[0].tolist() == other[0].tolist()
    assert np.allclose(one[1], other[1], rtol=0.2)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("prio = np.ones(9)\ndef main():\n    for step in range(9):\n        p = prio / prio.sum()\n"
         "        rows = np.random.choice(9, 8, p=p)  # slow\n        prio[rows] = step",
         "Keep the sums of the weights"),
        ("def draw(rng, items, w):\n    return rng.choice(items, 8, p=w)  # slow", "Add up the weights once"),
        ("def draw(self):\n    self.held = self.held[4:]  # slow", "Move a position through self.held"),
        ("def take(queue):\n    return queue.pop(0)  # slow", "Make queue a deque"),
        ("def take():\n    queue = [1, 2]\n    use(queue)\n    return queue.pop(0)  # slow", "Make queue a deque"),
        ("def new(rows):\n    seen = list(rows)\n    for row in rows:\n        if row in seen:  # slow\n"
         "            seen.append(row)", "Look up in a set of seen"),
        ("def of(kept):\n    kept = deque(maxlen=20)\n    return [kept[i] for i in range(3, 17)]  # slow",
         "Keep kept as a list"),
        ("def of():\n    kept = deque()\n    return random.sample(kept, 5)  # slow", "Keep kept as a list"),
        ("def work():\n    log = np.empty(0)\n    for i in range(9):\n        log = np.append(log, i)  # slow\n"
         "        use(log)", "Write into room for twice as many"),
        ("def row(df, i):\n    return df['x'].iloc[i]  # slow", "Keep the columns of df as arrays"),
    ],
)  # fmt: skip
def test_what_other_code_decides_is_said_in_words(found, text, title):
    idiom = found(text)
    assert idiom.title.startswith(title)
    assert idiom.edits == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "import numpy\n\ndef few(d: np.ndarray):\n    return np.argsort(d)[:3]  # slow",
            "the script has a few already",
        ),
        ("import torch\n\ndef new(a: np.ndarray):\n    return torch.tensor([a * 2])  # slow", "the script has no np"),
    ],
)
def test_what_does_not_fit_the_rest_of_the_script_is_not_written(found, text, why):
    text = text if "few" in text else text.replace(": np.ndarray", "").replace("a * 2", "numpy.ones(3)")
    with pytest.raises(RewriteError, match=why):
        rewritten(text, found(text).edits)


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
