"""However a text is damaged, the bytes looked at stay within a multiple of its length; deep nesting costs one event."""

from __future__ import annotations

import json

import pytest

from diagnose.errors import InputError
from diagnose.trace_reader import events, lenient
from diagnose.trace_reader.events import Window
from diagnose.trace_reader.file import read_trace
from diagnose.trace_reader.lenient import salvage

GOOD = b'{"ph":"X","cat":"cpu_op","name":"good","pid":1,"tid":1,"ts":1,"dur":2}'
MB = 1 << 20
DEEP = "[" * 100_000 + "]" * 100_000


class Endless:
    """Delivers a piece of text again and again, and counts."""

    fault = ""

    def __init__(self, piece, limit):
        self.piece, self.limit, self.raw_bytes = piece, limit, 0

    def readinto(self, view):
        at = self.raw_bytes % len(self.piece)
        count = min(len(view), len(self.piece) - at, self.limit - self.raw_bytes)
        view[:count] = self.piece[at : at + count]
        self.raw_bytes += count
        return count


@pytest.fixture
def touched(monkeypatch):
    """Count the bytes that are decoded, and those that are searched for a cut."""
    counts = {"decoded": 0, "searched": 0}
    take, last_edge = events._Reader.take, Window.last_edge

    def counting_take(self, block, **options):
        counts["decoded"] += len(block)
        return take(self, block, **options)

    def counting_edge(self):
        counts["searched"] += len(self)
        return last_edge(self)

    monkeypatch.setattr(events._Reader, "take", counting_take)
    monkeypatch.setattr(Window, "last_edge", counting_edge)
    return counts


