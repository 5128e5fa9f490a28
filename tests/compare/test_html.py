"""The page of a comparison and of a gate: which answer stands at its top, and what changed below."""

import re

import pytest

from diagnose.compare.compare import compare
from diagnose.compare.gate import evaluate_gate
from diagnose.compare.html import as_html


def text_of(page: str) -> str:
    body = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body).replace("data- stall", "data-stall"))


@pytest.fixture
def slower(side):
    return compare(
        side(100.0, {"data-stall": 10.0}, runs_ms=(100.0, 101.0, 100.5, 100.2)),
        side(150.0, {"data-stall": 60.0}, runs_ms=(150.0, 151.0, 150.5, 150.2)),
    )


def test_before_and_after_stand_side_by_side(slower):
    text = text_of(as_html(slower))
    assert "Slower 1.50x slower: 100 ms → 150 ms" in text
    assert "1.50 ×" in text
    assert "computing 90.0 % data-stall 10.0 %" in text
    assert "computing 60.0 % data-stall 40.0 %" in text
    assert "data-stall 10.0 ms 60.0 ms +50.0 ms" in text


def test_a_gate_has_its_own_answer(slower):
    text = text_of(as_html(slower, evaluate_gate(slower)))
    assert "diagnose gate Failed 1.50x slower" in text
    assert "The step is more than 5 % slower than the baseline" in text


def test_names_stay_text(side):
    hostile = "</script><img src=x onerror=alert(1)>\x1b[31m"
    page = as_html(compare(side(100.0, {hostile: 10.0}), side(100.0)))
    assert "<img" not in page
    assert "\x1b" not in page


def test_parts_have_the_names_of_the_report(slower):
    from dataclasses import replace

    from diagnose.model.diagnosis import Partition

    d = replace(slower.after.diagnosis, partition=Partition(0.5, 0.1, 0.1, 0.3), idle_by_cause={"exposed-copy": 0.3})
    text = text_of(as_html(replace(slower, after=replace(slower.after, diagnosis=d))))
    assert "copies not overlapped 10.0 %" in text
    assert "exposed copy 10.0 %" not in text
