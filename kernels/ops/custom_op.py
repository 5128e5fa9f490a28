"""Builds an operator of torch from one schema: plain PyTorch for every device, and a Triton program for GPUs.

What it cures
    `unfused-elementwise` and `slow-kernel`, where an expression of your own is what the diagnosis names. The operators
    of this folder are built with it.

When it does not help
    Where `torch.compile` already fuses the expression: it needs no operator. On a CPU, where the plain formula runs.

Cost
    Tens of µs a call on the host outside of `torch.compile`, several times what one of torch's own takes, which is why
    an operator should replace several others. A call that nothing has to see skips torch's dispatcher.

Numerics
    The plain formula and the program agree to rounding; ``using("eager")`` compares them at any time.

Example::

    from diagnose.kernels.ops.custom_op import checked, operator


    def check(x, factor):
        checked("halve", x=x)


    halve = operator(
        "example::halve",
        "(Tensor x, float factor) -> Tensor",
        check=check,
        eager=lambda x, factor: x * factor,
        fake=lambda x, factor: torch.empty_like(x),
        rows=(0,),
    )
    halve.register_autograd(
        lambda context, gradient: (gradient * context.factor, None),
        setup_context=lambda context, inputs, output: setattr(context, "factor", inputs[1]),
    )
    assert torch.equal(halve(torch.ones(3), 0.5), torch.full((3,), 0.5))
    torch.compile(halve, fullgraph=True, backend="aot_eager")(torch.ones(3), 0.5)
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from diagnose.kernels.ops import native
from diagnose.kernels.ops._batching import batching
from diagnose.kernels.ops._choice import Implementation, chosen, using

__all__ = [
    "FLOATING",
    "Implementation",
    "Operator",
    "checked",
    "operator",
    "same_shape",
    "sharded",
    "transforming",
    "using",
]

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
AUTOCAST_DEVICES = ("cpu", "cuda")
ORDINARY = frozenset({Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})

Function = Callable[..., Any]


class Operator:
    """An operator as it is called; ``definition`` is torch's object, for `opcheck` and for more rules.

    Arguments are positional, and none may be left out.
    """

    def __init__(
        self,
        definition: CustomOpDef,
        run: Function,
        eager: Function,
        check: Function,
        rows: frozenset[int],
        *,
        casts: bool,
    ) -> None:
        self.definition, self._run, self._eager, self._check, self._rows = definition, run, eager, check, rows
        schema = definition._opoverload._schema
        self._places = [place for place, argument in enumerate(schema.arguments) if str(argument.type) == "Tensor"]
        self._function: type[torch.autograd.Function] | None = None
        self._may_skip = not schema.is_mutable
        self._is_checked = False  # by torch, at the first call: that no result is an argument
        self._casts = casts  # under autocast

    def __call__(self, *arguments: Any) -> Any:  # as the schema has it
        """Run the operator; or its formula, under transforms of `torch.func` that torch has not opened to operators.

        The formula too if a tensor is a DTensor: torch knows how its own operators are sharded.
        """
        if torch.compiler.is_compiling():
            return (self._eager if sharded(*arguments) else self.definition)(*arguments)
        if self._is_checked and self._is_plain(arguments):
            return self._run_directly(arguments)
        if not all(isinstance(arguments[place], Tensor) for place in self._places):
            self._check(*arguments)  # names the argument; torch's error is about casts
        if self._needs_formula(arguments):
            self._check(*arguments)
            return self._eager(*arguments)
        result = self.definition(*arguments)
        self._is_checked = self._may_skip
        return result

    def _is_plain(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether nothing has to see the operator: no transform, mode or profiler, no tensor without data."""
        return (
            not torch._C._functorch.peek_interpreter_stack()
            and torch._C._len_torch_dispatch_stack() == 0
            and torch._C._len_torch_function_stack() == 0
            and not torch._C._autograd._profiler_enabled()
            and not (self._casts and torch._C._is_any_autocast_enabled())
            and all(type(a) in ORDINARY and not (isinstance(a, Tensor) and a.is_meta) for a in arguments)
            and all(isinstance(arguments[place], Tensor) for place in self._places)
        )

    def _run_directly(self, arguments: tuple[Any, ...]) -> Any:
        """Run without torch's dispatcher, on whose way an operator in Python takes longer than a GPU needs for it."""
        if not (torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)):
            return self._run(*arguments)
        if self._function is None:
            return self.definition(*arguments)  # whose backward pass raises that there is none
        return self._function.apply(*arguments)  # type: ignore[no-untyped-call]  # torch's

    def _needs_formula(self, arguments: tuple[Any, ...]) -> bool:
        functorch = torch._C._functorch
        if sharded(*arguments):
            return True
        if not transforming():
            return False
        stack = functorch.get_interpreter_stack()
        if len(stack) > 1 or stack[0].key() != functorch.TransformType.Vmap:
            return True
        batched = {i for i, a in enumerate(arguments) if isinstance(a, Tensor) and functorch.is_batchedtensor(a)}
        return not batched <= self._rows

    def register_autograd(self, backward: Function, *, setup_context: Function) -> None:
        """Give the operator its backward pass, as ``torch.library.register_autograd`` takes it."""
        self.definition.register_autograd(backward, setup_context=setup_context)

        def forward(ctx: Any, *arguments: Any) -> Any:  # with setup_context apart torch reads the signature each time
            output = self._run(*arguments)
            setup_context(ctx, arguments, output)
            return output

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        name = self.definition._opoverload._schema.name.rpartition("::")[2]
        self._function = type(name, (torch.autograd.Function,), members)


