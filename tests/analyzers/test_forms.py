"""Costly forms of host code: found by what calls were given as a script ran, and the other form gives the same."""

import os
import sys

import numpy as np
import pandas as pd
import pytest

from diagnose.analyzers.common.idioms.forms import FORMS
from diagnose.analyzers.common.idioms.host_calls import gone_through
from diagnose.analyzers.common.idioms.source import source_at
from diagnose.capture.host.trace import HostTrace
from diagnose.capture.record.source_lines import SourceLines
from diagnose.changes.edits.statement_edits import rewritten
from diagnose.model.assignments import Binding

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11) or sys.gettrace() is not None, reason="instructions have no places, or are traced"
)
SCRIPT = """import numpy as np
import pandas as pd
import torch

rng = np.random.default_rng(0)
cells = rng.integers(0, 9, (4000, 3))
wave = rng.random(4000)
square = rng.random((300, 300))
sales = pd.DataFrame({"store": cells[:, 0], "item": cells[:, 1], "sold": wave}).set_index(["store", "item"])
ordered = sales.sort_index(kind="stable")
daily = pd.DataFrame({"store": cells[:, 0], "sold": wave})
long_half = np.vectorize(lambda x: x if x > 0.5 else 0.0)
covariance, middle = np.eye(64), np.zeros(64)
items = [{"flow": wave.tolist(), "box": [1, 2, 3, 4]}]
first_day = pd.Series(["2024-03-01"] * 300)
days = ["2024-03-01"] * 300

def step():
    global cells, wave
    cells, wave = rng.integers(0, 9, (4000, 3)), rng.random(4000)
    items[0]["flow"] = wave.tolist()
    BODY
    return got

got = step()
"""
FOUND = {
    "got = np.unique(cells, axis=0)": "np.unique() sorts whole rows of integers as records",
    "got = np.random.choice(len(wave), 16, replace=False)": "np.random.choice() shuffles all 4,000 indices to draw 16",
    "order = rng.permutation(4000)  # slow\n    got = order[:16]": "rng.permutation() shuffles all 4,000",
    "got = sorted(wave)[0]": "sorted() sorts all elements for one of them",
    "got = np.sort(wave)[-1]": "np.sort() sorts all elements for one of them",
    "got = wave[np.argsort(wave)[0]]": "np.argsort() sorts all elements for one of them",
    "got = np.sort(wave)[40]": "np.sort() sorts all elements for one of them",
    "got = sum(wave)": "sum() goes through the 4,000 elements of wave one by one in Python",
    "got = len(set(wave))": "set() goes through the 4,000 elements of wave one by one in Python",
    "got = long_half(wave)": "long_half() calls a function of Python's for each of 4,000 elements",
    "got = np.apply_along_axis(np.ptp, 1, cells)": "np.apply_along_axis() calls a function of Python's for each row",
    "got = daily.apply(lambda row: row.sold, axis=1)": "daily.apply() calls a function of Python's for each of 4,000",
    "got = sales.loc[(3, 4)]": "sales.loc[3, 4] searches all 4,000 rows, because the index is not sorted",
    "got = daily.groupby('store').get_group(3)": "daily.groupby('store').get_group() groups all rows again to take",
    "got = torch.tensor(items[0]['flow'])": "torch.tensor() converts 4,000 numbers of Python's one by one",
    "got = np.array(items[0]['flow'])": "np.array() converts 4,000 numbers of Python's one by one",
    "got = pd.to_datetime(first_day)": "pd.to_datetime() parses dates each time",
    "got = np.einsum('ij,jk->ik', square, square)": "np.einsum() multiplies matrices without a matrix library",
    "got = np.linalg.inv(square) @ wave[:300]": "np.linalg.inv() computes an inverse for one product",
    "_, got, _ = np.linalg.svd(square[:, :30])": "np.linalg.svd() computes singular vectors, and only the values are",
    "got = abs(np.linalg.svd(cells)[1])": "np.linalg.svd() computes square factors of a 4,000 x 3 matrix",
    "got = np.fft.rfft(wave, n=4001)": "np.fft.rfft() transforms 4,001 points, a length with a large prime factor",
    "got = np.convolve(wave, wave)": "np.convolve() multiplies all 4,000 elements by each of 4,000",
    "got = rng.multivariate_normal(middle, covariance)": "rng.multivariate_normal() factorises the same 64 x 64 cova",
    "got = wave\n    for _ in range(3):\n        got = np.delete(got, 0)  # slow": "np.delete() copies all",
}
ALIKE = (
    "got = np.unique(cells)",
    "got = np.unique(cells * 0.5, axis=0)",
    "got = np.random.choice(len(wave), 2000, replace=False)",
    "got = rng.choice(len(wave), 16, replace=False)",
    "order = rng.permutation(4000)  # slow\n    got = order",
    "order = rng.permutation(4000)  # slow\n    got = order[:16], order[16:]",
    "got = sorted(items[0]['flow'])",
    "got = np.sort(wave)[::40]",
    "got = sum(wave[:9])",
    "got = max(items[0]['box'])",
    "got = ordered.loc[(3, 4)]",
    "got = daily.apply(np.mean)",
    "got = torch.tensor(items[0]['box'])",
    "got = np.einsum('bi,bi->b', square, square)",
    "got = np.einsum('ij,jk->ik', square, square, optimize=True)",
    "got = np.linalg.inv(square)",
    "got, *_ = np.linalg.svd(square)",
    "got = np.fft.rfft(wave, n=4096)",
    "got = np.convolve(wave, wave[:9])",
)


