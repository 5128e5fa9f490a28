"""Edits of a script's syntax tree, one function each: it returns the new tree, or the old one and why not.

Lines count from 1. What a function is not sure of is left to the script's author.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from diagnose.changes.common.call_arguments import passed, set_arguments
from diagnose.changes.common.change import AddStatement, Edit, EditLoop, SetArguments
from diagnose.changes.common.statements import BY_HAND
from diagnose.changes.edits.saver_edits import with_background_saver
from diagnose.changes.edits.statement_edits import RewriteError, rewritten
from diagnose.model.own_source import EditedStatement

__all__ = [
    "edited_tree",
    "with_autocast",
    "with_background_saver",
    "with_compiled_model",
    "with_device_argument",
    "with_eight_bit_adamw",
    "with_gradients_set_to_none",
    "with_kept_values",
    "with_length_batches",
    "with_masked_results",
    "with_sharded_stream",
    "with_statements",
    "with_threads",
    "with_zero_optimizer",
    "without_contiguous",
    "without_synchronize",
]

_Changes: TypeAlias = Mapping[type, Callable[[Any], Any]]  # by the type of a node: what becomes of it, None: it stays

_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
_IMPORT = m.SimpleStatementLine(body=[m.ZeroOrMore(), m.Import() | m.ImportFrom(), m.ZeroOrMore()])
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
        return tree, f"the script sets {own} itself, at a place that only the author can choose"
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


class _Rewriter(cst.CSTTransformer):
    """Replaces nodes of some types by what a function makes of them, None if it leaves them; with lines only there."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, changes: _Changes, lines: Sequence[int] | None = None) -> None:
        super().__init__()
        self.changes, self.lines = changes, lines
        self.count = 0

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:  # libcst has no narrower type
        updated: Any = super().on_leave(original_node, updated_node)
        change = self.changes.get(type(updated))
        made = change(updated) if change is not None else None
        if made is None or not self._is_asked(original_node):
            return updated
        self.count += 1
        return made

    def _is_asked(self, node: cst.CSTNode) -> bool:
        if self.lines is None:
            return True
        at = self.get_metadata(PositionProvider, node)
        return any(at.start.line <= line <= at.end.line for line in self.lines)


def _at_lines(tree: cst.Module, lines: Sequence[int], changes: _Changes, why: str) -> tuple[cst.Module, str]:
    """Change nodes that stand in some lines; ``why`` is what a line is in which nothing was changed."""
    editor = _Rewriter(changes, lines)
    changed = MetadataWrapper(tree).visit(editor)
    if editor.count:
        return changed, ""
    where = ", ".join(map(str, sorted(set(lines)))) or "unknown"
    return tree, f"line {where} of the script {why}, so its author must decide"


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
    whys = []

    def changed_call(call: cst.Call) -> cst.Call | None:
        named = getattr(call.func, "attr", call.func)
        made = change(call) if getattr(named, "value", "") in names else ""
        whys.extend([made] if isinstance(made, str) and made else [])
        return None if isinstance(made, str) else made

    editor = _Rewriter({cst.Call: changed_call})
    changed = tree.visit(editor)
    if editor.count and not (whys and in_all):
        return changed, ""
    return tree, whys[0] if whys else f"the script calls no {' or '.join(names[:3])}{how} itself"


def with_statements(tree: cst.Module, statements: Sequence[Sequence[Any]]) -> tuple[cst.Module, str]:
    """Rewrite statements, each given as the fields of an `EditedStatement`."""
    if not statements:
        return tree, BY_HAND
    try:
        after = rewritten(tree.code, [EditedStatement(*each) for each in statements])
    except RewriteError as error:
        return tree, str(error)
    return cst.parse_module(after), ""


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
        return "its arguments are in a list that is not known"
    return call.with_changes(func=cst.Name(name))


