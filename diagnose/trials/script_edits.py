"""Edits of a script's syntax tree, one function each: it returns the new tree, or the old one and why not.

Lines count from 1. What a function is not sure of is left to the script's author.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from diagnose.changes.common.call_arguments import passed, set_arguments
from diagnose.changes.common.change import AddStatement, Edit, EditLoop, SetArguments
from diagnose.trials.saver_edits import with_background_saver

__all__ = [
    "edited_tree",
    "with_autocast",
    "with_background_saver",
    "with_compiled_model",
    "with_device_argument",
    "with_eight_bit_adamw",
    "with_fused_adamw",
    "with_gradients_set_to_none",
    "with_kept_values",
    "with_length_batches",
    "with_masked_results",
    "with_sharded_stream",
    "with_threads",
    "with_zero_optimizer",
    "without_contiguous",
    "without_synchronize",
]

_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
_IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
_OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
_OF_ADAMW = frozenset({"lr", "betas", "eps", "weight_decay"})
_PARAMETERS = m.Call(func=m.Attribute(attr=m.Name("parameters") | m.Name("named_parameters")), args=[])
_SAVED_PARAMETERS = m.Call(func=m.Attribute(attr=m.Name("parameters")), args=[])
_MODEL_MADE = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.Call())])
# What wraps the model and has an order of its own with compiling.
_WRAPPERS = ("DistributedDataParallel", "DDP(", "FSDP", "fully_shard", "DataParallel(", ".prepare(", ".setup(")
_UNSAFE = m.Name("BCELoss") | m.Name("binary_cross_entropy")
_UNSAFE_LOSS = m.Call(func=_UNSAFE | m.Attribute(attr=_UNSAFE))
_BACKWARD = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(attr=m.Name("backward"))))])
_SYNCHRONIZE = m.Expr(m.Call(func=m.Attribute(attr=m.Name("synchronize"))))
_CONTIGUOUS = m.Call(func=m.Attribute(attr=m.Name("contiguous")), args=[])
_ITEM = m.Call(func=m.Attribute(attr=m.Name("item")), args=[])
# Operators of torch that make the same tensor on every device.
_MADE = ("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "zeros")
_MADE_BY_TORCH = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.OneOf(*map(m.Name, _MADE))))
_MOVED = m.Call(func=m.Attribute(value=_MADE_BY_TORCH, attr=m.Name("to") | m.Name("cuda")))
_MASKS = m.Name() | m.Attribute() | m.Comparison() | m.UnaryOperation(operator=m.BitInvert()) | m.BinaryOperation(
    operator=m.BitAnd() | m.BitOr() | m.BitXor()
)  # fmt: skip
_MASKED = m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=_MASKS))])
_REDUCED = m.Call(func=m.Attribute(value=_MASKED, attr=m.Name("mean") | m.Name("sum")), args=[])
_NUMBER = m.Integer() | m.Float() | m.UnaryOperation(operator=m.Minus(), expression=m.Integer() | m.Float())


def edited_tree(tree: cst.Module, edit: Edit, asked: Mapping[str, object]) -> tuple[cst.Module, str]:
    """Make the edit of a change, with the arguments of its prescription."""
    if isinstance(edit, AddStatement):
        return _with_statement(tree, edit)
    if isinstance(edit, EditLoop):
        for name, (value, reason) in edit.unless.items():
            if asked.get(name) == value:
                return tree, reason
        changed, why = globals()[edit.function](tree, asked.get(edit.takes, edit.default))
        return (_after_imports(changed, edit.imports) if edit.imports and not why else changed), why
    return _with_arguments(tree, edit, asked)


def _with_statement(tree: cst.Module, edit: AddStatement) -> tuple[cst.Module, str]:
    if edit.code in tree.code:
        return tree, "the script has it already"
    own = next((name for name in edit.set_by if name in tree.code), "")
    if own:
        return tree, f"the script sets {own} itself, at a place that its author knows"
    if not _imports_torch(tree):
        return tree, "the script does not import torch by that name"
    if edit.imports:
        tree = _after_imports(tree, edit.imports)
    return _after_imports(tree, edit.code, leading_lines=[cst.EmptyLine(indent=False)]), ""


def _after_imports(tree: cst.Module, code: str, **changes: object) -> cst.Module:
    """Put a statement after the last import at the top, or where there is none after the docstring."""
    first = int(tree.get_docstring() is not None)
    at = max((i + 1 for i, line in enumerate(tree.body) if m.matches(line, _IMPORT)), default=first)
    return tree.with_changes(body=[*tree.body[:at], cst.parse_statement(code).with_changes(**changes), *tree.body[at:]])


def _imports_torch(tree: cst.Module) -> bool:
    """Return whether the script calls torch by its own name."""
    return "import torch\n" in tree.code or "import torch," in tree.code


def _with_arguments(tree: cst.Module, edit: SetArguments, asked: Mapping[str, object]) -> tuple[cst.Module, str]:
    def change(call: cst.Call) -> cst.Call | str:
        before = tree.code_for_node(call)
        values, why = edit.of_call(passed(before, edit.parameters), asked)
        text, how = set_arguments(before, values, parameters=edit.parameters, spread=None)
        if why or how:
            return f"its call of {edit.of[0]}: {why or how}"
        return cst.ensure_type(cst.parse_expression(text, tree.config_for_parsing), cst.Call)

    return _with_calls(tree, edit.of, change, in_all=False)


def _with_calls(
    tree: cst.Module,
    names: Sequence[str],
    change: Callable[[cst.Call], cst.Call | str],
    how: str = "",
    *,
    in_all: bool = True,
) -> tuple[cst.Module, str]:
    """Replace the calls of these names; ``change`` returns the new call, or why not ("" for one that is not meant).

    One that cannot be replaced is a reason to replace none, unless ``in_all`` is off.
    """
    editor = _Calls(frozenset(names), change)
    changed = tree.visit(editor)
    if editor.count and not (editor.why and in_all):
        return changed, ""
    return tree, editor.why or f"the script calls no {' or '.join(names[:3])}{how} itself"


class _Calls(cst.CSTTransformer):
    def __init__(self, names: frozenset[str], change: Callable[[cst.Call], cst.Call | str]) -> None:
        super().__init__()
        self.names, self.change = names, change
        self.count, self.why = 0, ""

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        del original_node
        named = getattr(updated_node.func, "attr", updated_node.func)
        changed = self.change(updated_node) if getattr(named, "value", "") in self.names else ""
        if isinstance(changed, str):
            self.why = self.why or changed
            return updated_node
        self.count += 1
        return changed


def with_gradients_set_to_none(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every ``zero_grad`` that fills gradients with zeros set them to None, as torch does by itself."""
    false = m.Name("False")
    fills = m.Call(args=[m.Arg(value=false, keyword=None) | m.Arg(value=false, keyword=m.Name("set_to_none"))])

    def change(call: cst.Call) -> cst.Call | str:
        return call.with_changes(args=[]) if m.matches(call, fills) else ""

    return _with_calls(tree, ("zero_grad",), change, " that fills")


