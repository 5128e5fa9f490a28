"""Writes changes into the user's script, by its syntax tree: a unified diff that git applies.

Only changes whose place is known are made: arguments of calls, a setting after the imports, the forward before a
``loss.backward()``, and lines that a finding names.
What is written as it is today stays so, comments and blanks included. The file itself is not touched.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from diagnose.changes import CHANGES
from diagnose.changes.common.call_arguments import passed, set_arguments
from diagnose.changes.common.change import AddStatement, ByHand, EditLoop, SetArguments
from diagnose.changes.common.prescribe import also_possible
from diagnose.changes.common.separate_diffs import separated
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Where
from diagnose.model.files import write_file
from diagnose.text.plain_text import mask_code
from diagnose.trials.prove import lines_of
from diagnose.trials.saver_flow import Waits, find_waits

if TYPE_CHECKING:
    import libcst

    from diagnose.model.diagnosis import Diagnosis, Prescription

__all__ = [
    "Written",
    "assigned_names",
    "edited_source",
    "file_diff",
    "parameters_of",
    "with_background_saver",
    "with_compiled_model",
    "with_diffs",
    "with_kept_values",
    "write_patch",
]

# Edits of a syntax tree that leave values on the device which a line reads only to keep them.

_ITEM = m.Call(func=m.Attribute(attr=m.Name("item")), args=[])


def assigned_names(line: cst.CSTNode) -> set[str]:
    """Return the names that a statement, or one within it, assigns."""
    targets = [node.target for node in m.findall(line, m.AssignTarget() | m.AugAssign()) if hasattr(node, "target")]
    return {n.value for target in targets for n in m.findall(target, m.Name()) if isinstance(n, cst.Name)}


def with_kept_values(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave on the device what these lines (1-based) read with ``.item()`` only to add it up or keep it.

    ``total += loss.item()`` becomes ``total = total + loss.detach()``, ``last = loss.item()`` becomes ``last =
    loss.detach()``: the same number, of which a later ``print`` or ``float()`` waits once.
    """
    augmented = {name for node in m.findall(tree, m.AugAssign()) for name in assigned_names(node)}
    wrapper = MetadataWrapper(tree)
    editor = _Kept(frozenset(lines), frozenset(augmented))
    changed = wrapper.visit(editor)
    if editor.count:
        return changed, ""
    where = ", ".join(map(str, sorted(lines))) or "unknown"
    return tree, f"line {where} of the script neither adds the value up nor only keeps it, so its author must decide"