@pytest.mark.parametrize("start", [b"", b'{"ph":"X","name":"', b'{"ph":"X","args":{"a":[0'])
@pytest.mark.parametrize("piece", [b"{" * MB, b"x" * MB, b" " * MB])
def test_a_piece_without_an_event_is_read_to_a_limit_only(start, piece, touched, monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", MB)
    window = Window(source := Endless(piece, 100 * MB))
    window.replace(GOOD + b"," + start)
    rows = events.EventRows()
    ending = events.read_events(window, rows)
    assert (rows.count, ending.complete, ending.fault) == (1, False, "an event in it is longer than 1 MB")
    assert source.raw_bytes <= 4 * MB
    assert touched["searched"] <= 4 * source.raw_bytes
    assert touched["decoded"] <= 4 * source.raw_bytes


def test_an_event_that_never_ends_does_not_make_every_block_longer(touched, monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", MB)
    text = b'{"ph":"X","args":{"a":[' + b",".join([GOOD] * 60_000)
    window = Window(source := Endless(text, len(text)))
    rows = events.EventRows()
    ending = events.read_events(window, rows)
    assert rows.count > 59_990
    assert ending.num_skipped == 1
    assert touched["decoded"] <= 6 * source.raw_bytes


def test_damage_in_every_event_costs_a_multiple_of_its_length(monkeypatch):
    lengths = []
    decode = lenient._SCANNER.raw_decode
    monkeypatch.setattr(lenient._SCANNER, "raw_decode", lambda text: lengths.append(len(text)) or decode(text))
    found = salvage(b",".join([GOOD, b'{"ph":"X","ts":}'] * 500))
    assert (len(found.events), found.num_skipped) == (500, 499)  # the last one may go on
    assert len(lengths) <= 2001
    assert max(lengths) <= 4096


def test_events_in_events_are_not_tried_for_ever(monkeypatch):
    tried = []
    decode = lenient._SCANNER.raw_decode
    monkeypatch.setattr(lenient._SCANNER, "raw_decode", lambda text: tried.append(len(text)) or decode(text))
    salvage((b'{"id":[{"b":0},' * 200 + b"!") * 100)  # 20,000 places where an event might begin
    assert len(tried) < 10_000


@pytest.mark.parametrize("deep", [DEEP, '{"a":' * 3000 + "1" + "}" * 3000])
@pytest.mark.parametrize("odd", ["", '"ts": "12", "odd": nan, '])
def test_deep_nesting_costs_that_event_alone(read_text, deep, odd):
    event = (
        '{"ph":"X","cat":"cpu_op","name":"deep","pid":1,"tid":1,"ts":1,' + odd + '"dur":2,"args":{"x":' + deep + "}}"
    )
    trace = read_text(f"[{GOOD.decode()}, {event}, {GOOD.decode()}]")
    assert len(trace.events) == 2
    assert [note.text for note in trace.trust] == ["Could not be parsed and left out: 1 event."]


@pytest.mark.parametrize("key", ["Input Dims", "grid"])
def test_deep_nesting_in_what_is_read(read_text, key):
    for cat in ("cpu_op", "kernel"):
        event = {"ph": "X", "cat": cat, "name": "a", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {key: "DEEP"}}
        for depth, num in ((400, 2), (3000, 1)):
            text = json.dumps([json.loads(GOOD), event]).replace('"DEEP"', "[" * depth + "]" * depth)
            assert len(read_text(text).events) == num


def test_deep_nesting_around_the_events(read_text):
    for text in ('{"traceEvents": [%s], "a": %s}', '{"a": %s, "traceEvents": [%s]}'):
        parts = (GOOD.decode(), DEEP) if text.startswith('{"t') else (DEEP, GOOD.decode())
        assert len(read_text(text % parts).events) == 1
    with pytest.raises(InputError, match="not valid JSON"):
        read_text('{"a": ' + DEEP + "}")


@pytest.mark.parametrize("value", ["1" * 5000, '"' + "1" * 5000 + '"', "1e400", "[1e400]", "[null]", '{"a": 1}'])
@pytest.mark.parametrize("key", ["correlation", "stream", "device", "grid", "bytes", "Input Dims"])
def test_odd_arguments_cost_no_event(read_text, key, value):
    event = '{"ph":"X","cat":"kernel","name":"odd","pid":0,"tid":7,"ts":1,"dur":2,"args":{"%s":%s}}'
    trace = read_text("[" + event % (key, value) + "]")
    assert len(trace.events) == 1
    assert not trace.trust


@pytest.mark.parametrize("behind", ['{"traceEvents": []}', "garbage", "]"])
def test_what_stands_behind_the_end_is_named(read_text, behind):
    for text in (f"[{GOOD.decode()}]", f'{{"traceEvents": [{GOOD.decode()}]}}'):
        trace = read_text(text + behind)
        assert not trace.cut
        assert [note.text for note in trace.trust] == [
            "What follows the list of events is not JSON, or a second list, and was left out."
        ]


def test_a_second_list_is_named_and_padding_is_none(read_text):
    one = f'"traceEvents": [{GOOD.decode()}]'
    assert len(read_text(f"{{{one}, {one}}}").trust) == 1
    assert read_text(f"{{{one}}}\n" + "\0" * 4096).trust == ()


def test_nothing_before_the_first_event(read_text):
    trace = read_text(f"[null, {GOOD.decode()}, null]")
    assert [note.text for note in trace.trust] == ["Could not be parsed and left out: 2 events."]


def test_the_longest_event_is_longer_than_any_recorded():
    assert events.MAX_EVENT_BYTES >= 4 * MB


def test_reading_stops_where_too_much_is_unreadable(monkeypatch):
    monkeypatch.setattr(events, "MAX_UNREADABLE_EVENTS", 100)
    window = Window(source := Endless(b'{"ph":"X","ts":},' + GOOD + b",", 100 * MB))
    window.replace(GOOD + b",")
    rows = events.EventRows()
    ending = events.read_events(window, rows)
    assert rows.count > 0
    assert (ending.complete, ending.fault) == (False, "more than 100 events in it cannot be parsed")
    assert source.raw_bytes <= 4 * MB


def test_a_file_without_a_readable_event_names_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MAX_UNREADABLE_EVENTS", 1000)
    file = tmp_path / "t.json"
    file.write_bytes(b'{"traceEvents":[' + b'{"ph":"X","ts":},{"ph":"M"},' * 60_000 + GOOD + b"]}")
    with pytest.raises(InputError, match="no event that can be used: more than 1,000 events in it cannot be parsed"):
        read_trace(file)


def test_a_thread_that_holds_blocks_does_no_harm(tmp_path, monkeypatch):
    """A profiler such as Dask's looks at the frames of all threads, and keeps what they refer to for a while."""
    held, close = [], Window.close

    def holding_close(self, edge):
        held.append(close(self, edge))
        return held[-1]

    monkeypatch.setattr(Window, "close", holding_close)
    (tmp_path / "t.json").write_bytes(
        b"[" + b",".join([GOOD.replace(b'"ts":1', b'"ts":%d' % n) for n in range(9000)]) + b"]"
    )
    assert len(read_trace(tmp_path / "t.json").events) == 9000
    assert len(held) > 1


def test_what_another_thread_still_holds_of_a_block_stops_no_reading(monkeypatch):
    held, close = [], Window.close

    def holding(self, edge):
        held.append(close(self, edge))  # as a thread that samples frames does with their local variables
        return held[-1]

    monkeypatch.setattr(Window, "close", holding)
    long = GOOD.replace(b"good", b"x" * (2 * events.READ_BLOCK_BYTES))
    text = b",".join([GOOD] * 9000 + [long] + [GOOD] * 9000)
    rows = events.EventRows()
    events.read_events(Window(Endless(text, len(text))), rows)
    assert rows.count == 18_001
    assert len(held) >= 4
