"""Stores the text of the source lines that a report may quote, as they were when the script ran.

An analysis quotes these: sources may lie elsewhere, or have changed. What is stored is little: the lines that the
sampler saw (statements on several lines as one), the heads of the loops and functions around them with the names that
these bind, the text of short functions with what their names are bound to, the numbers of the lines at which samples
draw at random, where deques are indexed, credentials masked.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import re
import stat
import tempfile
import textwrap
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeGuard

from diagnose.model.assignments import Binding, assigned, changed_in_place, name_of
from diagnose.model.locations import RANDOM_DRAW, is_installed
from diagnose.model.records import CallRecord
from diagnose.text.masking import mask_code


def parsed(text: str) -> ast.Module | None:
    """Return the tree of a source, None if there is none or it is no Python, such as a cell with magics."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes: the script had them already
        return ast.parse(text) if text else None
    return None


def tree_of(file: str) -> ast.Module | None:
    """Return the tree of a file or of a notebook's cell, None if it is not known."""
    return parsed("".join(linecache.getlines(file)))


# The lines around an expression of the script's, as a diff of it needs them.


def excerpt_of(node: ast.expr, source: SourceLines, file: str, *, name: str) -> CallRecord | None:
    """Return an expression of a file with three lines around it; None if they are many or hold a credential."""
    lines, end = source.text(file) or (), node.end_lineno or node.lineno
    first, last = max(1, node.lineno - 3), min(len(lines), end + 3)
    shown = tuple(line.rstrip("\r\n") for line in lines[first - 1 : last])
    if len(shown) > 61 or any(mask_code(line) != line for line in shown):  # nobody edits more
        return None
    path = os.path.relpath(file, source.cwd) if Path(file).is_absolute() else file
    return CallRecord(
        name=name,
        file=file if path.startswith("..") else path,
        first=first,
        lines=shown,
        begin=(node.lineno, _characters(lines[node.lineno - 1], node.col_offset)),
        end=(end, _characters(lines[end - 1], node.end_col_offset or 0)),
        ends_file=last == len(lines),
    )


def _characters(line: str, offset: int) -> int:
    """Return the column in characters of an offset in bytes of UTF-8, as syntax trees have it."""
    return len(line.encode("utf-8")[:offset].decode("utf-8", "replace"))


# Finds where a deque is indexed: the way to its middle is longer the more it holds.


def indexed_deques(tree: ast.Module) -> Sequence[Mapping[str, object]]:
    """Return where deques are indexed by what is computed, as ``DequeRecord`` has it; not those assigned twice."""
    nodes = list(ast.walk(tree))
    assigned = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign) and _is_long_deque(node.value)]
    built = {
        ast.unparse(getattr(node, "targets", [getattr(node, "target", None)])[0]): node.lineno for node in assigned
    }
    if not built:
        return []
    stored = Counter(ast.unparse(node) for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store))
    read = {node: ast.unparse(node.value) for node in nodes if isinstance(node, ast.Subscript)}
    return [
        {"line": node.lineno, "last": node.end_lineno, "name": name, "built": built[name]}
        for node, name in read.items()
        if name in built
        and stored[name] == 1
        and not isinstance(getattr(node.slice, "operand", node.slice), ast.Constant)
    ][:100]


def _is_long_deque(built: ast.expr | None) -> bool:
    """Return whether an expression makes a deque, without a limit that is known to be low."""
    if not isinstance(built, ast.Call) or ast.unparse(built.func) not in ("deque", "collections.deque"):
        return False
    lengths = [*built.args[1:2], *(word.value for word in built.keywords)]
    return not any(isinstance(length, ast.Constant) and length.value in range(1000) for length in lengths)


# Lines that draw random numbers, without those whose generator is made in the same call from a seed.
#
# ``np.random.default_rng(self.seeds[i])`` gives a sample the same numbers in each epoch and in each process: it draws
# nothing that another one could draw too. A generator that is kept, or made without a seed, does.

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
# What makes a generator of its first argument, by the last part of its name.
_MADE_OF_A_SEED = frozenset(
    {"default_rng", "RandomState", "Random", "PCG64", "PCG64DXSM", "Philox", "MT19937", "SFC64", "SeedSequence"}
)
_OF_NUMPY = ("np.random.Generator", "numpy.random.Generator")
# Arguments that are no seed of the sample: a generator that is kept, and what differs from process to process.
_SHARED = (
    r"(?:rng|random|generator)\b|\b(?:initial_seed|seed|get_worker_info|urandom|getpid|time|time_ns|uuid\d)\("
    r"|worker_(?:info|id|seed)\b"
)


class DrawLines(NamedTuple):
    """Lines of a source file, from 1."""

    draws: frozenset[int]  # from state that is shared, or that no seed set
    seeded: frozenset[int]  # by a seed alone: from a generator that the same call makes of it


