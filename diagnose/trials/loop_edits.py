"""Edits of the training loop in a syntax tree: autocast around the forward, and other constructors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from diagnose.trials.kept_values import assigned_names, with_kept_values
from diagnose.trials.line_edits import (
    with_device_argument,
    with_gradients_set_to_none,
    with_masked_results,
    without_contiguous,
    without_synchronize,
)
from diagnose.trials.model_edits import parameters_of, with_compiled_model
from diagnose.trials.replaced_calls import with_calls
from diagnose.trials.saver_edits import with_background_saver

__all__ = [
    "imports_torch",
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

_UNSAFE = m.Name("BCELoss") | m.Name("binary_cross_entropy")
_UNSAFE_LOSS = m.Call(func=_UNSAFE | m.Attribute(attr=_UNSAFE))
_BACKWARD = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(attr=m.Name("backward"))))])


def with_autocast(tree: cst.Module, device: str) -> tuple[cst.Module, str]:
    """Put what leads from a call of the model to its loss under bf16 autocast; return the tree, or why it is not done.

    The model is what an optimizer was given the parameters of, or what was made of that by one call.
    """
    if "autocast" in tree.code:
        return tree, "the script uses autocast itself"
    if "GradScaler" in tree.code:
        return tree, "the script scales its loss already, which autocast in bf16 does without"
    if not imports_torch(tree):
        return tree, "the script does not import torch by that name"
    if device.startswith("cuda") and m.findall(tree, _UNSAFE_LOSS):
        return (
            tree,
            "torch refuses BCELoss under autocast on a GPU: take BCEWithLogitsLoss, of what precedes the sigmoid",
        )
    editor = _Autocast(tree, _models(tree), device)
    changed = tree.visit(editor)
    return (changed, "") if editor.count else (tree, editor.why)


class _Autocast(cst.CSTTransformer):
    """Wraps the statements before each ``loss.backward()``."""

    def __init__(self, tree: cst.Module, models: frozenset[str], device: str) -> None:
        super().__init__()
        self.tree, self.models, self.device = tree, models, device
        self.count = 0
        self.why = "no loss.backward() follows a call of the model in the same block of the script"

    def leave_IndentedBlock(  # libcst calls it so
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        del original_node
        return updated_node.with_changes(body=self._wrapped(list(updated_node.body)))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        del original_node
        return updated_node.with_changes(body=self._wrapped(list(updated_node.body)))

    def _wrapped(self, body: list[Any]) -> list[Any]:
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
        assigned = [i for i in range(first, at) if losses & assigned_names(body[i])]
        last = max([first, *assigned])
        self.count += 1
        return [*body[:first], self._region(body[first : last + 1]), *body[last + 1 :]]

    def _region(self, lines: Sequence[Any]) -> cst.With:
        region = cst.parse_expression(f'torch.autocast("{self.device}", dtype=torch.bfloat16)')
        head = lines[0].with_changes(leading_lines=())
        return cst.With([cst.WithItem(region)], cst.IndentedBlock([head, *lines[1:]])).with_changes(
            leading_lines=lines[0].leading_lines
        )

    def _calls_model(self, node: cst.CSTNode) -> bool:
        """Return whether the node calls the model, or hands it to a function that may."""
        for call in _calls(node):
            method = isinstance(call.func, cst.Attribute) and self._is_model(call.func.value)
            if self._is_model(call.func) or (not method and any(self._is_model(arg.value) for arg in call.args)):
                return True
        return False

    def _is_model(self, node: cst.CSTNode) -> bool:
        return self.tree.code_for_node(node) in self.models


def _models(tree: cst.Module) -> frozenset[str]:
    """Return the expressions that stand for the model: whose parameters are asked for, and what is made of it."""
    found = parameters_of(tree)
    for assignment in m.findall(tree, m.Assign(value=m.Call())):
        assert isinstance(assignment, cst.Assign), "as was asked for"
        assert isinstance(assignment.value, cst.Call), "as was asked for"
        if {tree.code_for_node(arg.value) for arg in assignment.value.args} & found:
            found |= {tree.code_for_node(target.target) for target in assignment.targets}
    return frozenset(found - {"self"})


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    return (call for call in m.findall(node, m.Call()) if isinstance(call, cst.Call))


def with_threads(tree: cst.Module, threads: int) -> tuple[cst.Module, str]:
    """Wrap the dataset of every DataLoader that the script makes, so that threads load its samples."""
    return _with_dataset(tree, "ConcurrentSamples", f", threads={threads}")


def with_sharded_stream(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Wrap the dataset of every DataLoader that the script makes, so that its workers share the stream out."""
    return _with_dataset(tree, "ShardedStream", "")


def _with_dataset(tree: cst.Module, wrapper: str, others: str) -> tuple[cst.Module, str]:
    if wrapper in tree.code:
        return tree, f"the script uses {wrapper} itself"
    return with_calls(tree, ("DataLoader",), lambda call: _wrapped_dataset(call, wrapper, others), "with a dataset")