def operator(  # what an operator consists of
    name: str,
    schema: str,
    *,
    check: Function,
    eager: Function,
    fake: Function,
    program: str | None = None,
    rows: Sequence[int] = (),
    mutates: Sequence[str] = (),
    autocast: torch.dtype | None = None,
    twice: bool | Function = False,
) -> Operator:
    """Define ``name`` (``namespace::operator``) with ``schema``, and return it.

    ``check`` raises where the arguments are wrong, for real and for fake tensors alike; it runs first. ``eager`` is the
    formula in PyTorch's own operators, ``fake`` returns empty tensors of the result's shapes, dtypes and strides.
    ``program`` is ``module:function`` of the Triton launcher, imported at its first call. ``rows`` are the positions of
    tensors that may gain leading dimensions together, which is how `vmap` batches them; where others are batched,
    the formula is. Under autocast, floating tensors are cast to ``autocast``. ``twice`` lets autograd differentiate
    the operator through its formula, to any order: for operators that are backward passes themselves. Where the
    formula takes what was calculated before as given, it is another one that ``twice`` names.

    None of the functions may return an argument, or a view of one.
    """

    @functools.wraps(eager)
    def run(*arguments: Any) -> Any:  # as the schema has it
        check(*arguments)
        choice = chosen(name, tensors := _tensors(arguments))
        if choice == "native":
            return native.implementation(name, tensors[0].device.type)(*arguments)
        return _loaded(program)(*arguments) if program is not None and choice == "triton" else eager(*arguments)

    @functools.wraps(fake)
    def checked_fake(*arguments: Any) -> Any:
        check(*arguments)
        return fake(*arguments)

    defined = torch.library.custom_op(name, run, mutates_args=mutates, schema=schema)
    defined.register_fake(checked_fake)
    made = Operator(defined, run, eager, check, frozenset(rows), casts=autocast is not None)
    if not mutates:
        defined.register_vmap(batching(defined, frozenset(rows)))
    if autocast is not None:
        for device in AUTOCAST_DEVICES:
            _register_autocast(defined, device, autocast)
    if twice:
        made.register_autograd(_through_formula(eager if twice is True else twice), setup_context=_keep_inputs)
    return made


