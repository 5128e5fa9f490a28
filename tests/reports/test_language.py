"""Reports in Chinese: one catalogue keyed by the English text, complete but for new rules; the JSON is English."""

import ast
import json
import re
from dataclasses import replace
from importlib import import_module, resources
from pathlib import Path

import pytest
from jinja2 import Environment
from jinja2.ext import extract_from_ast
from rich.cells import cell_len

from diagnose.analyzers import LEGENDS, OUTSIDE, WORK
from diagnose.answer.screen import _PILLS as VERDICTS
from diagnose.answer.screen import answer
from diagnose.changes import CHANGES
from diagnose.compare.html import _GATES, _PILLS
from diagnose.model.limits import HOW_TRIED
from diagnose.reports import html, text
from diagnose.reports import json as json_report
from diagnose.reports.charts import TONES
from diagnose.reports.format import said
from diagnose.reports.html import texts_of_script
from diagnose.reports.language import language, read_catalogue, tr, translated
from diagnose.reports.rule_labels import PARTS, PATH, PHASES, TABULAR, TERMS
from diagnose.reports.timeline_data import NOTES
from tests.reports.test_html import Page

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "reports" / "templates"
CATALOGUE = read_catalogue((TEMPLATES / "zh.po").read_text(encoding="utf-8"))
PLACEHOLDER = re.compile(r"\{(\w+)(?:!t)?\}")
MIN_TRANSLATED = 0.97  # of the texts of rules and changes: a new one is shown in English until somebody translates it
SAME = {".", "Rank", "TFLOP/s", "GB/s", "Roofline", "rank", "loss", "diff"}


@pytest.fixture
def chinese():
    with language("zh"):
        yield