class _Kept(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, lines: frozenset[int], augmented: frozenset[str]) -> None:
        super().__init__()
        self.lines, self.augmented = lines, augmented
        self.count = 0

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> cst.AugAssign | cst.Assign:
        operators = {cst.AddAssign: cst.Add, cst.SubtractAssign: cst.Subtract}
        operator = operators.get(type(updated_node.operator))
        value = self._kept(updated_node.value)
        if operator is None or value is None or not self._asked(original_node):
            return updated_node
        self.count += 1
        if isinstance(value, cst.BinaryOperation) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        added = cst.BinaryOperation(updated_node.target, operator(), value)
        return cst.Assign([cst.AssignTarget(updated_node.target)], added)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        value = self._kept(updated_node.value)
        names = [target.target for target in updated_node.targets]
        plain = all(isinstance(name, cst.Name) and name.value not in self.augmented for name in names)
        if value is None or not plain or not self._asked(original_node):
            return updated_node
        self.count += 1
        return updated_node.with_changes(value=value)

    def _asked(self, node: cst.CSTNode) -> bool:
        at = self.get_metadata(PositionProvider, node)
        return any(at.start.line <= line <= at.end.line for line in self.lines)

    def _kept(self, value: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the arithmetic with its values left on the device, None where it reads none."""
        if m.matches(value, _ITEM):
            return value.with_deep_changes(value.func.attr, value="detach")  # type: ignore[attr-defined]  # as matched
        if isinstance(value, cst.UnaryOperation):
            inner = self._kept(value.expression)
            return None if inner is None else value.with_changes(expression=inner)
        if isinstance(value, cst.BinaryOperation):
            left, right = self._kept(value.left), self._kept(value.right)
            if left is not None or right is not None:
                return value.with_changes(left=left or value.left, right=right or value.right)
        return None


# The edit of a syntax tree that lets a thread write checkpoints, and waits for it before what may use the file.

_IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
_MAKES_SAVER = "from diagnose.kernels.saving import BackgroundSaver\n_saver = BackgroundSaver()\n"


def with_background_saver(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every `torch.save` be a `BackgroundSaver`'s; what may use the files waits for it, and so does the end."""
    if "BackgroundSaver" in tree.code:
        return tree, "the script uses BackgroundSaver itself"
    if re.search(r"\b_saver\b", tree.code):
        return tree, "the script has a name _saver itself"
    at = _line_after_torch(tree)
    if at == 0:
        return tree, "the script does not import torch at its top"
    found = find_waits(tree)
    if found.why:
        return tree, found.why
    changed = cst.ensure_type(tree.visit(_Editor(found)), cst.Module)
    made = cst.parse_module(_MAKES_SAVER).body
    return changed.with_changes(body=[*changed.body[:at], *made, *changed.body[at:]]), ""


def _line_after_torch(tree: cst.Module) -> int:
    """Return the line after the imports of which one is torch's, 0 if there is none."""
    first = next((i for i, line in enumerate(tree.body) if m.matches(line, _IMPORT) and _imports_torch(line)), None)
    if first is None:
        return 0
    return next((i for i in range(first, len(tree.body)) if not m.matches(tree.body[i], _IMPORT)), len(tree.body))


def _imports_torch(line: cst.CSTNode) -> bool:
    return any(
        isinstance(alias.name, cst.Name) and alias.name.value == "torch" and alias.asname is None
        for alias in m.findall(line, m.ImportAlias())
        if isinstance(alias, cst.ImportAlias)
    )


class _Editor(cst.CSTTransformer):
    """Replaces the calls, and puts the waits where they were found to be needed."""

    def __init__(self, found: Waits) -> None:
        super().__init__()
        self.found = found

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:  # libcst has no narrower type
        updated: Any = super().on_leave(original_node, updated_node)
        if original_node in self.found.saves:
            return updated.with_changes(func=cst.parse_expression("_saver.save"))
        if original_node in self.found.at_end:
            inner = updated.body if isinstance(updated.body, cst.BaseSuite) else updated
            is_line = isinstance(inner, cst.SimpleStatementSuite)
            inner = inner.with_changes(body=[*inner.body, _wait() if is_line else cst.SimpleStatementLine([_wait()])])
            updated = inner if isinstance(updated, cst.Module) else updated.with_changes(body=inner)
        if original_node not in self.found.before:
            return updated
        if isinstance(updated, cst.SimpleStatementSuite):
            return updated.with_changes(body=[_wait(), *updated.body])
        line = cst.SimpleStatementLine([_wait()], leading_lines=updated.leading_lines)
        return cst.FlattenSentinel([line, updated.with_changes(leading_lines=())])


def _wait() -> cst.Expr:
    return cst.Expr(cst.parse_expression("_saver.wait()"))


# The edit of a syntax tree that compiles the model behind the line that makes it.

_PARAMETERS = m.Call(func=m.Attribute(attr=m.Name("parameters") | m.Name("named_parameters")), args=[])
_MADE = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.Call())])
# What wraps the model and has an order of its own with compiling.
_WRAPPERS = ("DistributedDataParallel", "DDP(", "FSDP", "fully_shard", "DataParallel(", ".prepare(", ".setup(")
_OF_TORCH = ("nn.", "torch.nn.", "Sequential")


def parameters_of(tree: cst.Module) -> set[str]:
    """Return the expressions whose parameters the script asks for."""
    calls = [call for call in m.findall(tree, _PARAMETERS) if isinstance(call, cst.Call)]
    return {tree.code_for_node(call.func.value) for call in calls if isinstance(call.func, cst.Attribute)}


