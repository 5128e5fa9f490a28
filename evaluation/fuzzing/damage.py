"""Damage of bytes: what disks, cut copies and editors do to a file."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable

__all__ = ["cut", "damage", "packed"]

INSERTS = (
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b'"',
    b"{",
    b"[",
    b"]",
    b",",
    b"}}",
    b"nan",
    b"\\",
    b"\\u12",
)


def flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 30))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def cut_out(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 10, 1000)) :]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice((*INSERTS, rng.randbytes(20))) * rng.choice((1, 1, 40)) + data[at:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.choice((1, 30, 3000))]
    return data[:start] + piece + data[start:]


def overwrite(rng: random.Random, data: bytes) -> bytes:
    start, length = rng.randrange(len(data) + 1), rng.choice((1, 16, 512))
    return data[:start] + rng.choice((b"\0" * length, rng.randbytes(length))) + data[start + length :]


def other_encoding(rng: random.Random, data: bytes) -> bytes:
    encoding = rng.choice(("utf-16", "utf-8-sig", "utf-32", "latin-1"))
    return data.decode("utf-8", "replace").encode(encoding, "replace")


def concatenate(rng: random.Random, data: bytes) -> bytes:
    return rng.choice((data + data, data + b"\n" + data, b"\n\n " + data, data + b"garbage", data + b"\0" * 512))


def replace_all(rng: random.Random, _data: bytes) -> bytes:
    return rng.choice((b"", b" \n", b"null", b"[", b"{}", b"[[]]", b'{"traceEvents":', b"\x1f\x8b", rng.randbytes(300)))


DAMAGE: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flip, flip, cut, cut, cut_out, insert, insert, repeat, overwrite, other_encoding, concatenate, replace_all,
)  # fmt: skip


def damage(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Return damaged bytes, and what was done to them."""
    done = rng.choice(DAMAGE)
    return done(rng, data), done.__name__


def packed(data: bytes) -> bytes:
    """Return the gzip of the data, the same on every day."""
    return gzip.compress(data, 1, mtime=0)