def _with_bodies(tree: cst.Module, change: Callable[[list[Any]], list[Any] | None]) -> tuple[cst.Module, int]:
    """Change lists of statements, those of the module and those of its blocks; return how many were changed."""

    def changed_body(block: cst.Module | cst.IndentedBlock) -> cst.Module | cst.IndentedBlock | None:
        body = change(list(block.body))
        return None if body is None else block.with_changes(body=body)

    editor = _Rewriter({cst.Module: changed_body, cst.IndentedBlock: changed_body})
    return tree.visit(editor), editor.count


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
        return tree, "which of the script's modules is the model is not certain"
    is_torch: list[bool] = []

    def change(body: list[Any]) -> list[Any] | None:
        made = [i for i, line in enumerate(body) if m.matches(line, _MODEL_MADE)]
        places = [i for i in made if body[i].body[0].targets[0].target.value == name]
        if not places:
            return None
        constructor = body[places[0]].body[0].value.func  # without methods of what it makes, such as .to(device)
        while isinstance(constructor, cst.Attribute) and isinstance(constructor.value, cst.Call):
            constructor = constructor.value.func
        is_torch.append(tree.code_for_node(constructor).startswith(("nn.", "torch.nn.", "Sequential")))
        call = f"{name} = torch.compile({name})" if is_torch[-1] else f"{name}.compile()"
        at = places[-1] + 1
        return [*body[:at], cst.parse_statement(call), *body[at:]]

    changed, count = _with_bodies(tree, change)
    if count != 1:
        return tree, f"{name} is not made by one call at one place of the script"
    if is_torch[0] and ("state_dict" in tree.code or "import torch\n" not in tree.code):
        return tree, "model.compile() compiles none of torch's own classes; give it a class of your own"
    return changed, ""


def _models_of(tree: cst.Module) -> set[str]:
    """Return the expressions that stand for the model: whose parameters are asked for, and what is made of it."""
    found = _parameters_of(tree)
    assigned: Any = m.findall(tree, m.Assign(value=m.Call()))
    for one in assigned:
        if {tree.code_for_node(arg.value) for arg in one.value.args} & found:
            found |= {tree.code_for_node(target.target) for target in one.targets}
    return found - {"self"}


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
    models = _models_of(tree)
    whys_not = ["no loss.backward() follows a call of the model in the same block of the script"]

    def is_model(node: cst.CSTNode) -> bool:
        return tree.code_for_node(node) in models

    def calls_model(node: cst.CSTNode) -> bool:  # or hands it to a function that may
        calls: Any = m.findall(node, m.Call())
        for call in calls:
            is_method = isinstance(call.func, cst.Attribute) and is_model(call.func.value)
            if is_model(call.func) or (not is_method and any(is_model(arg.value) for arg in call.args)):
                return True
        return False

    def change(body: list[Any]) -> list[Any] | None:
        at = next((i for i, line in enumerate(body) if m.matches(line, _BACKWARD)), None)
        if at is None:
            return None
        receiver = body[at].body[0].value.func.value
        if calls_model(receiver):
            whys_not.append("the forward and its backward() are in one statement")
            return None
        first = next((i for i, line in enumerate(body[:at]) if calls_model(line)), None)
        if first is None:
            return None
        losses = {node.value for node in m.findall(receiver, m.Name()) if isinstance(node, cst.Name)}
        last = max([first, *(i for i in range(first, at) if losses & _assigned_names(body[i]))])
        region = cst.parse_expression(f'torch.autocast("{device}", dtype=torch.bfloat16)')
        inner = [body[first].with_changes(leading_lines=()), *body[first + 1 : last + 1]]
        block = cst.With([cst.WithItem(region)], cst.IndentedBlock(inner), leading_lines=body[first].leading_lines)
        return [*body[:first], block, *body[last + 1 :]]

    changed, count = _with_bodies(tree, change)
    return (changed, "") if count else (tree, whys_not[-1])


def _assigned_names(line: cst.CSTNode) -> set[str]:
    """Return the names that a statement, or one within it, assigns."""
    targets: Any = m.findall(line, m.AssignTarget() | m.AugAssign())
    return {n.value for one in targets for n in m.findall(one.target, m.Name()) if isinstance(n, cst.Name)}