def with_compiled_model(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Compile the one model that the script makes and asks for its parameters, behind the line that makes it.

    ``model.compile()`` keeps the names of its parameters. Of torch's own classes it compiles nothing: these are
    wrapped, unless the script saves or loads their state, whose names would be others.
    """
    if ".compile(" in tree.code:
        return tree, "the script compiles already"
    wrapper = next((name for name in _WRAPPERS if name in tree.code), "")
    if wrapper:
        return tree, f"the script wraps its model ({wrapper.strip('.(')}), and the order of both is its author's"
    names = parameters_of(tree)
    if len(names) != 1 or not (name := names.pop()).isidentifier() or name == "self":
        return tree, "which of the script's modules is the model only its author knows"
    editor = _Compiled(tree, name)
    changed = tree.visit(editor)
    if editor.num_blocks != 1:
        return tree, f"{name} is not made by one call at one place of the script"
    return (tree, editor.why) if editor.why else (changed, "")


class _Compiled(cst.CSTTransformer):
    def __init__(self, tree: cst.Module, name: str) -> None:
        super().__init__()
        self.tree, self.name = tree, name
        self.num_blocks, self.why = 0, ""

    def leave_IndentedBlock(  # libcst calls it so
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        del original_node
        return updated_node.with_changes(body=self._compiled(list(updated_node.body)))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        del original_node
        return updated_node.with_changes(body=self._compiled(list(updated_node.body)))

    def _compiled(self, body: list[Any]) -> Sequence[Any]:
        places = [i for i, line in enumerate(body) if m.matches(line, _MADE) and self._is_model(line)]
        if not places:
            return body
        self.num_blocks += 1
        made = body[places[0]].body[0].value
        wraps = self.tree.code_for_node(_constructor(made)).startswith(_OF_TORCH)
        if wraps and ("state_dict" in self.tree.code or "import torch\n" not in self.tree.code):
            self.why = "model.compile() compiles none of torch's own classes; give it a class of your own"
        call = f"{self.name} = torch.compile({self.name})" if wraps else f"{self.name}.compile()"
        at = places[-1] + 1
        return [*body[:at], cst.parse_statement(call), *body[at:]]

    def _is_model(self, line: Any) -> bool:  # as matched
        return bool(line.body[0].targets[0].target.value == self.name)


def _constructor(made: cst.Call) -> cst.BaseExpression:
    """Return what is called to make the model, without methods of it such as ``.to(device)``."""
    func = made.func
    while isinstance(func, cst.Attribute) and isinstance(func.value, cst.Call):
        func = func.value.func
    return func


@dataclass(frozen=True)
class Written:
    """What became of the prescriptions."""

    diff: str  # "" where nothing was changed
    done: tuple[str, ...]  # ids
    left: Mapping[str, str]  # id: why it has to be written by hand


def write_patch(
    script: Path,
    wanted: Sequence[str],
    arguments: Mapping[str, Mapping[str, object]],
    patch: Path,
    *,
    force: bool = False,
) -> Written:
    """Write the diff of the script with these changes to ``patch``, if there are any.

    Raises:
        UsageError: libcst is not installed, or the script is no Python that it can parse.
        OutputError: ``patch`` exists already and ``force`` is off, or it cannot be written.
    """
    try:
        before = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{script} cannot be read as Python source ({error}); no patch can be made of it.") from error
    after, done, left = edited_source(before, str(script), wanted, arguments)
    diff = file_diff(before, after, _from_here(script))
    if diff:
        write_file(patch, diff, force=force)
    return Written(diff, done, left)


def file_diff(before: str, after: str, name: str) -> str:
    """Return the unified diff of a file, as git applies it; ``name`` is its path from where that is done."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def edited_source(
    source: str, script: str, wanted: Sequence[str], arguments: Mapping[str, Mapping[str, object]]
) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Return the source with these changes, the ids of those that were made, and by id why one was not.

    Raises:
        UsageError: libcst is not installed, or the source is no Python that it can parse.
    """
    try:
        import libcst
    except ImportError as error:
        raise UsageError(
            "Changes in a script's text need the package libcst: pip install 'diagnose[patch]'."
        ) from error
    try:
        tree = libcst.parse_module(source)
    except libcst.ParserSyntaxError as error:
        raise UsageError(f"{script} is no Python that can be parsed: {error.message}") from error
    done, left = [], {}
    for name in wanted:
        edit = CHANGES[name].edit
        if isinstance(edit, ByHand):
            left[name] = edit.reason
            continue
        if isinstance(edit, AddStatement):
            changed, why = _with_statement(tree, edit)
        elif isinstance(edit, EditLoop):
            changed, why = _with_loop(tree, edit, arguments.get(name, {}))
        else:
            changed, why = _with_arguments(tree, edit, arguments.get(name, {}))
        if why:
            left[name] = why
        else:
            done.append(name)
            tree = changed
    return tree.code, tuple(done), left


def _with_loop(tree: libcst.Module, edit: EditLoop, asked: Mapping[str, object]) -> tuple[libcst.Module, str]:
    from diagnose.trials import loop_edits

    for name, (value, reason) in edit.unless.items():
        if asked.get(name) == value:
            return tree, reason
    changed, why = getattr(loop_edits, edit.function)(tree, asked.get(edit.takes, edit.default))
    return (_after_imports(changed, edit.imports) if edit.imports and not why else changed), why


def _with_statement(tree: libcst.Module, edit: AddStatement) -> tuple[libcst.Module, str]:
    import libcst

    from diagnose.trials.loop_edits import imports_torch

    if edit.code in tree.code:
        return tree, "the script has it already"
    own = next((name for name in edit.set_by if name in tree.code), "")
    if own:
        return tree, f"the script sets {own} itself, at a place that its author knows"
    if not imports_torch(tree):
        return tree, "the script does not import torch by that name"
    if edit.imports:
        tree = _after_imports(tree, edit.imports)
    return _after_imports(tree, edit.code, leading_lines=[libcst.EmptyLine(indent=False)]), ""


def _after_imports(tree: libcst.Module, code: str, **changes: object) -> libcst.Module:
    """Put a statement after the last import at the top, or where there is none after the docstring."""
    import libcst

    places = [i for i, line in enumerate(tree.body) if _imports(line)]
    first = 1 if tree.get_docstring() is not None else 0
    body = list(tree.body)
    body.insert(places[-1] + 1 if places else first, libcst.parse_statement(code).with_changes(**changes))
    return tree.with_changes(body=body)


def _imports(line: Any) -> bool:  # a node of a statement list
    import libcst

    return isinstance(line, libcst.SimpleStatementLine) and any(
        isinstance(part, libcst.Import | libcst.ImportFrom) for part in line.body
    )


def _with_arguments(tree: libcst.Module, edit: SetArguments, asked: Mapping[str, object]) -> tuple[libcst.Module, str]:
    import libcst

    class Editor(libcst.CSTTransformer):
        count = 0
        why = ""

        def leave_Call(self, _original: libcst.Call, updated_node: libcst.Call) -> libcst.BaseExpression:
            if _called(updated_node) not in edit.of:
                return updated_node
            before = tree.code_for_node(updated_node)
            values, why = edit.of_call(passed(before, edit.parameters), asked)
            text, how = set_arguments(before, values, parameters=edit.parameters, spread=None)
            if why or how:
                self.why = why or how
                return updated_node
            self.count += 1
            return libcst.parse_expression(text, tree.config_for_parsing)

    editor = Editor()
    changed = tree.visit(editor)
    if editor.count:
        return changed, ""
    if editor.why:
        return tree, f"its call of {edit.of[0]}: {editor.why}"
    return tree, f"the script calls no {' or '.join(edit.of[:3])} itself"


def _called(call: libcst.Call) -> str:
    import libcst

    if isinstance(call.func, libcst.Attribute):
        return call.func.attr.value
    return call.func.value if isinstance(call.func, libcst.Name) else ""


def _from_here(script: Path) -> str:
    """Return the script's path from the working folder, where git applies the patch."""
    try:
        return script.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return script.name


