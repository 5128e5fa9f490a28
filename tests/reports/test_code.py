"""The tables by phase, module and function: in the terminal, on the page, in the JSON."""

import json
from dataclasses import replace

import pytest
from rich.cells import cell_len

from diagnose.model.charts import CodeTime, CodeTimes
from diagnose.pipeline.code_times import PHASE_ORDER
from diagnose.reports import html, text
from diagnose.reports.code_tables import by_class
from diagnose.reports.json import render, schema, to_dict
from diagnose.reports.language import language, translated
from tests.reports.forms import MS
from tests.reports.test_html import Page


def section(d, width, first="Time by phase"):
    lines = text.render(d, width=width).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(first))
    end = next((i for i in range(start, len(lines)) if lines[i].startswith(("Predicted", "Limitations"))), len(lines))
    return "\n".join(lines[start:end]).rstrip()


NARROW = """\
Time by phase
              Host   Device   Share
  loading  8.00 ms        –  40.0 %
  forward  7.00 ms  3.00 ms  35.0 %
  other    5.00 ms  5.00 ms  25.0 %

Time by module  modules of one class together
           Calls     Host   Device   Share
  GPT        1 ×  7.00 ms  3.00 ms  35.0 %
    Block    2 ×  6.00 ms  2.40 ms  30.0 %

Time by function  of the script's own files
                            Calls     Host   Device    Share
  train.py:12 <module>          –  20.0 ms  8.00 ms  100.0 %
  train.py:31 coll…e_batch    1 ×  8.00 ms        –   40.0 %
  model.py:41 forward         1 ×  7.00 ms  3.00 ms   35.0 %"""


def test_the_terminal_has_the_columns_that_fit(forms):
    assert section(forms["gaps"], 60) == NARROW
    wide = section(forms["gaps"], 80)
    assert "Calls     Host     Self   Device  Backward   Share" in wide
    assert "GPT        1 ×  7.00 ms  1.00 ms  3.00 ms   4.00 ms  35.0 %" in wide


def test_every_width_holds_every_line(forms):
    long = CodeTime("/home/ada/project/trainer.py:1234 compute_the_loss_of_a_batch", 12345 * MS, 1.0, 98765 * MS, 4e6)
    for name in ("gaps", "no_gpu", "compiled"):
        d = replace(forms[name], code=forms[name].code._replace(functions=(long,) * 12))
        for width in (60, 80, 100):
            part = section(d, width, "Time by")
            assert max(map(cell_len, part.splitlines())) <= width
            assert part.count("trainer.py") == 8


def test_a_recording_without_stacks_says_so_in_one_sentence(forms):
    bare = replace(forms["gaps"], code=CodeTimes("none", 20 * MS))
    sentence = "This recording has no stacks, so there is no table by module or function"
    for shown in (text.render(bare), Page(html.render(bare)).text):
        assert sentence in shown
        assert "Time by" not in shown
    assert "functions are those that the sampler saw" in text.render(forms["no_gpu"])
    assert "Of the steps recorded with stacks, which take 40.0 ms each." in text.render(forms["compiled"])
    assert sentence not in text.render(forms["gaps"])


def test_a_diagnosis_read_from_a_report_has_neither_table_nor_sentence(forms):
    shown = replace(forms["gaps"], code=None)
    assert "stacks, so" not in text.render(shown)
    assert 'id="code"' not in html.render(shown)


def test_the_page_has_a_tree_of_modules_and_sortable_functions(forms):
    page = Page(html.render(forms["gaps"]))
    rows = [
        attributes for tag, attributes in page.tags if tag == "th" and (attributes.get("title") or "").startswith("GPT")
    ]
    assert [(row["title"], row["style"], row["scope"]) for row in rows] == [
        ("GPT_0", "padding-left: 0.0em", "row"), ("GPT_0.Block_0", "padding-left: 1.1em", "row"),
        ("GPT_0.Block_1", "padding-left: 1.1em", "row"),
    ]  # fmt: skip
    regions = [a for tag, a in page.tags if tag == "div" and (a.get("aria-labelledby") or "").startswith("code-")]
    assert [(a["aria-labelledby"], a["tabindex"], a["role"]) for a in regions] == [
        (f"code-{kind}", "0", "region") for kind in ("phase", "module", "function")
    ]
    assert page.ids() >= {"code", "code-phase", "code-module", "code-function"}
    assert "in GPT_0 Block_ 1" in page.text
    assert "train. py: 31 collate_ batch" in page.text


def test_the_json_has_every_number_and_null_for_what_is_not_known(forms):
    validator = pytest.importorskip("jsonschema", reason="the schema is checked with the package jsonschema")
    data = json.loads(render(forms["gaps"]))["code"]
    assert data.keys() == schema()["$defs"]["code"]["properties"].keys()
    assert data["modules"][1] == {
        "name": "GPT_0.Block_0", "depth": 1, "calls_per_step": 1.0, "host_ms": 3.0, "self_ms": 3.0, "device_ms": 1.2,
        "backward_ms": 1.0, "backward_device_ms": 2.0, "share": 0.15,
    }  # fmt: skip
    assert data["modules"][0].keys() == schema()["$defs"]["code_time"]["properties"].keys()
    sampled = to_dict(forms["no_gpu"])["code"]["functions"][0]
    assert (sampled["calls_per_step"], sampled["host_ms"], sampled["device_ms"]) == (None, None, None)
    wrong = to_dict(forms["gaps"]) | {"code": {**data, "source": "guessed"}}
    assert list(validator.Draft202012Validator(schema()).iter_errors(wrong))


def test_modules_of_one_class_are_added_up_and_the_longest_are_kept_below_what_they_are_in():
    def row(name, host):
        return CodeTime(name, 1.0, host / 100, host, 1.0, depth=name.count("."))

    rows = [row("A_0", 50), row("A_0.B_0", 30), row("A_0.B_0.C_0", 10), row("A_0.B_1", 20), row("A_0.B_1.C_1", 15),
            row("D_7", 40)]  # fmt: skip
    found = [(r.name, r.host_ns, r.calls, r.share) for r in by_class(rows, 8)]
    assert found == [("A", 50, 1, 0.5), ("A.B", 50, 2, 0.5), ("A.B.C", 25, 2, 0.25), ("D", 40, 1, 0.4)]
    assert [r.name for r in by_class(rows, 3)] == ["A", "A.B", "D"]


def test_every_phase_has_a_chinese_name_and_the_tables_fit(forms):
    with language("zh"):
        assert [name for name in PHASE_ORDER if translated(name).isascii()] in ([], ["loss"])
        lines = text.render(forms["gaps"], width=60).splitlines()
    start = lines.index("各阶段的时间")
    assert any("前向" in line for line in lines[start : start + 5])
    assert max(map(cell_len, lines[start : start + 20])) <= 60
