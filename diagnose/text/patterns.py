"""Regular expressions that are compiled when they are first used.

There are 250 of them, and to compile them all takes as long as a tiny trace does; most of a trace's rules return before
they get to theirs.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, Generic, cast

__all__ = ["lazy_pattern"]

_USED = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn")


class _LazyPattern(Generic[AnyStr]):
    """Stands for a compiled pattern; its methods become the instance's own with the first use of any."""

    def __init__(self, pattern: AnyStr, flags: int) -> None:
        self.pattern: AnyStr = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        if name not in _USED:  # copying and pickling look for methods of their own
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self.flags)
        vars(self).update({method: getattr(compiled, method) for method in _USED})
        return vars(self)[name]


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what ``re.compile`` does, as far as searching, splitting and replacing go; ``flags`` are those given."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))
