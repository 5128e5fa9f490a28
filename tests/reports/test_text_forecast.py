"""Predictions on a terminal: numbers are whole at every width and in every encoding."""

import re
from dataclasses import replace

import pytest

from diagnose.model.diagnosis import Forecast, Waterfall
from diagnose.reports.text import render
from diagnose.text.plain_text import in_encoding


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(("width", "bars"), [(60, 10), (100, 30)])
def test_predictions_are_whole_numbers_at_every_width(forms, encoding, width, bars):
    ids = ("load-in-workers", "hierarchical-exchange-of-all-gradients")
    chain = [Forecast((), "now", 1.134e9, 1.134e9, 1.134e9), Forecast(ids[:1], "", 656e6, 222e6, 888e6)]
    d = replace(forms["gaps"], waterfall=Waterfall(tuple(chain), "compute", {}))
    lines = predictions(in_encoding(render(d, width=width), encoding))
    assert [line.split()[:2] for line in lines] == [["1.13", "s"], ["656", "ms"]]
    assert lines[1].endswith("  with load-in-workers  222 ms to 888 ms")
    assert len(lines[0].split()[2]) == bars
    chain.append(Forecast(ids, "", 232.4e6, 121e6, 444e6))
    d = replace(d, waterfall=Waterfall(tuple(chain), "compute", {}))
    lines = predictions(in_encoding(render(d, width=width), encoding))
    assert [line.split()[:2] for line in lines] == [["1.13", "s"], ["656", "ms"], ["232", "ms"]]
    assert lines[1].endswith("  222 ms to 888 ms")
    assert lines[2].endswith("  121 ms to 444 ms")


@pytest.mark.parametrize(("low", "is_stated"), [(222e6, True), (221e6, False)])
def test_a_step_between_ends_that_are_four_times_apart_has_no_number_and_no_bar(forms, low, is_stated):
    chain = (Forecast((), "now", 1e9, 1e9, 1e9), Forecast(("load-in-workers",), "", 656e6, low, 888e6))
    text = render(replace(forms["gaps"], waterfall=Waterfall(chain, "compute", {})))
    line = next(line for line in text.splitlines() if line.endswith(" ms to 888 ms") and "with load" in line)
    assert line.split()[0] == ("656" if is_stated else "–")
    assert ("█" in line) == is_stated


def predictions(text):
    """Return the lines of the predictions that begin with a time."""
    after = text.split("Predicted step time after each change")[1].split("then it is bound by")[0]
    return [line for line in after.split("\n") if re.match(r" +[\d.]+ (m?s)\b", line)]
