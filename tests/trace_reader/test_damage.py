"""Cut, broken and foreign files: the prefix is salvaged, or one sentence says what is wrong."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diagnose.errors import InputError, NotATraceError
from diagnose.model.events import Trace
from diagnose.trace_reader import read_trace

ReadText = Callable[[bytes], Trace]


def op(number: int) -> dict[str, Any]:
    # The name holds what separates events, and an argument holds objects in a list.
    args = {"External id": number, "Input Dims": [[2, 3]], "odd": [{"a": 1}, {"name": '}, {"ph"'}]}
    name = 'aten::odd }, {"ph": "X", "name": ]} \\ "'
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * number, "dur": 4, "args": args}


NUM = 5
KEYS = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "with_stack": 1}
LAYOUTS = {
    "minified": json.dumps(
        {**KEYS, "traceEvents": [op(n) for n in range(NUM)], "traceName": "x"}, separators=(",", ":")
    ),
    "indented": json.dumps({**KEYS, "traceEvents": [op(n) for n in range(NUM)], "traceName": "x"}, indent=2),
    "keys behind": json.dumps({"traceEvents": [op(n) for n in range(NUM)], **KEYS}),
    "list": json.dumps([op(n) for n in range(NUM)]),
}


def salvaged(read_text: ReadText, text: bytes) -> Trace | None:
    """Return the cut trace, None where it ends before its first event."""
    try:
        trace = read_text(text)
    except InputError as error:
        if any(reason in str(error) for reason in ("before its first event", "not valid JSON", "stop early")):
            return None
        raise
    assert trace.cut
    return trace


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_text_cut_anywhere_gives_the_events_before_the_cut(read_text, layout, every):
    text = LAYOUTS[layout].encode()
    full = read_text(text)
    assert (len(full.events), full.cut, full.trust) == (NUM, False, ())
    counts = []
    for length in sorted(range(len(text) - 1, 0, -every)):
        trace = salvaged(read_text, text[:length])
        counts.append(len(trace.events) if trace else 0)
        if trace:
            assert trace.events.start.tolist() == full.events.start[: counts[-1]].tolist()
            assert trace.names == full.names
    assert counts == sorted(counts)
    assert set(counts) == set(range(NUM + 1))


def test_a_gzip_cut_anywhere_gives_the_events_before_the_cut(read_text):
    rng = np.random.default_rng(5)
    events = [{**op(n), "name": rng.bytes(20).hex()} for n in range(300)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    counts = []
    for length in range(20, len(packed) - 8, 97):
        trace = salvaged(read_text, packed[:length])
        counts.append(len(trace.events) if trace else 0)
        if trace:
            assert trace.trust[0].text.startswith("The file is cut off (its compressed data stop early)")
    assert counts == sorted(counts)
    assert counts[-1] > 250


def test_the_note_counts_what_was_read(read_text):
    text = LAYOUTS["minified"]
    trace = read_text(text[: text.rindex('{"ph"') - 1])
    assert [note.text for note in trace.trust] == [
        "The file is cut off: 4 events read, the end of the trace is missing."
    ]


def test_keys_behind_the_events_may_be_cut(read_text):
    trace = read_text('{"traceEvents": [' + json.dumps(op(1)) + '], "baseTimeNanoseconds": 17')
    assert trace.cut
    assert trace.epoch_ns == 0


def test_a_cut_between_blocks(read_text):
    text = json.dumps({"traceEvents": [op(n) for n in range(5000)]}).encode()
    assert len(text) > 3 << 18
    trace = read_text(text[:-20_000])
    assert trace.cut
    assert 4850 < len(trace.events) < 5000


def test_an_event_longer_than_many_blocks(read_text):
    long = {**op(2), "args": {"Call stack": "x" * (1 << 20)}}
    trace = read_text(json.dumps([op(1), long, op(3)]))
    assert len(trace.events) == 3
    assert len(trace.names[trace.events.detail[1]]) == 1 << 20


GOOD = '{"ph": "X", "cat": "cpu_op", "name": "good", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {}}'
ODD = '{"ph": "X", "cat": "gpu_memcpy", "pid": 0, "tid": 7, "ts": 3, "dur": 1, '


@pytest.mark.parametrize(
    "odd",
    [
        ODD + '"name": "a", "args": {"blocks per SM": nan}}',
        ODD + '"name": "a", "args": {"x": -inf, "y": [inf]}}',
        ODD + r'"name": "C:\Users\new \" \\ "}',
        ODD + '"name": "tab\there"}',
        ODD + '"name": 5}',
        ODD + '"name": null, "args": null}',
        ODD.replace('"dur": 1', '"dur": null') + '"name": "a"}',
        ODD.replace('"tid": 7', '"tid": null').replace('"pid": 0', '"pid": 1.5') + '"name": "a"}',
        ODD + '"name": "a", "args": {"correlation": 5.5}}',
        ODD + '"name": "a", "args": {"bytes": "many"}}',
    ],
)
def test_an_odd_event_does_not_cost_its_neighbours(read_text, odd):
    trace = read_text('{"traceEvents": [' + ", ".join([GOOD, odd, GOOD.replace('"ts": 1', '"ts": 9')]) + "]}")
    assert trace.events.start.tolist() == [0, 2000, 8000]
    assert not trace.cut
    assert not trace.trust


def test_bytes_that_are_no_text(read_text):
    odd = GOOD.replace("good", "caf\xe9").encode("latin-1")
    trace = read_text(b"[" + GOOD.encode() + b"," + odd + b"]")
    assert trace.names == ("good", "caf\ufffd")


def test_an_event_that_cannot_be_parsed_is_left_out_and_counted(read_text):
    trace = read_text("[" + ",\n".join([GOOD, '{"ph": "X", "name": }', GOOD.replace('"ts": 1', '"ts": 9')]) + "]")
    assert len(trace.events) == 2
    assert [note.text for note in trace.trust] == ["Could not be parsed and left out: 1 event."]


def test_odd_events_keep_exact_times(read_text):
    exact = GOOD.replace('"ts": 1,', '"ts": 1712195495519689.047,').replace('"dur": 2', '"dur": 2.5')
    odd = exact.replace("689.047", "690.124").replace('"good"', "5")
    assert read_text(f"[{exact}, {odd}]").events.start.tolist() == [0, 1077]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (b"", InputError, "is empty"),
        (b" \n", InputError, "nothing but blanks"),
        (b"hello", NotATraceError, "is not JSON"),
        (b"PK\x03\x04", NotATraceError, "is not JSON"),
        (b"[build-system]\nrequires = []", NotATraceError, "is not valid JSON"),
        (b"{}", NotATraceError, "no list 'traceEvents'"),
        (b"[1, 2]", NotATraceError, "no list 'traceEvents'"),
        (b'{"rocprofiler-sdk-tool": [{"a": 1}]}', NotATraceError, "no list 'traceEvents'"),
        (b'{"traceEvents": null}', NotATraceError, "no list 'traceEvents'"),
        (b'{"traceEvents": []}', InputError, "holds no events"),
        (b"[]", InputError, "holds no events"),
        (b'{"schemaVersion": 1, "traceEv', InputError, "before its first event"),
        (b'{"traceEvents": [{"ph": "X", "ca', InputError, "before its first event"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "devtools", "ts": 1, "dur": 1}]}',
            NotATraceError,
            "none of its 1 event",
        ),
        (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}]}',
            InputError,
            "at least one step",
        ),
        (b"\x1f\x8b", InputError, "compressed data stop early"),
        (b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff" * 50, InputError, "compressed data are damaged"),
        (gzip.compress(b"", mtime=0), InputError, "nothing but blanks"),
    ],
)
def test_what_is_no_trace_is_told_in_one_sentence(read_text, text, error, says):
    with pytest.raises(InputError) as caught:
        read_text(text)
    assert type(caught.value) is error
    assert says in str(caught.value)
    assert "trace.json" in str(caught.value)
    assert str(caught.value).endswith(".")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(InputError, match=r"does not exist\. Check the path\."):
        read_trace(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)


def test_damaged_compression_gives_the_events_before_the_damage(read_text):
    rng = np.random.default_rng(5)
    packed = bytearray(
        gzip.compress(json.dumps([{**op(n), "name": rng.bytes(300).hex()} for n in range(1000)]).encode())
    )
    packed[len(packed) * 3 // 4] ^= 0xFF
    trace = read_text(bytes(packed))
    assert 400 < len(trace.events) < 1000
    assert trace.cut
    assert "its compressed data are damaged" in trace.trust[0].text


def test_gzip_whatever_its_name_and_in_several_members(read_text):
    text = LAYOUTS["indented"].encode()
    packed = gzip.compress(text[:500]) + gzip.compress(text[500:])
    trace = read_text(packed, "trace.json")
    assert (len(trace.events), trace.raw_bytes, trace.cut) == (NUM, len(text), False)
    assert len(read_text(text, "trace.json.gz").events) == NUM
    assert len(read_text(packed + b"\0" * 512).events) == NUM


def test_damage_in_the_corpus_never_ends_in_a_traceback(corpus, read_text):
    rng = np.random.default_rng(7)
    for file in (f for f in corpus if f.stat().st_size < 30_000):
        text = gzip.decompress(file.read_bytes())
        full = read_trace(file)
        for length in rng.integers(1, len(text), 6):
            trace = salvaged(read_text, text[:length])
            if trace:
                assert len(trace.events) <= len(full.events)
                assert set(trace.names) <= set(full.names)


def test_overwritten_bytes_in_the_corpus_never_end_in_a_traceback(corpus, read_text):
    rng = np.random.default_rng(8)
    for file in (f for f in corpus if f.stat().st_size < 30_000):
        text = bytearray(gzip.decompress(file.read_bytes()))
        at = int(rng.integers(0, len(text) - 4))
        text[at : at + 4] = rng.bytes(4)
        with contextlib.suppress(InputError):
            read_text(bytes(text))


def test_views_that_another_thread_holds_do_not_stop_the_reader(read_text, monkeypatch):
    """A thread that looks at frames, as a sampler or Dask's profiler does, keeps the views in them alive."""
    from diagnose.trace_reader import events, source

    held, (read, take) = [], (source.Source.readinto, events._Reader.take)

    def readinto(self, view):
        held.append(view)
        return read(self, view)

    def take_block(self, block, **options):
        held.append(block)
        return take(self, block, **options)

    monkeypatch.setattr(source.Source, "readinto", readinto)
    monkeypatch.setattr(events._Reader, "take", take_block)
    one = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
    num = 3 * events.READ_BLOCK_BYTES // len(one)
    assert len(read_text('{"traceEvents": [' + ", ".join([one] * num) + "]}").events) > 0
    assert len(held) > 4