@pytest.fixture
def translations(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("translations")


def texts_of_python(folder: str) -> set[str]:
    """Return the texts that ``tr``, ``plural``, ``Words`` and ``Count`` are given there, also by variables."""
    found = set()
    for file in sorted((ROOT / folder).glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            names: set[str] = set()
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                name = getattr(call.func, "id", "")
                at = {"tr": 0, "Words": 0, "plural": 1, "Count": 1}.get(name, -1)
                if 0 <= at < len(call.args):
                    names |= {node.id for node in one_of(call.args[at]) if isinstance(node, ast.Name)}
                    found |= {f"{{num}} {text}" if at else text for text in constants(call.args[at])}
            for given in (node for node in ast.walk(function) if isinstance(node, ast.Assign)):
                found |= {t for name, value in assigned(given) if name in names for t in constants(value)}
    return {text for text in found if PLACEHOLDER.sub("", text)}


def one_of(node: ast.expr) -> list[ast.expr]:
    """Return the expressions that a condition chooses from."""
    return [*one_of(node.body), *one_of(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def constants(node: ast.expr) -> set[str]:
    return {n.value for n in one_of(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def assigned(node: ast.Assign) -> list[tuple[str, ast.expr]]:
    """Return names and values, those of tuples one by one."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [(getattr(t, "id", ""), v) for t, v in zip(target.elts, value.elts, strict=True)]
    return [(getattr(target, "id", ""), value)]


def texts_of_templates() -> set[str]:
    found = set()
    for file in sorted(TEMPLATES.glob("*.html")):
        source = file.read_text(encoding="utf-8")
        for _line, _function, given in extract_from_ast(Environment().parse(source), ("_", "keys")):
            found.add(given if isinstance(given, str) else given[0])
        found |= {f"{{num}} {noun}" for noun in re.findall(r'plural\("([^"]+)"\)', source)}
    return found


def test_every_text_of_pages_reports_and_scripts_is_translated():
    scripts = {t for file in TEMPLATES.glob("*.js") for t in texts_of_script(file.read_text(encoding="utf-8"))}
    shown = texts_of_templates() | scripts
    for folder in ("diagnose/answer", "reports", "diagnose/compare"):
        shown |= texts_of_python(folder)
    assert len(shown) > 450
    assert sorted(shown - CATALOGUE.keys()) == []


def test_every_label_of_parts_and_verdicts_is_translated():
    own = (LEGENDS[WORK], LEGENDS[OUTSIDE])
    legends = [*own, *PARTS.values(), *PHASES.values()]
    labels = {text for legend in legends for text in (legend.label, legend.heading, legend.meaning)}
    names = {*PARTS, *PHASES, *PATH, *TERMS, *TERMS.values(), *(label for label, *_ in TONES.values()), *NOTES.values()}
    pills = {text for pill in VERDICTS.values() for text in pill[:2]} | {
        pill for pill, _ in (*_PILLS.values(), *_GATES.values())
    }
    known = {name.replace("_", " ") for name in names} | names
    wanted = {
        t for t in labels | pills | set(TABULAR.values()) | (known & CATALOGUE.keys()) | set(TERMS.values()) if t
    } | set(HOW_TRIED.values())
    assert sorted(wanted - CATALOGUE.keys()) == []


def test_nearly_every_text_of_rules_and_changes_is_translated(translations):
    texts, lacking = translations.texts(), translations.untranslated()
    assert len(texts) > 330
    assert lacking.keys() <= texts.keys()
    assert len(lacking) <= (1 - MIN_TRANSLATED) * len(texts), lacking


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("Load batches in worker processes, ahead of the step", "title in diagnose/changes/load_in_workers.py"),
        ("Load batches in 7 worker process7, ahead of the step", "title in diagnose/changes/load_in_workers.py"),
        ("Matrix products run in float32, slower than on tensor cores", "title in analyzers/full_precision_matmul.py"),
        ("The CPU synchronizes with the GPU, which then idles", "title in analyzers/host_sync.py"),
        (CHANGES["allow-tf32"].numerics.safety, "what change allow-tf32 does to the numbers"),
        (LEGENDS["data-stall"].label, "legend of rule data-stall"),
    ],
)
def test_the_texts_of_rules_and_changes_are_found_where_they_stand(translations, text, of):
    assert translations.texts()[text] == of


def test_a_text_without_a_translation_is_named_and_shown_in_english(translations, monkeypatch, capsys, chinese):
    monkeypatch.setattr(
        translations, "texts", lambda: {"Use brand new things": "title in new.py", "Step now": "a column"}
    )
    assert translated("Use brand new things") == "Use brand new things"
    assert translations.main() == 1
    printed = capsys.readouterr()
    assert printed.out == "title in new.py: Use brand new things\n"
    assert printed.err == "1 of 2 texts of rules and changes are not translated\n"


def test_a_translation_has_the_placeholders_of_its_text():
    for english, chinese_text in CATALOGUE.items():
        assert set(PLACEHOLDER.findall(chinese_text)) <= set(PLACEHOLDER.findall(english)), english
        missing = set(PLACEHOLDER.findall(english)) - set(PLACEHOLDER.findall(chinese_text))
        assert missing <= {"s", "there", "what", "condition"}, english
        assert re.search("[\u4e00-\u9fff（。、：]", chinese_text) or chinese_text in SAME or "{num}" in chinese_text, (
            english
        )
        assert not re.search(r"[<>&]", english + chinese_text), english  # pages take the texts as they are


@pytest.mark.parametrize(
    ("english", "shown"),
    [
        ("Load batches in 2 worker processes, ahead of the step", "用 2 个 worker 进程提前加载批次"),
        ("Load batches in 1 worker process, ahead of the step", "用 1 个 worker 进程提前加载批次"),
        ("may change the numbers: fused kernels round differently; compare the outputs",
         "可能改变数值：融合的核函数舍入不同；请比较输出"),
        ("1 step in 3 is much longer: it saves a checkpoint", "每 3 步中有 1 步明显更长：在保存检查点"),
        ("2 launches a step; 100 % of the device tasks were launched onto an empty device.",
         "每步启动 2 次；100 % 的设备任务启动时设备为空。"),
        ("Memory is full: 2 allocations had to empty the cache first", "显存已满：2 次分配不得不先清空缓存"),
        ("Keep AdamW's moments in 8 bits (up to 0.04 GB less at the peak: fits at batch 37)",
         "以 8 位保存 AdamW 的动量（峰值最多减少 0.04 GB：批大小 37 可放下）"),
        ("Use more (up to 0.06 GB less at the peak: fits at batch 39, costs 4.23 ms to 9.52 ms a step)",
         "Use more（峰值最多减少 0.06 GB：批大小 39 可放下，每步多花 4.23 ms 至 9.52 ms）"),
        ("a text of a plug-in's own", "a text of a plug-in's own"),
        ("Stacks were not recorded in the timing window. Unknown words.", "计时窗口内没有录制调用栈。Unknown words."),
    ],
)  # fmt: skip
def test_finished_sentences_are_recognised_whatever_stands_in_them(chinese, english, shown):
    assert translated(english) == shown


def test_english_is_shown_where_no_language_was_chosen():
    assert tr("Step now") == "Step now"
    assert translated("The CPU synchronizes with the GPU, which then idles") == (
        "The CPU synchronizes with the GPU, which then idles"
    )
    assert '<html lang="en">' in html.render(replace_nothing())


def replace_nothing():
    from tests.reports.forms import healthy

    return replace(healthy(), legends=LEGENDS)


def test_a_page_and_a_text_have_the_same_answer_in_chinese(chinese, any_form):
    page = html.render(any_form)
    assert '<html lang="zh-Hans">' in page
    pill = said(answer(any_form).pill)
    assert not pill.isascii()
    assert pill in page
    assert pill in text.render(any_form)


@pytest.mark.parametrize("width", [80, 100])
def test_chinese_lines_fit_the_terminal(chinese, any_form, width):
    assert max(cell_len(line) for line in text.render(any_form, width=width).splitlines()) <= width


def test_the_json_is_the_same_in_every_language(forms):
    english = json_report.render(forms["trials"])
    page = Page(html.render(forms["trials"])).data()
    with language("zh"):
        chinese_page = Page(html.render(forms["trials"])).data()
    assert json.loads(english) == page["diagnosis"] == chinese_page["diagnosis"]
    assert "words" not in page
    assert chinese_page["words"]["{num} of {total}"] == "{num} / {total}"


def test_the_catalogue_is_read_as_gettext_writes_it():
    header, entry, left = (
        'msgid ""\nmsgstr "Language: zh\\n"',
        'msgid ""\n"one "\n"text"\nmsgstr "一"',
        'msgid "left"\nmsgstr ""',
    )
    found = read_catalogue(f"{header}\n\n# a note\n{entry}\n\n{left}\n")
    assert found == {"one text": "一"}
    assert resources.files("diagnose.reports").joinpath("templates").joinpath("zh.po").is_file()


def test_what_is_counted_in_all_has_the_words_of_what_is_counted_each_step(chinese):
    assert translated("They move 4.20 MB per step at 3.0 GB/s.") == "每步移动 4.20 MB，速率 3.0 GB/s。"
    assert translated("They move 4.20 MB in all at 3.0 GB/s.") == "合计移动 4.20 MB，速率 3.0 GB/s。"