# Prints changes as diffs of the script where the command has it at hand: the edits that `--write-patch` makes.
#
# A capture holds the calls that make loaders and optimizers, and their diffs need no file. The other edits need the
# source. Of those the script that the command was given is read, and files below the working folder that a finding of
# this very run names; nothing else is.

MAX_BYTES = 2_000_000  # of a source file: far more than anybody writes by hand


def with_diffs(diagnosis: Diagnosis, script: Path) -> Diagnosis:
    """Return the diagnosis with a diff of the script for every prescription whose edit can be made in it.

    A prescription that has a diff keeps it; one whose edit does not fit keeps its example. So do all without libcst.
    """
    found = tuple(_with_diff(diagnosis, p, script) for p in diagnosis.prescriptions)
    if all(new is old for new, old in zip(found, diagnosis.prescriptions, strict=True)):
        return diagnosis
    further = tuple(p for p in diagnosis.also_possible if p.id not in {new.id for new in found})
    return replace(diagnosis, prescriptions=separated(found), also_possible=further)


def _with_diff(diagnosis: Diagnosis, p: Prescription, script: Path) -> Prescription:
    edit = CHANGES[p.id].edit if p.id in CHANGES else None
    if p.diff or p.arguments.get("by_hand") or not isinstance(edit, AddStatement | EditLoop):
        return p
    other = p
    for file, name in _files(diagnosis, p, script):
        if isinstance(edit, AddStatement) and not file.samefile(script):
            continue  # a setting of the whole process
        made = _edited(diagnosis, p, file)
        if made is None:
            continue
        before, after, why = made
        if after != before:
            return replace(p, diff=file_diff(before, after, name), edits=_edits(before, after, name))
        if isinstance(edit, EditLoop) and why and why == edit.gains_nothing:
            other = _first_further(diagnosis, p)
    return other


