"""Answers about jobs that were given before.

An answer rests on the summaries of all ranks and on the files of those that were examined for it: the key is of the
former, and the entry has the keys of the latter, which must be what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import cast

import msgspec

from diagnose.errors import InputError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.serialization import pack, unpack
from diagnose.pipeline.cache import Cache
from diagnose.pipeline.rank_results import examination
from diagnose.trace_reader.inputs import RankFiles

__all__ = ["Answers"]


class Answers:
    """What is known of the answer about one job; without a cache nothing is."""

    def __init__(
        self, cache: Cache | None, files: Iterable[RankFiles], summaries: Sequence[str], *, draw: bool
    ) -> None:
        self._cache, self._files, self._what = cache, {str(each): each for each in files}, examination(draw=draw)
        self._key = cache.key("\0".join(("answer", self._what, *summaries))) if cache else None

    def found(self) -> Diagnosis | None:
        """Return the answer, None where there is none or the files of a rank have changed."""
        entry = self._cache.get(self._key) if self._cache and self._key else None
        if self._cache is None or entry is None:
            return None
        with suppress(ValueError, msgspec.DecodeError, InputError):
            names, keys, packed = msgspec.msgpack.decode(entry, type=tuple[list[str], list[str], bytes])
            files = [self._files.get(name) for name in names]
            if [self._cache.key(self._what, each) if each else None for each in files] == keys:
                return cast("Diagnosis", unpack(packed))
        return None

    def keep(self, answer: Diagnosis, examined: Sequence[RankFiles]) -> None:
        """Store an answer with the keys of the ranks that were examined for it."""
        if self._cache is None or self._key is None or not examined:
            return
        with suppress(TypeError, OverflowError, UnicodeEncodeError, InputError):  # it is only not kept
            keys = [self._cache.key(self._what, files) for files in examined]
            if None not in keys:
                entry = [str(files) for files in examined], keys, pack(answer)
                self._cache.put(self._key, msgspec.msgpack.encode(entry))
