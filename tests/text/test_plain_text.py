"""Text of others, made harmless: what could steer a terminal or hide in a line is shown instead."""

import os

import pytest

from diagnose.text.plain_text import MAX_LINE, clean, columns, in_encoding, middle, one_line

UNSAFE = [
    *range(0x00, 0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0),  # C0, DEL, C1: 0x1B is ESC, 0x9B is CSI
    0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A),  # direction of writing
    0x00AD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xE0041,  # without width
    0x2028, 0x2029, 0xD800, 0xDC80, 0xDFFF,  # separators of lines, halves of pairs
]  # fmt: skip


@pytest.mark.parametrize("code", UNSAFE, ids=hex)
def test_what_is_unsafe_becomes_an_escape(code):
    shown = clean(f"a{chr(code)}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert shown.isprintable()
    assert one_line(f"a{chr(code)}b") == shown


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("plain", "plain"), ("größe 尺寸", "größe 尺寸"), ("a\x1b[31mb", r"a\x1b[31mb"), ("a\u202eb", r"a\u202eb"),
        ("\U000e0041", r"\U000e0041"), ("\ud800", r"\ud800"), ("a\rb\r\nc", "a\nb\nc"), ("a\tb", "a   b"), ("", ""),
    ],
)  # fmt: skip
def test_clean_keeps_line_ends(text, harmless):
    assert clean(text) == harmless


@pytest.mark.parametrize(
    ("text", "line"), [("a\nb", "a b"), ("  a\n\n  b\r\n", "a b"), ("a\u2028b", r"a\u2028b"), ("  kept ", "  kept ")]
)
def test_one_line_has_no_line_ends(text, line):
    assert one_line(text) == line


def test_long_lines_are_cut_in_their_middle():
    assert clean("x" * MAX_LINE) == "x" * MAX_LINE
    cut = clean(f"a\n{'x' * 10_000}y")
    assert len(cut) == 2 + MAX_LINE
    assert "…" in cut
    assert cut.endswith("xy")
    assert len(one_line("ab\n" * 5_000)) == MAX_LINE
    assert middle("abcdefghij", 5) == "abc…j"


@pytest.mark.parametrize(("given", "width"), [("40", 60), ("72", 72), ("200", 100), ("", 100)])
def test_the_width_is_that_of_the_environment_within_bounds(monkeypatch, given, width):
    monkeypatch.setenv("COLUMNS", given)
    monkeypatch.setattr("os.get_terminal_size", lambda _file: os.terminal_size((100, 24)))
    assert columns() == width


def test_what_an_encoding_lacks_is_drawn_in_as_many_characters_of_ascii():
    text = "1.5 µs × 3 │███▓▒░·▁▄▇│ −2 …\u00a0naïve"
    assert in_encoding(text, "utf-8") == text
    assert in_encoding(text, "ascii") == "1.5 us x 3 |###=-.,_-*| -2 ~ na?ve"
    assert len(in_encoding(text, None)) == len(text)
    assert "ï" in in_encoding(text, "latin-1")