def _first_further(diagnosis: Diagnosis, p: Prescription) -> Prescription:
    """Return the first further change of the same rule that fits, ``p`` itself if none does."""
    found = (also for f in diagnosis.findings if f.rule == p.rule for also in also_possible(f, diagnosis.step_ns))
    return next(found, p)


def _files(diagnosis: Diagnosis, p: Prescription, script: Path) -> Iterator[tuple[Path, str]]:
    """Yield the script and the finding's own files, each with its name from the working folder."""
    here = Path.cwd().resolve()
    named = [w.file for f in diagnosis.findings if f.rule == p.rule for w in f.where if w.file and not w.library]
    beside = [script.parent / name for name in named]  # a module that is imported from there is named from there
    for file in dict.fromkeys(path.resolve() for path in (script, *map(Path, named), *beside)):
        if file.is_relative_to(here) and file.is_file() and file.stat().st_size <= MAX_BYTES:
            yield file, file.relative_to(here).as_posix()


def _edited(diagnosis: Diagnosis, p: Prescription, file: Path) -> tuple[str, str, str] | None:
    """Return the source before and after the edit, and why it is the same; None if the edit shows a credential."""
    device = "cuda" if diagnosis.queue else "cpu"
    arguments = {**p.arguments, "device": device, "lines": lines_of(diagnosis, p.rule, file)}
    try:
        before = file.read_bytes().decode()
        after, _done, left = edited_source(before, file.name, [p.id], {p.id: arguments})
        ast.parse(after)
    except (OSError, ValueError, SyntaxError, UsageError):
        return None
    shown = file_diff(before, after, "")
    is_safe = "\r" not in before and all(mask_code(line) == line for line in shown.splitlines())
    return (before, after, left.get(p.id, "")) if is_safe else None


def _edits(before: str, after: str, name: str) -> tuple[Where, ...]:
    """Return the lines to edit: those that are replaced, else those behind which something is added."""
    old, new = before.splitlines(), after.splitlines()
    parts = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    replaced = [first for kind, first, *_ in parts if kind in ("replace", "delete")]
    behind = [max(first - 1, 0) for kind, first, *_ in parts if kind == "insert"]
    return tuple(Where(name, line + 1, code=old[line].strip()) for line in replaced or behind if line < len(old))