def draw_lines(tree: ast.AST, lines: Sequence[str]) -> DrawLines:
    """Return the lines whose text draws random numbers, by where the numbers come from."""
    left = [line.encode() for line in lines]
    for node in _harmless(tree):
        last, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        for number in range(node.lineno, last + 1):  # spaces in its place; its columns are those of UTF-8
            line = left[number - 1]
            begin = node.col_offset if number == node.lineno else 0
            stop = end if number == last else len(line)
            left[number - 1] = line[:begin] + b" " * (stop - begin) + line[stop:]
    drawn = {number for number, line in enumerate(lines, 1) if RANDOM_DRAW.search(line.partition("#")[0])}
    rest = {number: left[number - 1].partition(b"#")[0].decode(errors="replace") for number in drawn}
    still = frozenset(number for number in drawn if RANDOM_DRAW.search(rest[number]))
    return DrawLines(still, frozenset(drawn - still))


def _harmless(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what is called where a generator is made from a seed or draws by it, and the types of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        if not isinstance(node, _Function):
            continue
        seeded = _seeded_names(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                yield from _called(inner, seeded)
            elif isinstance(inner, ast.Assign) and _is_of(inner.targets[0], seeded):
                yield from (each.func for each in ast.walk(inner.value) if _is_torchs(each))


def _called(call: ast.Call, seeded: frozenset[str]) -> Iterator[ast.expr]:
    """Yield what a call calls, if that draws from nothing but a seed."""
    maker = call.func.value if isinstance(call.func, ast.Attribute) else None
    if _is_seeded(call):
        yield maker.func if isinstance(maker, ast.Call) else call.func
        return
    makers = [each.value for each in call.keywords if each.arg == "generator"]
    makers += [maker] if isinstance(maker, ast.Name) else []
    if any(_is_of(each, seeded) for each in makers):
        yield call.func


def _is_of(value: ast.expr, seeded: frozenset[str]) -> bool:
    return value.id in seeded if isinstance(value, ast.Name) else _is_seeded(value)


def _seeded_names(function: _Function) -> frozenset[str]:
    """Return the names of a function that hold nothing but generators that it makes from seeds."""
    nodes = list(ast.walk(function))
    stored: dict[str, list[ast.expr | None]] = defaultdict(list)
    bound = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    seeds, other = set[str](), set[str]()
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                stored[name].append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) | ast.NamedExpr(ast.Name(id=name), value):
                stored[name].append(value)
            case ast.Call(func=ast.Attribute(ast.Name(id=name), "manual_seed")) if _has_seed(node):
                seeds.add(name)
            case ast.arg(arg=name):
                other.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                other.update(names)
    return frozenset(
        name
        for name, values in stored.items()
        if bound[name] == len(values)
        and name not in other
        and all(_is_seeded(value) or (_is_torchs(value) and name in seeds) for value in values)
    )


def _is_seeded(value: ast.AST | None) -> bool:
    """Return whether an expression makes a generator, or what one is made of, from a seed."""
    if not isinstance(value, ast.Call) or not _has_seed(value):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr == "manual_seed":
        return _is_torchs(value.func.value)
    name = ast.unparse(value.func)
    return name.rpartition(".")[2] in _MADE_OF_A_SEED or name in _OF_NUMPY


def _has_seed(call: ast.Call) -> bool:
    """Return whether the arguments are a seed: given, not None, and no state that is shared."""
    given = {ast.unparse(each): each for each in (*call.args, *(word.value for word in call.keywords))}
    return bool(given) and all(
        _is_seeded(value) or not (text == "None" or RANDOM_DRAW.search(text) or re.search(_SHARED, text))
        for text, value in given.items()
    )


def _is_torchs(value: ast.AST | None) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "torch.Generator"


# What the tree of a source file shows: loops but that of the training, samples' random draws, indexed deques.

_TRAINS = re.compile(r"\.(backward|zero_grad)\(|autograd\.grad\(")
_TRANSFORM = (
    r"\b(?:transforms|T|v2|A)\.(?:Random[A-Z]\w*|(?:Rand|Auto)Augment|ColorJitter|TrivialAugmentWide|AugMix"
    r"|GaussianNoise|ElasticTransform)\("
    r"|\bA\.(?:\w*Flip|Rotate|ShiftScaleRotate|Affine|GaussNoise|CoarseDropout|HueSaturationValue)\("
)
_GIVEN = r"transform|augment"  # arguments by which a dataset is given a function for its samples
# Methods of datasets, samplers of augmentations and transforms, which run for each sample.
_PER_SAMPLE = frozenset({"__getitem__", "__getitems__", "__iter__", "__call__"})
_ONCE = frozenset({"__init__", "__post_init__", "__new__", "setup", "prepare"})


class SourceTree(NamedTuple):
    """Lines of a source file, from 1."""

    loops: list[tuple[int, int]]  # the first and last line of each without a backward pass
    functions: list[tuple[int, int]]  # the same of each function
    bound: Mapping[int, list[str]]  # names that a loop or function binds, by its first line
    draws: list[int]  # of random numbers: by methods of classes that work on samples, and transforms that do
    seeded: list[int]  # draws that depend on nothing but a seed, in any function
    deques: Sequence[Mapping[str, object]]  # where they are indexed, as ``DequeRecord``
    statements: list[tuple[int, int]]  # the first and last line of each on several lines; of one with a body its head
    texts: list[tuple[int, int]]  # the first and last line of each function, and of loops outside of functions
    bindings: list[Binding]


def source_tree(lines: Sequence[str]) -> SourceTree:
    """Return what the tree of a source file shows; nothing of what is no Python."""
    is_small = sum(map(len, lines)) <= 1_000_000  # a tree takes some fifty times the memory of its text
    tree = parsed("\n".join(line.rstrip("\n") for line in lines)) if is_small else None
    if tree is None:
        return SourceTree([], [], {}, [], [], [], [], [], [])
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While)]
    found = [(loop.lineno, loop.body[-1].end_lineno or loop.lineno) for loop in loops]
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    drawn = draw_lines(tree, lines)
    draws = drawn.draws & set(_of_samples(tree))
    draws |= {number for number, line in enumerate(lines, 1) if re.search(_TRANSFORM, line.partition("#")[0])}
    return SourceTree(
        [(first, last) for first, last in found if not any(map(_TRAINS.search, lines[first:last]))],
        [(node.lineno, node.end_lineno or node.lineno) for node in functions],
        {node.lineno: _bound(node) for node in (*loops, *functions)},
        sorted(draws),
        sorted(drawn.seeded),
        indexed_deques(tree),
        list(long_statements(tree)),
        [(node.lineno, node.end_lineno or node.lineno) for node in _functions(tree)],
        list(_bindings(tree)),
    )


