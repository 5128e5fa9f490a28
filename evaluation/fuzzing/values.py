"""What fields are set to: values of every type, numbers at the edges of their range, names that attack an output."""

from __future__ import annotations

import json
import random
import re
from typing import Any

__all__ = ["FILE_NAMES", "HOSTILE", "MARKERS", "dump", "hostile", "name", "number", "raw", "value"]

_RAW = "@raw:"
_PLACEHOLDER = re.compile(f'"{_RAW}([^"]*)"')


def raw(text: str) -> str:
    """Return a placeholder that ``dump`` replaces by this text, for numbers that Python cannot write."""
    return f"{_RAW}{text}"


def dump(document: object, *, indent: int | None = None) -> str:
    """Return JSON, with placeholders filled in; NaN and Infinity stand as Python writes them."""
    return _PLACEHOLDER.sub(r"\1", json.dumps(document, indent=indent))


NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    -0.0,
    0.5,
    1e-9,
    -1e-300,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64,
    10**30,
    1e18,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    float("-inf"),
    raw("1e400"),
    raw("-1e400"),
    raw("1E+3"),
    raw("0.00000000000000000000000001"),
    raw("9" * 400),
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "0",
    "-1",
    "nan",
    "1e400",
    "0x0",
    "text",
    [],
    {},
    [None],
    [[]],
    [1, 2, 3],
    {"a": 1},
    [{"a": [{"b": None}]}],
    [[2, 3], [3, 4]],
    ["float", "long int"],
)

# Markers that must never stand in an HTML page as they are: each is markup once it is not escaped.
MARKERS = ("<script>zq", "<img src=zq", "</script><script>zq", '"onmouseover="zq', "<b>zq")

HOSTILE: tuple[str, ...] = (
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\x1b]8;;file:///etc/passwd\x1b\\link\x1b]8;;\x1b\\",
    "<script>zq(1)</script>",
    "</script><script>zq(2)</script>",
    "<img src=zq onerror=zq(3)>",
    '"onmouseover="zq(4)',
    "<b>zq</b>&amp;&#x1b;",
    "\u202egnp.exe\u202c",
    "\u2066isolated\u2069 \u200f\u200e\u061c",
    "nul\x00byte",
    "lone \ud800 surrogate \udfff",
    "line\nbreak\r\nand\ttab\x0b\x0c",
    "\u2028separator\u2029\x85",
    "\x7f\x80\x9b31m\xad\ufeff\u200b",
    "a" * 10_000,
    "%s%n%d{0}{name!r}{{",
    "{{ 7 * 7 }}{% raw %}${7*7}`id`$(id)",
    "[bold]markup[/bold] [/red] [link=x] [@click=quit()] :smile:",
    "[/]",
    "[",
    "\\",
    "'; DROP TABLE--",
    "../../../../etc/passwd",
    "/dev/zero",
    "~/.ssh/id_rsa",
    "C:\\Windows\\nul",
    "日本語テキスト" * 8,
    "🧨" * 50,
    "é" * 300,
    "e" + "\u0301" * 500,
    "@click",
    "<>" * 2000,
    "::" * 500,
    "(" * 3000,
    "<" * 3000 + ">" * 3000,
    "std::function<" * 300,
    " ",
    "\n",
)
# As a path names a file: escapes stand for bytes that are not UTF-8.
FILE_NAMES = (
    "tr\x1b[31mace.json",
    "a\nb.json",
    "<script>zq.json",
    "[bold]t.json",
    "\u202egnp.json",
    "é\udcff.json",
    "\udcff\udcfe/t.json.gz",
    "with space/a trace.json.gz",
    " .json",
    "new\nline\n/t.json.gz",
    "-t.json.gz",
    "--help",
    "a" * 200 + ".json",
)
KNOWN_NAMES = (
    "ProfilerStep#0",
    "ProfilerStep#",
    "ProfilerStep#-1",
    "ProfilerStep#99999999999999999999999",
    "ProfilerStep#1.5",
    "ProfilerStep*",
    "UnfinishedProfilerStep#3",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "Optimizer.step#SGD.step",
    "Optimizer.zero_grad#SGD.zero_grad",
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaMemcpyAsync",
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "cudaMalloc",
    "cudaFree",
    "hipLaunchKernel",
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::mm",
    "aten::copy_",
    "nccl:all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "Memcpy HtoD (Pageable -> Device)",
    "Memcpy DtoH (Device -> Pageable)",
    "Memset (Device)",
    "Python GC",
    "[memory]",
    "Iteration Start: PyTorch Profiler",
    "Record Window End",
    "train.py(12): main",
    "train.py(-1): ",
    "train.py(99999999999999999999): x",
    "): (",
    "process_name",
    "thread_name",
    "Context Sync",
    "Event Sync",
    "Stream Wait Event",
    "Buffer Flush",
    "autograd::engine::evaluate_function: MmBackward0",
)


def number(rng: random.Random) -> object:
    """Return a number at some edge."""
    return rng.choice(NUMBERS)


def hostile(rng: random.Random) -> str:
    """Return a text that attacks an output, sometimes two of them, or inside another name."""
    text = rng.choice(HOSTILE)
    return rng.choice((text, text, f"aten::{text}", f"train.py(3): {text}", text + rng.choice(HOSTILE)))


def name(rng: random.Random) -> str:
    """Return a name: hostile, or one that means something to a rule."""
    return hostile(rng) if rng.random() < 0.6 else rng.choice(KNOWN_NAMES)


def value(rng: random.Random) -> object:
    """Return anything that JSON can hold, and some things that it cannot."""
    kind = rng.random()
    return number(rng) if kind < 0.5 else rng.choice(OTHERS) if kind < 0.8 else name(rng)