def ran(text, tmp_path):
    """Return what is found at the slow line of a script, with the script."""
    lines = text.split("\n")
    line = next(number for number, each in enumerate(lines, 1) if each.endswith("# slow"))
    path, names = tmp_path / "train.py", {"__name__": "train"}
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    exec(compile(text, str(path), "exec"), names)
    trace = HostTrace([(str(path), line)])
    trace.start()
    for _ in range(2):
        names["step"]()
        trace.end_step()
    record = trace.stop()
    file = SourceLines(tmp_path).stored([(path.name, line)])["files"][path.name]
    functions = [(int(first), each) for first, each in file["texts"].items()]
    source = source_at(line, functions, {}, [Binding(*each) for each in file["bindings"]])
    calls = [found for each in record.calls if (found := gone_through(each, 2, source)) is not None and found.idiom]
    return next(iter(calls), None)


def script(body):
    return SCRIPT.replace("BODY", body if "# slow" in body else f"{body}  # slow")


@pytest.mark.parametrize("body", FOUND)
def test_a_costly_form_is_named_and_another_one_gives_the_same(body, tmp_path):
    text = script(body)
    found = ran(text, tmp_path)
    assert found is not None
    assert found.title.startswith(FOUND[body])
    assert 0 < found.idiom.least < 1
    if found.idiom.edits:
        before, after = {}, {}
        exec(text, before)
        exec(rewritten(text, found.idiom.edits), after)
        np.testing.assert_allclose(after["got"], before["got"], rtol=1e-6)


@pytest.mark.parametrize("body", ALIKE)
def test_a_call_that_does_what_its_result_needs_is_left_alone(body, tmp_path):
    assert ran(script(body), tmp_path) is None


def test_entries_have_texts_that_their_facts_fill_in():
    assert all(form.cause[0] == "{" and form.title[0].isupper() and not form.title.endswith(".") for form in FORMS)


def test_keys_in_the_order_of_a_table_are_told_from_others():
    from diagnose.capture.host.calls import form_of

    table = pd.DataFrame({"a": [2, 1, 2], "b": [0, 1, 1], "c": [5, 6, 7]})
    assert form_of(table.set_index("a")).order == "unsorted"
    assert form_of(table.set_index(["a", "b"])).order == "unsorted levels"
    assert form_of(table.set_index("a").sort_index().loc).order == form_of(table).order == ""
