"""The parts of the site that scripts make: links, pages of rules and changes, pictures, the tutorial."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from diagnose.model.charts import Gap, Picture, Span
from diagnose.model.rules import Legend

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))


def load(name):
    spec = importlib.util.spec_from_file_location(f"documentation_of_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def rewritten(markdown, file):
    from documentation.links import Site, rewrite

    site = Site(frozenset({"data-stall"}), frozenset({"load-in-workers"}))
    return rewrite(markdown, file, site), site.sources


@pytest.mark.parametrize(
    ("link", "file", "expected"),
    [
        ("docs/cookbook.md#from-python", "README.md", "cookbook.md#from-python"),
        ("docs/rules.md#data-stall", "README.md", "rules/data-stall.md"),
        ("CONTRIBUTING.md", "README.md", "contributing.md"),
        ("../CONTRIBUTING.md", "docs/report.md", "contributing.md"),
        ("rules.md#what-a-busy-device-wastes", "docs/report.md", "rules.md#what-a-busy-device-wastes"),
        ("#load-in-workers", "docs/changes.md", "changes/load-in-workers.md"),
        ("#modules", "docs/changes.md", "#modules"),
        ("../analyzers", "docs/rules.md", "rules.md"),
        ("report.png", "docs/report.md", "report.png"),
        ("https://example.org/a.md", "docs/report.md", "https://example.org/a.md"),
    ],
)
def test_a_link_leads_to_where_the_site_has_its_target(link, file, expected):
    text, sources = rewritten(f"see [this]({link}).", file)
    if expected == "rules.md" and file == "docs/rules.md":
        expected = ""  # the page itself
    assert text == f"see [this]({expected})."
    assert not sources


def test_a_source_that_is_linked_gets_a_page():
    text, sources = rewritten("[schema](../reports/diagnosis.schema.json)", "docs/json.md")
    assert text == "[schema](source/reports/diagnosis.schema.json.md)"
    assert sources == {"reports/diagnosis.schema.json"}


def test_code_keeps_what_looks_like_a_link():
    page = "```python\nsteps[0](docs/report.md)\n```\n\n    a[1](docs/report.md)\n"
    assert rewritten(page, "README.md")[0] == page


def test_a_link_to_nothing_is_an_error():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        rewritten("[x](../nowhere)", "docs/json.md")


def test_a_page_of_a_rule_is_what_explain_prints_with_links():
    from documentation.object_pages import change_pages, rules_pages

    page = rules_pages()["data-stall"]
    assert page.startswith("# data-stall\n\n**The device waits for the next batch.**\n")
    assert [line for line in page.split("\n") if line.startswith("## ")][:4] == [
        "## What it looks for",
        "## Why it costs",
        "## What to do",
        "## How sure",
    ]
    assert "- [load-in-workers](../changes/load-in-workers.md): Load batches" in page
    assert "(../rules/data-stall.md)" in change_pages()["load-in-workers"]


def test_nested_lists_are_indented_for_python_markdown():
    from documentation.hooks import _for_python_markdown

    assert _for_python_markdown("1. a\n   - b\n\ntext\n   - c") == "1. a\n    - b\n\ntext\n   - c"


def test_a_picture_draws_what_lies_within_half_a_unit_once():
    from documentation.step_picture import draw

    spans = tuple(Span("GPU 0", i * 10, i * 10 + 9, "k", "compute") for i in range(100_000))
    picture = Picture(
        step=1,
        step_ns=1_000_000,
        spans=spans,
        gaps=(Gap(500_000, 1_000_000, "data-stall", ""),),
        depth=((0, 1), (500_000, 0)),
    )
    text = draw(picture, {"data-stall": Legend("the step waited", "#f2811d")}, "A & B")
    assert "A &amp; B" in text
    assert "data-stall: the step waited" in text
    assert "prefers-color-scheme:dark" in text
    assert len(text) < 3_000


def test_the_picture_of_the_data_flow_shows_the_result_and_its_use():
    from documentation.flow_picture import draw_flow, small_flow

    text = draw_flow(small_flow())
    assert text == (SCRIPTS.parent / "docs" / "pictures" / "dataflow.svg").read_text(encoding="utf-8")
    assert text.index("← the result") < text.index("← its use")
    assert "small_step.py:20 · overlap = F.normalize(classes) @ F.normalize(classes).T" in text


def test_the_pages_of_the_tutorial_are_those_of_their_texts():
    tutorial = load("tutorial")
    for edition in tutorial.EDITIONS.values():
        assert list(tutorial.page_faults(edition)) == []
        shown = tutorial.SHOWN.findall(edition.page.read_text(encoding="utf-8"))
        assert len(shown) == len(tutorial.commands(edition))


def test_the_tutorial_has_the_same_commands_in_chinese():
    tutorial = load("tutorial")
    english, chinese = ([command.line for command in tutorial.commands(e)] for e in tutorial.EDITIONS.values())
    assert chinese == english


def test_the_readme_has_the_same_commands_and_figures_in_chinese():
    texts = [(SCRIPTS.parent / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    typed = [re.sub(r" *#.*|--lang zh ", "", text) for text in texts]
    english, chinese = (re.findall("^    ((?:diagnose|pip) .+)$", text, re.M) for text in typed)
    assert chinese == english
    printed = [re.search("^```\n(.*?)^```$", text, re.M | re.S)[1] for text in texts]
    english, chinese = (sorted(re.findall(r"\d[\d.]*|[\w.]+\.py", text)) for text in printed)
    assert chinese == english
    english, chinese = (set(re.findall(r"\]\((docs/[\w/-]+\.md)", text)) for text in texts)
    assert english - chinese == {"docs/tutorial.md"}


def test_what_is_shown_of_an_output_begins_and_ends_where_the_text_has_it():
    tutorial = load("tutorial")
    command = tutorial._command("diagnose x\nexpect: b  c\nfrom: b\nuntil: d\n")
    assert command.shown("a\nb\nc\n\nd\ne\n") == "…\nb\nc\n…"
    assert command.missing("a\nb\nc") == []
    assert command.missing("a") == ["b  c"]


@pytest.mark.full
def test_the_commands_of_the_tutorial_print_what_it_states():
    tutorial = load("tutorial")
    assert list(tutorial.run(tutorial.EDITIONS["en"], write=False)) == []


@pytest.mark.full
def test_pictures_are_up_to_date(recorded, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pictures", "--check"])
    assert load("pictures").main() == 0


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("Trace it N times.  [default: 3]  [1<=x<=100]", "Trace it N times. [default: 3]"),
        ("Sum up every N steps.  [default: 50; x>=2]", "Sum up every N steps. [default: 50]"),
        ("Most runs.  [x>=1]", "Most runs."),
        ("Read every S seconds.  [default: 1.0]", "Read every S seconds. [default: 1.0]"),
    ],
)
def test_a_range_of_numbers_leaves_no_brackets_in_a_table(text, cell):
    assert load("commands")._cell(text) == cell