def _register_autocast(defined: CustomOpDef, device: str, dtype: torch.dtype) -> None:
    if hasattr(defined, "register_autocast"):
        defined.register_autocast(device, dtype)
        return
    key = f"Autocast{device.upper()}"  # torch 2.6 leaves the rule to be registered by hand

    def cast_and_run(*arguments: Any) -> Any:  # as the schema has it
        with torch.autocast(device, enabled=False):
            cast = [a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments]
            return defined._opoverload(*cast)

    name = defined._opoverload._schema.name.rpartition("::")[2]
    defined._lib.impl(name, cast_and_run, key)  # type: ignore[no-untyped-call]


def transforming() -> bool:
    """Return whether a transform of `torch.func` is at work, outside of compiling."""
    return not torch.compiler.is_compiling() and bool(torch._C._functorch.get_interpreter_stack())


def sharded(*arguments: Any) -> bool:
    """Return whether an argument, or an entry of a list among them, is a DTensor."""
    # By name, which torch.compile follows too: importing the class takes seconds.
    entries = [entry for argument in arguments for entry in (argument if type(argument) is list else [argument])]
    return any(type(entry).__name__ == "DTensor" for entry in entries)


def checked(operation: str, *, dtypes: Sequence[torch.dtype] = FLOATING, **tensors: Tensor | None) -> None:
    """Raise where a named tensor is none, has a dtype outside ``dtypes``, or lies on another device than the first.

    Raises:
        TypeError: no tensor, or another dtype.
        ValueError: another device.
    """
    first: tuple[str, torch.device] | None = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{operation} needs a tensor as {name}, not {type(tensor).__name__}.")
        if tensor.dtype not in dtypes:
            wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"{operation} needs {name} in one of {wanted}, not {tensor.dtype}; convert it with .to().")
        if first is None:
            first = (name, tensor.device)
        elif tensor.device != first[1]:
            raise ValueError(
                f"{operation} needs all tensors on one device; {first[0]} is on {first[1]}, {name} on {tensor.device}."
            )


def same_shape(operation: str, **tensors: Tensor | None) -> None:
    """Raise where the named tensors differ in shape or dtype.

    Raises:
        ValueError: another shape.
        TypeError: another dtype.
    """
    given = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    first, reference = given[0]
    for name, tensor in given[1:]:
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{operation} needs {name} in the shape of {first}, {tuple(reference.shape)}, "
                f"not {tuple(tensor.shape)}."
            )
        if tensor.dtype != reference.dtype:
            raise TypeError(f"{operation} needs {name} in the dtype of {first}, {reference.dtype}, not {tensor.dtype}.")


@functools.cache
def _loaded(program: str) -> Function:
    module, function = program.split(":")
    return getattr(importlib.import_module(f"diagnose.kernels.ops.triton_kernels.{module}"), function)  # type: ignore[no-any-return]


def _tensors(arguments: Sequence[Any]) -> list[Tensor]:
    found = [argument for argument in arguments if isinstance(argument, Tensor)]
    for argument in arguments:
        if isinstance(argument, list | tuple):
            found += [entry for entry in argument if isinstance(entry, Tensor)]
    return found


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # torch's names
    ctx.places = [place for place, value in enumerate(inputs) if isinstance(value, Tensor)]
    ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.save_for_backward(*[inputs[place] for place in ctx.places])


def _through_formula(eager: Function) -> Function:
    """Return a backward pass that differentiates the plain formula, itself differentiable again."""

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        tensors = list(ctx.saved_tensors)
        wanted = [
            i for i, place in enumerate(ctx.places) if ctx.needs_input_grad[place] and tensors[i].is_floating_point()
        ]

        def formula(*variables: Tensor) -> Any:
            values, current = list(ctx.others), list(tensors)
            for i, variable in zip(wanted, variables, strict=True):
                current[i] = variable
            for place, tensor in zip(ctx.places, current, strict=True):
                values[place] = tensor
            return eager(*values)

        outputs, pull, *_ = torch.func.vjp(formula, *[tensors[i] for i in wanted])
        cotangents = gradients if isinstance(outputs, tuple) else gradients[0]
        results: list[Any] = [None] * len(ctx.others)
        for i, gradient in zip(wanted, pull(cotangents), strict=True):
            results[ctx.places[i]] = gradient
        return tuple(results)

    return backward
