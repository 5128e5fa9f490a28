"""What the expressions of a dataset and of its collate function computed, as capture.json holds it."""

from __future__ import annotations

import msgspec

from diagnose.model.records import Count

__all__ = ["ExpressionRecord", "LoadedRecord"]


class ExpressionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An expression of the user's functions; times are sums over the samples that were loaded."""

    file: str
    line: Count
    function: str = ""
    text: str = ""
    inside: tuple[Count, ...] = ()  # rows of the expressions that call this one or that it is a part of
    num: Count = 0
    samples: Count = 0  # in how many it ran: of those that are collated together, their batch counts as one
    ns: Count = 0  # with the operands and arguments
    own_ns: Count = 0  # without the expressions inside
    what: str = ""  # type and shape of the result: "float64 (112, 112, 3)", "" for what is no array
    num_bytes: Count = 0  # of the arrays that are its results, for all samples
    is_constant: bool = False  # the same results in all samples
    is_repeated: bool = False  # the same result when the same samples were loaded again
    is_written: bool = False  # its result is changed after it was made
    used: float = 1.0  # share of its results that samples use: what they cut off need not be computed
    is_wide: bool = False  # the result is an array of 64-bit floats
    padded_to: Count = 0  # it is the first to make rows of this length that have one number at an end, or at both


class LoadedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some batches of the training loader's, loaded again in a process of their own after the windows."""

    samples: Count = 0
    total_ns: Count = 0  # that loading them took
    dataset_size: Count = 0
    narrow: bool = False  # what is handed to the step holds no 64-bit floats
    expressions: tuple[ExpressionRecord, ...] = ()
    left_out: str = ""  # why nothing was loaded
