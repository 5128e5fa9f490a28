"""The colours of a report: one palette for the page and the terminal, in which neighbours can be told apart."""

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from diagnose.model.rules import Legend
from diagnose.reports.charts import legible
from diagnose.reports.html import render as page
from diagnose.reports.rule_labels import PALETTE, PARTS, coloured, part_colours
from diagnose.reports.text import render as text

NEAR = 0.09  # in OKLab: the two blues that a reader took for one lie 0.08 apart
TO_CONES = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
TO_LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip


def apart(one: str, other: str) -> float:
    """Return the distance of two colours in OKLab."""

    def lab(colour):
        channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return TO_LAB @ np.cbrt(TO_CONES @ linear)

    return float(np.linalg.norm(lab(one) - lab(other)))


def test_every_two_colours_of_the_palette_can_be_told_apart():
    colours = [*map(legible, PALETTE), legible(PARTS["compute"].colour), legible(PARTS["idle"].colour)]
    assert {pair: apart(*pair) for pair in combinations(colours, 2) if apart(*pair) < NEAR} == {}
    assert apart("#5b7fa6", "#44688f") < NEAR


def test_causes_have_colours_in_the_order_of_their_shares_the_answering_one_first(forms):
    d = forms["gaps"]
    assert d.dominant == "data-stall"
    shares = {"host-sync": 0.3, "kernel-latency": 0.1, "data-stall": 0.2}
    legends = coloured(replace(d, idle_by_cause=shares)).legends
    assert [legends[c].colour for c in ("data-stall", "host-sync", "kernel-latency")] == list(PALETTE[:3])
    assert legends["operators"].colour == d.legends["operators"].colour  # one that is set stays


def test_page_and_terminal_show_a_cause_in_the_same_colour(forms):
    d = forms["gaps"]
    legends = coloured(d).legends
    first, second = (legends[cause].colour for cause in ("data-stall", "host-sync"))
    shown = page(d, charts=False)
    assert f'style="--tone: {legible(first)}"' in shown
    assert f'style="--tone: {legible(second)}"' in shown
    letters = re.findall(r"\x1b\[38;5;(\d+)m  ([ab])", text(d, colour=True))
    assert [letter for _, letter in letters] == ["a", "b"]
    assert letters[0][0] != letters[1][0]


@pytest.mark.parametrize("families", [("gemm", "copy kernels", "elementwise", "optimizer", "attention")])
def test_neighbours_in_the_bar_of_the_step_can_be_told_apart(forms, families):
    parts = [*((name, 0.15) for name in families), ("communication not overlapped", 0.1), ("idle", 0.15)]
    colours = [*map(legible, part_colours(forms["gaps"], parts))]
    assert len(set(colours)) == len(parts)
    assert min(apart(*pair) for pair in combinations(colours, 2)) > NEAR - 0.02
    assert min(map(apart, colours, colours[1:])) > NEAR


def test_a_cause_in_the_bar_has_its_own_colour(forms):
    d = replace(forms["gaps"], legends={"data-stall": Legend("the step waited for its next batch")})
    assert part_colours(coloured(d), [("the step waited for its next batch", 1.0)]) == [PALETTE[0]]
