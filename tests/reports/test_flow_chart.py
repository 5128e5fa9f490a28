"""The picture of a data flow as SVG and as a list."""

from diagnose.reports.charts import legible
from diagnose.reports.flow_chart import flow_chart, flow_rows, flow_title
from tests.reports.flow_forms import flow_of_rule

COLOUR = "#c0703a"


def test_named_operators_and_the_values_that_they_make_have_the_colour_of_the_finding():
    drawn = str(flow_chart(flow_of_rule("dead-work"), COLOUR).render())
    assert drawn.count(f'fill="{legible(COLOUR)}" opacity="0.85"') == 2  # std and lt
    assert drawn.count(f'stroke="{legible(COLOUR)}"') == 1  # what lt reads of std
    assert drawn.count('stroke="#76879c"') == 1  # what std reads of mm
    for text in ("3 operators left out", "12 operators left out", "22 operators left out", "← no operator reads it"):
        assert drawn.count(text) == 1
    assert drawn.count("train.py:9 · metric = (h.std() &lt; 1)</text>") == 1  # one heading for both operators


def test_the_list_has_what_the_picture_has():
    assert flow_rows(flow_of_rule("dead-work")) == [
        "mm (train.py:7 · h = self.head(x)), reads head.weight + input, makes 64×10 float32, 40.0 %",
        "std (train.py:9 · metric = (h.std() < 1)), reads operator 1, makes float32, 20.0 %, named by the finding",
        "lt (train.py:9 · metric = (h.std() < 1)), reads operator 2, makes bool, 10.0 %, named by the finding, "
        "no operator reads it",
    ]


def test_a_part_that_is_not_drawn_is_counted():
    picture = flow_of_rule("dead-work")
    assert flow_title(picture) == "The finding names 2 of the step's 40 operators, 30.0 % of the operator time."
    assert flow_title(picture._replace(num_named=30)).endswith("2 of them are drawn.")