def _wrapped_dataset(call: cst.Call, wrapper: str, others: str) -> cst.Call | str:
    args = list(call.args)
    at = next((i for i, arg in enumerate(args) if arg.keyword and arg.keyword.value == "dataset"), 0)
    if not args or args[at].star or (at == 0 and args[0].keyword and args[0].keyword.value != "dataset"):
        return ""
    wrapped = cst.parse_expression(f"{wrapper}(dataset{others})")
    assert isinstance(wrapped, cst.Call), "as written above"
    first = wrapped.args[0].with_changes(value=args[at].value)
    args[at] = args[at].with_changes(value=wrapped.with_changes(args=[first, *wrapped.args[1:]]))
    return call.with_changes(args=args)


def with_length_batches(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Let every DataLoader that shuffles draw batches of like lengths, each of as many samples as before."""
    if "LengthBatches" in tree.code:
        return tree, "the script uses LengthBatches itself"
    return with_calls(tree, ("DataLoader",), _by_length, "with batch_size and shuffle=True")


def _by_length(call: cst.Call) -> cst.Call | str:
    names = ("dataset", "batch_size", "shuffle")
    given = {arg.keyword.value if arg.keyword else names[i]: arg for i, arg in enumerate(call.args[: len(names)])}
    given |= {arg.keyword.value: arg for arg in call.args if arg.keyword}
    shuffles = "shuffle" in given and m.matches(given["shuffle"].value, m.Name("True"))
    if not shuffles or "batch_size" not in given or "dataset" not in given:
        return ""
    unnamed = [arg for arg in call.args[len(names) :] if not arg.keyword]
    if unnamed or any(arg.star for arg in call.args) or {"sampler", "batch_sampler", "drop_last"} & set(given):
        return "its DataLoader has a sampler or drop_last, or arguments that are not known"
    dataset, size = given["dataset"].value, given["batch_size"].value
    if not m.matches(dataset, m.Name() | m.Attribute()):
        return "the dataset is made in the call of the DataLoader"
    sampler = cst.parse_expression("LengthBatches(lengths_of(dataset), max_samples=size)")
    sampler = sampler.with_deep_changes(sampler.args[0].value.args[0], value=dataset)  # type: ignore[attr-defined]  # as written
    sampler = sampler.with_deep_changes(sampler.args[1], value=size)  # type: ignore[attr-defined]
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    kept = [arg for arg in call.args if all(arg is not given[name] for name in names)]
    made = cst.Arg(sampler, cst.Name("batch_sampler"), equal, comma=comma if kept else cst.MaybeSentinel.DEFAULT)
    return call.with_changes(args=[given["dataset"].with_changes(comma=comma), made, *kept])


OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
OF_ADAMW = frozenset({"lr", "betas", "eps", "weight_decay"})


def with_fused_adamw(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Make `FusedAdamW` in the place of AdamW, and leave clipping to its author."""
    return with_calls(tree, ("AdamW",), lambda call: _renamed(call, "FusedAdamW", OF_ADAMW | {"maximize"}))


def with_eight_bit_adamw(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Make AdamW of all parameters of a model as `eight_bit_adamw` of that model."""
    return with_calls(tree, ("AdamW",), _of_a_model)


def with_zero_optimizer(tree: cst.Module, _device: str) -> tuple[cst.Module, str]:
    """Make every optimizer of torch's by `zero_optimizer`, with its class as the first argument."""

    def change(call: cst.Call) -> cst.Call:
        first = cst.Arg(call.func, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        return call.with_changes(func=cst.Name("zero_optimizer"), args=[first, *call.args])

    return with_calls(tree, OPTIMIZERS, change)


def _renamed(call: cst.Call, name: str, takes: frozenset[str]) -> cst.Call | str:
    unknown = [arg.keyword.value for arg in call.args if arg.keyword and arg.keyword.value not in {*takes, "params"}]
    if unknown:
        return f"{name} does not take {unknown[0]}"
    if any(arg.star for arg in call.args):
        return "its arguments stand in a list that is not known"
    return call.with_changes(func=cst.Name(name))


def _of_a_model(call: cst.Call) -> cst.Call | str:
    first = call.args[0].value if call.args and not call.args[0].keyword else None
    if first is None or not m.matches(first, m.Call(func=m.Attribute(attr=m.Name("parameters")), args=[])):
        return "the optimizer is not made of all parameters of one model"
    assert isinstance(first, cst.Call), "as matched"
    assert isinstance(first.func, cst.Attribute), "as matched"
    model = call.args[0].with_changes(value=first.func.value)
    return _renamed(call.with_changes(args=[model, *call.args[1:]]), "eight_bit_adamw", OF_ADAMW)


def imports_torch(tree: cst.Module) -> bool:
    """Return whether the script calls torch by its own name."""
    return "import torch\n" in tree.code or "import torch," in tree.code
