"""Predictions on a terminal: numbers are whole at every width and in every encoding."""

import re
from dataclasses import replace

import pytest

from diagnose.model.forecast import Forecast, Waterfall
from diagnose.reports.text import render
from diagnose.text.plain_text import in_encoding


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(("width", "bars"), [(60, 10), (100, 30)])
def test_predictions_are_whole_numbers_at_every_width(forms, encoding, width, bars):
    ids = ("load-in-workers", "hierarchical-exchange-of-all-gradients")
    chain = [Forecast((), "now", 1.134e9, 1.134e9, 1.134e9), Forecast(ids[:1], "", 656e6, 111e6, 888e6)]
    d = replace(forms["gaps"], waterfall=Waterfall(tuple(chain), "compute", {}))
    lines = predictions(in_encoding(render(d, width=width), encoding))
    assert [line.split()[:2] for line in lines] == [["1.13", "s"], ["656", "ms"]]
    assert lines[1].endswith("  with load-in-workers  111 ms to 888 ms")
    assert len(lines[0].split()[2]) == bars
    chain.append(Forecast(ids, "", 232.4e6, 19.8e6, 444e6))
    d = replace(d, waterfall=Waterfall(tuple(chain), "compute", {}))
    lines = predictions(in_encoding(render(d, width=width), encoding))
    assert [line.split()[:2] for line in lines] == [["1.13", "s"], ["656", "ms"], ["232", "ms"]]
    assert lines[1].endswith("  111 ms to 888 ms")
    assert lines[2].endswith("  19.8 ms to 444 ms")


def predictions(text):
    """Return the lines of the predictions that begin with a time."""
    after = text.split("Predicted step time after each change")[1].split("then it is bound by")[0]
    return [line for line in after.split("\n") if re.match(r" +[\d.]+ (m?s)\b", line)]