def _functions(tree: ast.AST) -> Iterator[_Function | ast.For | ast.While]:
    """Yield the functions of a tree, and the outermost loops outside of them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Function | ast.For | ast.While):
            yield node
        if isinstance(node, _Function):
            yield from (inner for inner in ast.walk(node) if inner is not node and isinstance(inner, _Function))
        elif not isinstance(node, ast.For | ast.While):
            yield from _functions(node)


def _bindings(tree: ast.AST, function: str = "", *, is_seen_inside: bool = True) -> Iterator[Binding]:
    """Yield what binds attributes of ``self``, names of the module and of functions with others in them."""
    for node in ast.iter_child_nodes(tree):
        for target, value in assigned(node):
            name = name_of(target)
            if name and (is_seen_inside or "." in name):
                yield Binding(name, function, f"{ast.unparse(target)} = {_short(value)}", getattr(node, "lineno", 0))
        if name := changed_in_place(node):
            yield Binding(name, function, "...")
        if isinstance(node, _Function):
            has_inner = any(isinstance(inner, _Function) for inner in ast.walk(node) if inner is not node)
            yield from _bindings(node, node.name, is_seen_inside=has_inner)
        else:
            yield from _bindings(node, function, is_seen_inside=is_seen_inside)


_SHORT = {ast.List: "[...]", ast.ListComp: "[...]", ast.Tuple: "(..., ...)", ast.Dict: "{...: ...}", ast.Set: "{...}"}


def _short(value: ast.expr | None) -> str:
    """Return the text of a value; of a long one what kind it is of."""
    text = ast.unparse(value) if value is not None else "..."
    if len(text) <= 200:
        return mask_code(text)
    return f"{ast.unparse(value.func)[:80]}(...)" if isinstance(value, ast.Call) else _SHORT.get(type(value), "...")


def _bound(scope: ast.AST) -> list[str]:
    """Return the names that a loop or function binds, its arguments among them."""
    nodes = list(ast.walk(scope))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(names | {node.arg for node in nodes if isinstance(node, ast.arg)})


def long_statements(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of statements on several lines, of their heads alone where they have a body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Try):
            inner = getattr(node, "body", [case.pattern for case in getattr(node, "cases", ())])
            last = inner[0].lineno - 1 if inner else node.end_lineno or node.lineno
            if last > node.lineno:
                yield node.lineno, last


def _of_samples(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of the methods that run for each sample, and of the methods and functions that they may call."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    left: list[ast.FunctionDef] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            if any(each.name in _PER_SAMPLE for each in methods):
                left += [each for each in methods if each.name not in _ONCE]
        elif isinstance(node, ast.keyword) and re.search(_GIVEN, node.arg or "") and isinstance(node.value, ast.Name):
            left += [functions[node.value.id]] if node.value.id in functions else []
    while left:
        node = left.pop()
        yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
        called = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & functions.keys()
        left += [functions.pop(name) for name in sorted(called)]


MAX_LINE_WIDTH = 400  # characters of a line; generated code has far longer ones


class _Stored(NamedTuple):
    """What a capture holds of one source file."""

    lines: dict[str, str]  # text by line
    loops: dict[str, int]  # last line by first line
    functions: dict[str, int]  # the same
    bound: dict[str, list[str]]  # names that a loop or function binds, by its first line
    draws: list[int]  # lines
    seeded: list[int]  # lines
    deques: list[Mapping[str, object]]  # indexed at those lines, as ``DequeRecord``
    statements: dict[str, int]  # last line by first line, of those lines' statements on several
    texts: dict[str, str]  # of functions, by first line
    bindings: list[Binding]  # of what those functions read


class SourceLines:
    """Reads source files of this process once each; ``cwd`` is what relative names started from.

    ``changed`` names those that were written since: what they hold now may not be what runs. ``named`` are files and
    lines that are worth keeping beside those that samples saw.
    """

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.changed: list[str] = []
        self.named: Sequence[tuple[str, int]] = ()
        self._began = time.time()
        self._texts: dict[str, Sequence[str] | None] = {}
        self._trees: dict[str, SourceTree] = {}

    def stored(self, places: Iterable[tuple[str, int]]) -> dict[str, object]:
        """Return the content of the file for these files and lines; what cannot be read is left out."""
        found: dict[str, _Stored] = {}
        for name, line in list(dict.fromkeys(places))[:2000]:  # half a minute without a line twice
            source = self.text(name) or ()
            if not (text := _line_of(source, line)):
                continue
            if name not in self._trees:
                self._trees[name] = source_tree(source)
            loops, functions, bound, draws, seeded, deques, statements, *_ = self._trees[name]
            each = found.setdefault(name, _Stored({}, {}, {}, {}, draws, seeded, [], {}, {}, []))
            here = (one for one in deques if int(str(one["line"])) <= line <= int(str(one["last"])))
            each.deques.extend(one for one in here if one not in each.deques)
            each.lines[str(line)] = text
            heads = set[int]()
            for around, kept in ((loops, each.loops), (functions, each.functions)):
                for head, last in around:
                    if head <= line <= last:
                        kept[str(head)] = last
                        each.bound[str(head)] = bound[head]
                        each.lines.setdefault(str(head), _line_of(source, head))
                        heads.add(head)
            for first, last in statements:
                if first <= line <= last:
                    each.statements[str(first)] = last
                if first <= line <= last or first in heads:
                    whole = " ".join(_line_of(source, number) for number in range(first, last + 1))
                    each.lines[str(first)] = mask_code(whole)[:MAX_LINE_WIDTH]
            _add_function(each, name, line, source, self._trees[name])
        return {"files": {name: each._asdict() for name, each in found.items()}}

    def text(self, name: str) -> Sequence[str] | None:
        """Return all lines of a file of this process, None where it cannot be read or was changed since it began."""
        if name not in self._texts:
            self._texts[name] = None
            with contextlib.suppress(OSError, ValueError, SyntaxError):  # unreadable, an odd name, or no text of Python
                self._texts[name] = self._read(name)
        return self._texts[name]

    def _read(self, name: str) -> Sequence[str] | None:
        path = self.cwd / name
        if not path.exists():
            return linecache.getlines(name) if name in linecache.cache else None  # where notebooks keep their cells
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > 8_000_000:  # a source file is smaller
            return None
        if state.st_mtime > self._began:
            if path.is_relative_to(self.cwd) or not path.is_relative_to(tempfile.gettempdir()):
                self.changed.append(name)  # else a library generated it as the script ran
            return None
        return decode_source(path.read_bytes()).split("\n")


def _line_of(source: Sequence[str], line: int) -> str:
    """Return the text of a line as it is stored, "" where there is none."""
    text = source[line - 1].strip() if 0 < line <= len(source) else ""
    return mask_code(text[: 10 * MAX_LINE_WIDTH])[:MAX_LINE_WIDTH]


def _add_function(stored: _Stored, name: str, line: int, source: Sequence[str], tree: SourceTree) -> None:
    """Store the text of the innermost function around a line, if it is short, and what its names are bound to."""
    around = (at for at in tree.texts if at[0] <= line <= at[1] and not is_installed(name))
    first, last = min(around, key=lambda at: at[1] - at[0], default=(0, 0))
    if not first or str(first) in stored.texts or last - first >= 120:
        return
    text = textwrap.dedent("\n".join(mask_code(each.rstrip()) for each in source[first - 1 : last]))
    stored.texts[str(first)] = text
    read = (one for one in tree.bindings if one.name.rpartition(".")[2] in text)
    stored.bindings.extend(one for one in read if one not in stored.bindings)