def with_threads(tree: cst.Module, threads: int) -> tuple[cst.Module, str]:
    """Wrap the dataset of every DataLoader that the script makes, so that threads load its samples."""
    return _with_dataset(tree, "ConcurrentSamples", f", threads={threads}")


def with_sharded_stream(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Wrap the dataset of every DataLoader that the script makes, so that its workers share the stream out."""
    return _with_dataset(tree, "ShardedStream", "")


def _with_dataset(tree: cst.Module, wrapper: str, others: str) -> tuple[cst.Module, str]:
    if wrapper in tree.code:
        return tree, f"the script uses {wrapper} itself"
    wrapped = cst.ensure_type(cst.parse_expression(f"{wrapper}(dataset{others})"), cst.Call)

    def change(call: cst.Call) -> cst.Call | str:
        args = list(call.args)
        names = [arg.keyword.value if arg.keyword else "*" * len(arg.star) for arg in args]
        at = names.index("dataset") if "dataset" in names else 0
        if not args or names[at] not in ("", "dataset"):
            return ""
        first = wrapped.args[0].with_changes(value=args[at].value)
        args[at] = args[at].with_changes(value=wrapped.with_changes(args=[first, *wrapped.args[1:]]))
        return call.with_changes(args=args)

    return _with_calls(tree, ("DataLoader",), change, " with a dataset")


def with_length_batches(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every DataLoader that shuffles draw batches of like lengths, each of as many samples as before."""
    if "LengthBatches" in tree.code:
        return tree, "the script uses LengthBatches itself"
    return _with_calls(tree, ("DataLoader",), _by_length, " with batch_size and shuffle=True")


def _by_length(call: cst.Call) -> cst.Call | str:
    names = ("dataset", "batch_size", "shuffle")
    given = {arg.keyword.value if arg.keyword else names[i]: arg for i, arg in enumerate(call.args[: len(names)])}
    given |= {arg.keyword.value: arg for arg in call.args if arg.keyword}
    if not given.keys() >= set(names) or not m.matches(given["shuffle"].value, m.Name("True")):
        return ""
    is_unknown = any(arg.star or (i >= len(names) and not arg.keyword) for i, arg in enumerate(call.args))
    if is_unknown or given.keys() & {"sampler", "batch_sampler", "drop_last"}:
        return "its DataLoader has a sampler or drop_last, or arguments that are not known"
    dataset, size = given["dataset"].value, given["batch_size"].value
    if not m.matches(dataset, m.Name() | m.Attribute()):
        return "the dataset is made in the call of the DataLoader"
    lengths = cst.Call(cst.Name("lengths_of"), [cst.Arg(dataset)])
    most = cst.Arg(size, cst.Name("max_samples"), _EQUAL)
    sampler = cst.Call(cst.Name("LengthBatches"), [cst.Arg(lengths, comma=_COMMA), most])
    kept = [arg for arg in call.args if all(arg is not given[name] for name in names)]
    made = cst.Arg(sampler, cst.Name("batch_sampler"), _EQUAL, comma=_COMMA if kept else cst.MaybeSentinel.DEFAULT)
    return call.with_changes(args=[given["dataset"].with_changes(comma=_COMMA), made, *kept])


def with_fused_adamw(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Make `FusedAdamW` in the place of AdamW, and leave clipping to its author."""
    return _with_calls(tree, ("AdamW",), lambda call: _renamed(call, "FusedAdamW", _OF_ADAMW | {"maximize"}))


def with_eight_bit_adamw(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Make AdamW of all parameters of a model as `eight_bit_adamw` of that model."""

    def change(call: cst.Call) -> cst.Call | str:
        first = call.args[0] if call.args else None
        if first is None or first.keyword or not m.matches(first.value, _SAVED_PARAMETERS):
            return "the optimizer is not made of all parameters of one model"
        model = first.with_changes(value=first.value.func.value)  # type: ignore[attr-defined]  # as matched
        return _renamed(call.with_changes(args=[model, *call.args[1:]]), "eight_bit_adamw", _OF_ADAMW)

    return _with_calls(tree, ("AdamW",), change)


def with_zero_optimizer(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Make every optimizer of torch's by `zero_optimizer`, with its class as the first argument."""

    def change(call: cst.Call) -> cst.Call:
        args = [cst.Arg(call.func, comma=_COMMA), *call.args]
        return call.with_changes(func=cst.Name("zero_optimizer"), args=args)

    return _with_calls(tree, _OPTIMIZERS, change)


def _renamed(call: cst.Call, name: str, takes: frozenset[str]) -> cst.Call | str:
    unknown = [arg.keyword.value for arg in call.args if arg.keyword and arg.keyword.value not in {*takes, "params"}]
    if unknown:
        return f"{name} does not take {unknown[0]}"
    if any(arg.star for arg in call.args):
        return "its arguments stand in a list that is not known"
    return call.with_changes(func=cst.Name(name))


class _Bodies(cst.CSTTransformer):
    """Changes lists of statements, those of a module and those of its blocks."""

    def __init__(self, tree: cst.Module) -> None:
        super().__init__()
        self.tree = tree
        self.count, self.why = 0, ""

    def changed(self, body: list[Any]) -> list[Any]:
        """Return the statements as they are to be."""
        raise NotImplementedError

    def leave_IndentedBlock(  # libcst calls it so
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        del original_node
        return updated_node.with_changes(body=self.changed(list(updated_node.body)))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        del original_node
        return updated_node.with_changes(body=self.changed(list(updated_node.body)))


def _parameters_of(tree: cst.Module) -> set[str]:
    """Return the expressions whose parameters the script asks for."""
    calls: Any = m.findall(tree, _PARAMETERS)
    return {tree.code_for_node(call.func.value) for call in calls}


def with_compiled_model(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Compile the one model that the script makes and asks for its parameters, after the line that makes it.

    ``model.compile()`` keeps the names of its parameters. Of torch's own classes it compiles nothing: these are
    wrapped, unless the script saves or loads their state, whose names would be others.
    """
    if ".compile(" in tree.code:
        return tree, "the script compiles already"
    wrapper = next((name for name in _WRAPPERS if name in tree.code), "")
    if wrapper:
        return tree, f"the script wraps its model ({wrapper.strip('.(')}), and the order of both is its author's"
    names = _parameters_of(tree)
    if len(names) != 1 or not (name := names.pop()).isidentifier() or name == "self":
        return tree, "which of the script's modules is the model only its author knows"
    editor = _Compiled(tree, name)
    changed = tree.visit(editor)
    if editor.count != 1:
        return tree, f"{name} is not made by one call at one place of the script"
    return (tree, editor.why) if editor.why else (changed, "")


class _Compiled(_Bodies):
    def __init__(self, tree: cst.Module, name: str) -> None:
        super().__init__(tree)
        self.name = name

    def changed(self, body: list[Any]) -> list[Any]:
        made = [i for i, line in enumerate(body) if m.matches(line, _MODEL_MADE)]
        places = [i for i in made if body[i].body[0].targets[0].target.value == self.name]
        if not places:
            return body
        self.count += 1
        constructor = body[places[0]].body[0].value.func  # without methods of what it makes, such as .to(device)
        while isinstance(constructor, cst.Attribute) and isinstance(constructor.value, cst.Call):
            constructor = constructor.value.func
        is_torch = self.tree.code_for_node(constructor).startswith(("nn.", "torch.nn.", "Sequential"))
        if is_torch and ("state_dict" in self.tree.code or "import torch\n" not in self.tree.code):
            self.why = "model.compile() compiles none of torch's own classes; give it a class of your own"
        call = f"{self.name} = torch.compile({self.name})" if is_torch else f"{self.name}.compile()"
        at = places[-1] + 1
        return [*body[:at], cst.parse_statement(call), *body[at:]]


def with_autocast(tree: cst.Module, device: str) -> tuple[cst.Module, str]:
    """Put what leads from a call of the model to its loss under bf16 autocast.

    The model is what an optimizer was given the parameters of, or what was made of that by one call.
    """
    whys = {
        "the script uses autocast itself": "autocast" in tree.code,
        "the script scales its loss already, which autocast in bf16 does without": "GradScaler" in tree.code,
        "the script does not import torch by that name": not _imports_torch(tree),
        "torch refuses BCELoss under autocast on a GPU: take BCEWithLogitsLoss, of what precedes the sigmoid": (
            device.startswith("cuda") and bool(m.findall(tree, _UNSAFE_LOSS))
        ),
    }
    for why in (why for why, is_so in whys.items() if is_so):
        return tree, why
    editor = _Autocast(tree, device)
    changed = tree.visit(editor)
    return (changed, "") if editor.count else (tree, editor.why)


class _Autocast(_Bodies):
    """Wraps the statements before each ``loss.backward()``."""

    def __init__(self, tree: cst.Module, device: str) -> None:
        super().__init__(tree)
        self.device = device
        self.why = "no loss.backward() follows a call of the model in the same block of the script"
        self.models = _parameters_of(tree)  # expressions that stand for the model: it, and what is made of it
        assigned: Any = m.findall(tree, m.Assign(value=m.Call()))
        for one in assigned:
            if {tree.code_for_node(arg.value) for arg in one.value.args} & self.models:
                self.models |= {tree.code_for_node(target.target) for target in one.targets}
        self.models -= {"self"}

    def changed(self, body: list[Any]) -> list[Any]:
        at = next((i for i, line in enumerate(body) if m.matches(line, _BACKWARD)), None)
        if at is None:
            return body
        receiver = body[at].body[0].value.func.value
        if self._calls_model(receiver):
            self.why = "the forward and its backward() stand in one statement"
            return body
        first = next((i for i, line in enumerate(body[:at]) if self._calls_model(line)), None)
        if first is None:
            return body
        losses = {node.value for node in m.findall(receiver, m.Name()) if isinstance(node, cst.Name)}
        last = max([first, *(i for i in range(first, at) if losses & _assigned_names(body[i]))])
        self.count += 1
        region = cst.parse_expression(f'torch.autocast("{self.device}", dtype=torch.bfloat16)')
        inner = [body[first].with_changes(leading_lines=()), *body[first + 1 : last + 1]]
        block = cst.With([cst.WithItem(region)], cst.IndentedBlock(inner), leading_lines=body[first].leading_lines)
        return [*body[:first], block, *body[last + 1 :]]

    def _calls_model(self, node: cst.CSTNode) -> bool:
        """Return whether the node calls the model, or hands it to a function that may."""
        calls: Any = m.findall(node, m.Call())
        for call in calls:
            is_method = isinstance(call.func, cst.Attribute) and self._is_model(call.func.value)
            if self._is_model(call.func) or (not is_method and any(self._is_model(arg.value) for arg in call.args)):
                return True
        return False

    def _is_model(self, node: cst.CSTNode) -> bool:
        return self.tree.code_for_node(node) in self.models


def _assigned_names(line: cst.CSTNode) -> set[str]:
    """Return the names that a statement, or one within it, assigns."""
    targets: Any = m.findall(line, m.AssignTarget() | m.AugAssign())
    return {n.value for one in targets for n in m.findall(one.target, m.Name()) if isinstance(n, cst.Name)}


class _AtLines(cst.CSTTransformer):
    """Changes what stands in some lines, and counts what it changed."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, lines: Sequence[int]) -> None:
        super().__init__()
        self.lines = frozenset(lines)
        self.count = 0

    def asked(self, node: cst.CSTNode) -> bool:
        """Return whether the node stands in one of the lines, and count it."""
        at = self.get_metadata(PositionProvider, node)
        found = any(at.start.line <= line <= at.end.line for line in self.lines)
        self.count += found
        return found

    def edited(self, tree: cst.Module, why: str) -> tuple[cst.Module, str]:
        """Return the tree with the changes; ``why`` is what a line is that was not changed."""
        changed = MetadataWrapper(tree).visit(self)
        if self.count:
            return changed, ""
        where = ", ".join(map(str, sorted(self.lines))) or "unknown"
        return tree, f"line {where} of the script {why}, so its author must decide"


def without_synchronize(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave out the calls of ``synchronize()`` that are these lines, whose result nothing takes."""
    return _WithoutSynchronize(lines).edited(tree, "is not a call of synchronize() by itself")


class _WithoutSynchronize(_AtLines):
    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        kept = [part for part in updated_node.body if not m.matches(part, _SYNCHRONIZE)]
        if len(kept) == len(updated_node.body) or not self.asked(original_node):
            return updated_node
        if not kept:
            return cst.RemoveFromParent()  # a block that is left empty gets a `pass`
        return updated_node.with_changes(body=[*kept[:-1], kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def without_contiguous(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave ``.contiguous()`` out of these lines; an operator that needs it then fails."""
    return _WithoutContiguous(lines).edited(tree, "calls no contiguous()")


class _WithoutContiguous(_AtLines):
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if not m.matches(updated_node, _CONTIGUOUS) or not self.asked(original_node):
            return updated_node
        return cst.ensure_type(updated_node.func, cst.Attribute).value


def with_device_argument(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Make on the device what these lines make and then copy there.

    ``torch.zeros(n).to(device)`` becomes ``torch.zeros(n, device=device)``. Random numbers are left alone, since a
    device draws others, and so are tensors of the script's own values, which are copied either way.
    """
    return _OnDevice(lines).edited(tree, "makes no tensor that torch could make on the device")


class _OnDevice(_AtLines):
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        device = _device_of(updated_node) if m.matches(updated_node, _MOVED) else None
        made: Any = getattr(updated_node.func, "value", None)
        if device is None or any(arg.star or (arg.keyword and arg.keyword.value == "device") for arg in made.args):
            return updated_node
        if not self.asked(original_node):
            return updated_node
        before = [*made.args[:-1], *(arg.with_changes(comma=_COMMA) for arg in made.args[-1:])]
        keyword = cst.Arg(device, cst.Name("device"), _EQUAL)
        return cst.ensure_type(made.with_changes(args=[*before, keyword]), cst.Call)


def _device_of(call: cst.Call) -> cst.BaseExpression | None:
    """Return the device that ``.to(…)`` or ``.cuda()`` names, None where it may be a dtype or another tensor."""
    if cst.ensure_type(call.func, cst.Attribute).attr.value == "cuda":
        return None if call.args else cst.SimpleString('"cuda"')
    args = [arg for arg in call.args if not (arg.keyword and arg.keyword.value == "non_blocking")]
    if len(args) != 1 or (args[0].keyword and args[0].keyword.value != "device"):
        return None
    value = args[0].value
    named = m.findall(value, m.Name(m.MatchRegex(".*(device|dev|gpu).*")))
    return value if named or args[0].keyword or m.matches(value, m.SimpleString()) else None


def with_masked_results(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Compute on all elements what these lines compute on those that a mask chooses.

    ``x[mask].mean()`` becomes ``indexing.masked_mean(x, mask)``, and ``x[mask] = 0`` an `assign_where`. Those raise
    TypeError where the mask is none, but an index.
    """
    return _Masked(lines).edited(tree, "neither reduces nor assigns what a mask chooses")


class _Masked(_AtLines):
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if not m.matches(updated_node, _REDUCED) or not self.asked(original_node):
            return updated_node
        function: Any = updated_node.func
        return _of_indexing(f"masked_{function.attr.value}", *_masked_parts(function.value))

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign | cst.Expr:
        target = updated_node.targets[0].target
        if len(updated_node.targets) > 1 or not m.matches(target, _MASKED):
            return updated_node
        (source, mask), value = _masked_parts(target), updated_node.value
        if m.matches(value, _MASKED):  # of another tensor, where the same mask chooses
            value, same = _masked_parts(value)
            is_each = same.deep_equals(mask)
        else:
            is_each = m.matches(value, _NUMBER)
        if not is_each or not self.asked(original_node):
            return updated_node
        return cst.Expr(_of_indexing("assign_where", source, mask, value))


def _masked_parts(subscript: Any) -> tuple[cst.BaseExpression, cst.BaseExpression]:  # a Subscript, as matched
    return subscript.value, subscript.slice[0].slice.value


def _of_indexing(name: str, *values: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(cst.Name("indexing"), cst.Name(name)), [cst.Arg(value) for value in values])


def with_kept_values(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave on the device what these lines read with ``.item()`` only to add it up or keep it.

    ``total += loss.item()`` becomes ``total = total + loss.detach()``, ``last = loss.item()`` becomes ``last =
    loss.detach()``: the same number, of which a later ``print`` or ``float()`` waits once.
    """
    editor = _Kept(lines)
    editor.augmented = {name for node in m.findall(tree, m.AugAssign()) for name in _assigned_names(node)}
    return editor.edited(tree, "neither adds the value up nor only keeps it")


class _Kept(_AtLines):
    augmented: set[str]

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> cst.AugAssign | cst.Assign:
        operators = {cst.AddAssign: cst.Add, cst.SubtractAssign: cst.Subtract}
        operator = operators.get(type(updated_node.operator))
        value = _kept(updated_node.value)
        if operator is None or value is None or not self.asked(original_node):
            return updated_node
        if isinstance(value, cst.BinaryOperation) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        added = cst.BinaryOperation(updated_node.target, operator(), value)
        return cst.Assign([cst.AssignTarget(updated_node.target)], added)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        value = _kept(updated_node.value)
        names = [target.target for target in updated_node.targets]
        is_plain = all(isinstance(name, cst.Name) and name.value not in self.augmented for name in names)
        if value is None or not is_plain or not self.asked(original_node):
            return updated_node
        return updated_node.with_changes(value=value)


def _kept(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the arithmetic with its values left on the device, None where it reads none."""
    if m.matches(value, _ITEM):
        return value.with_deep_changes(value.func.attr, value="detach")  # type: ignore[attr-defined]  # as matched
    if isinstance(value, cst.UnaryOperation):
        inner = _kept(value.expression)
        return None if inner is None else value.with_changes(expression=inner)
    if isinstance(value, cst.BinaryOperation):
        left, right = _kept(value.left), _kept(value.right)
        if left is not None or right is not None:
            return value.with_changes(left=left or value.left, right=right or value.right)
    return None
