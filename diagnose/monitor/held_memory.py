"""What two steps show about memory that grows: which lines make what stays, and which variables hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.dataflow.growth import PiledUp, held_words
from diagnose.text.numbers import enumeration

__all__ = ["HeldLine", "HeldMemory", "NamedHolder", "held_memory"]

MAX_LINES, MAX_HOLDERS = 20, 5


@dataclass(frozen=True, slots=True)
class HeldLine:
    """One line whose values outlive the next step."""

    file: str  # "" if it is not known
    line: int
    values: int  # that one step leaves
    bytes: int


@dataclass(frozen=True, slots=True)
class NamedHolder:
    """A variable or attribute that holds values of the step before."""

    name: str
    kind: str  # its type
    members: int
    keeps_graph: bool  # the graph of a member reaches an earlier step
    file: str
    lines: tuple[int, ...]  # that store into it


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What two steps show about memory that grows."""

    text: str
    lines: tuple[HeldLine, ...] = ()  # the most bytes first
    holders: tuple[NamedHolder, ...] = ()


def held_memory(lines: Sequence[PiledUp], holders: Sequence[NamedHolder]) -> HeldMemory:
    """Return the lines that make most of what stays and the variables that hold it, and the sentences on both."""
    named = tuple(holders[:MAX_HOLDERS])
    return HeldMemory(_words(lines, named), tuple(map(_held, lines[:MAX_LINES])), named)


def _held(one: PiledUp) -> HeldLine:
    file, line = (one.line.file, one.line.line) if one.line is not None else ("", 0)
    return HeldLine(file, line, one.num_values, one.num_bytes)


def _words(lines: Sequence[PiledUp], holders: Sequence[NamedHolder]) -> str:
    if not lines and not holders:
        return "No tensor that one step made is still held after the next one: what grows is not made of tensors."
    texts = [held_words(lines)] if lines else []
    texts += map(_sentence, holders)
    if not holders:
        texts.append("No variable of the script was found that holds them.")
    return " ".join(texts)


def _sentence(one: NamedHolder) -> str:
    kind = f"a {one.kind} of {one.members:,}" if one.kind != "Tensor" else "a tensor"
    text = f"They are held by {one.name}, {kind}" if not one.keeps_graph else f"{one.name}, {kind}, keeps their graph"
    if one.lines:
        lines = "line" if len(one.lines) == 1 else "lines"
        text += f"; {lines} {enumeration([str(line) for line in one.lines])} of {one.file.rpartition('/')[2]} "
        text += "stores into it" if len(one.lines) == 1 else "store into it"
    return f"{text}: store detached values." if one.keeps_graph else f"{text}."