def without_synchronize(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave out the calls of ``synchronize()`` that are these lines, whose result nothing takes."""

    def change(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | cst.RemovalSentinel | None:
        kept = [part for part in line.body if not m.matches(part, _SYNCHRONIZE)]
        if len(kept) == len(line.body):
            return None
        kept[-1:] = [part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for part in kept[-1:]]
        return line.with_changes(body=kept) if kept else cst.RemoveFromParent()  # a block left empty gets a `pass`

    return _at_lines(tree, lines, {cst.SimpleStatementLine: change}, "is not a call of synchronize() by itself")


def without_contiguous(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave ``.contiguous()`` out of these lines; an operator that needs it then fails."""

    def change(call: Any) -> cst.BaseExpression | None:  # of a call, whose function is an attribute
        return call.func.value if m.matches(call, _CONTIGUOUS) else None

    return _at_lines(tree, lines, {cst.Call: change}, "calls no contiguous()")


def with_device_argument(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Make on the device what these lines make and then copy there.

    ``torch.zeros(n).to(device)`` becomes ``torch.zeros(n, device=device)``. Random numbers are left alone, since a
    device draws others, and so are tensors of the script's own values, which are copied either way.
    """
    why = "makes no tensor that torch could make on the device"
    return _at_lines(tree, lines, {cst.Call: _made_on_device}, why)


def _made_on_device(call: cst.Call) -> cst.Call | None:
    device = _device_of(call) if m.matches(call, _MOVED) else None
    made: Any = getattr(call.func, "value", None)
    if device is None or any(arg.star or (arg.keyword and arg.keyword.value == "device") for arg in made.args):
        return None
    before = [*made.args[:-1], *(arg.with_changes(comma=_COMMA) for arg in made.args[-1:])]
    return cst.ensure_type(made, cst.Call).with_changes(args=[*before, cst.Arg(device, cst.Name("device"), _EQUAL)])


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
    changes: _Changes = {cst.Call: _masked_call, cst.Assign: _masked_assignment}
    return _at_lines(tree, lines, changes, "neither reduces nor assigns what a mask chooses")


def _masked_call(call: Any) -> cst.Call | None:  # of a call, whose function is an attribute
    if not m.matches(call, _REDUCED):
        return None
    value, mask = _masked_parts(call.func.value)
    is_plain = isinstance(value, cst.BinaryOperation | cst.UnaryOperation | cst.Comparison)
    value = value.with_changes(lpar=[], rpar=[]) if is_plain else value  # which an argument needs no parentheses for
    return _of_indexing(f"masked_{call.func.attr.value}", value, mask)


def _masked_assignment(line: cst.Assign) -> cst.Expr | None:
    target, value = line.targets[0].target, line.value
    if len(line.targets) > 1 or not m.matches(target, _MASKED):
        return None
    source, mask = _masked_parts(target)
    is_each = m.matches(value, _NUMBER)
    if m.matches(value, _MASKED):  # of another tensor, where the same mask chooses
        value, same = _masked_parts(value)
        is_each = same.deep_equals(mask)
    return cst.Expr(_of_indexing("assign_where", source, mask, value)) if is_each else None


def _masked_parts(subscript: Any) -> tuple[cst.BaseExpression, cst.BaseExpression]:  # a Subscript, as matched
    return subscript.value, subscript.slice[0].slice.value


def _of_indexing(name: str, *values: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(cst.Name("indexing"), cst.Name(name)), [cst.Arg(value) for value in values])


def with_kept_values(tree: cst.Module, lines: Sequence[int]) -> tuple[cst.Module, str]:
    """Leave on the device what these lines read with ``.item()`` only to add it up or keep it.

    ``total += loss.item()`` becomes ``total = total + loss.detach()``, ``last = loss.item()`` becomes ``last =
    loss.detach()``: the same number, of which a later ``print`` or ``float()`` waits once.
    """
    augmented = {name for node in m.findall(tree, m.AugAssign()) for name in _assigned_names(node)}
    operators = {cst.AddAssign: cst.Add, cst.SubtractAssign: cst.Subtract}

    def added(line: cst.AugAssign) -> cst.Assign | None:
        operator, value = operators.get(type(line.operator)), _kept(line.value)
        if operator is None or value is None:
            return None
        if isinstance(value, cst.BinaryOperation) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return cst.Assign([cst.AssignTarget(line.target)], cst.BinaryOperation(line.target, operator(), value))

    def assigned(line: cst.Assign) -> cst.Assign | None:
        value, names = _kept(line.value), [target.target for target in line.targets]
        is_plain = all(isinstance(name, cst.Name) and name.value not in augmented for name in names)
        return line.with_changes(value=value) if value is not None and is_plain else None

    changes: _Changes = {cst.AugAssign: added, cst.Assign: assigned}
    return _at_lines(tree, lines, changes, "neither adds the value up nor only keeps it")


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
