"""Records whole steps as a program, from one step boundary to another."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from diagnose.capture.dataflow.contents import MAX_WHOLE_BYTES, Contents
from diagnose.capture.dataflow.mode import FlowMode, Limits, accept_higher_order
from diagnose.capture.dataflow.modules import Modules, Roles
from diagnose.capture.dataflow.schemas import PLAIN_TENSORS, tensors_in
from diagnose.capture.dataflow.stacks import COMPILED
from diagnose.capture.dataflow.storages import Storages
from diagnose.capture.dataflow.structure import MAX_SAMPLE
from diagnose.capture.dataflow.table import Recorded, dataflow
from diagnose.capture.steps.hooks import Undo, around, replace_function, undo_all
from diagnose.model.dataflow import Dataflow

# Puts full collections of garbage off while steps are recorded.
#
# What is recorded are many objects that live on, which makes Python search all objects of the process again: 0.1 s
# each time with torch imported, more than all else that recording takes. Young objects are collected as always.


def no_full_collections() -> Undo:
    """Let no full collection start by itself; return what ends that, and leaves thresholds set meanwhile."""
    before = gc.get_threshold()
    held = (*before[:2], (1 << 31) - 1)
    gc.set_threshold(*held)

    def undo() -> None:
        if gc.get_threshold() == held:
            gc.set_threshold(*before)

    return undo


# Lets what torch.compile has made run eagerly, and what compiles itself run as it does.


class EagerStance:
    """The compiler's stance while steps are recorded."""

    def __init__(self) -> None:
        self._before: Any = None

    def start(self) -> None:
        """Run compiled regions eagerly; does nothing where nothing has been compiled."""
        compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
        if compiler is not None:
            self._before = compiler._stance
            torch.compiler.set_stance("force_eager")

    def stop(self) -> None:
        """Put the stance back that was there."""
        compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
        if self._before is not None:
            compiler._set_stance(self._before)
            self._before = None

    @contextmanager
    def left(self) -> Iterator[None]:
        """Compile in this block as if nothing were recorded, without any mode."""
        self.stop()
        try:
            with _disable_current_modes():
                yield
        finally:
            self.start()


# Reports work that passes the dispatcher by: Triton kernels that the script launches itself, and replayed graphs.

GRAPH = "cuda::graph_replay"


def watch_launches(launched: Callable[[str, list[torch.Tensor]], None]) -> Undo:
    """Call ``launched`` before each launch, with a name and the tensors that it is given; return what ends that."""
    undo = []
    triton = sys.modules.get("triton.runtime.jit")
    if triton is not None:

        def watched(run: Any) -> Callable[..., Any]:
            def watched_run(self: Any, *args: Any, **kwargs: Any) -> Any:
                launched(f"triton::{self.__name__}", tensors_in([*args, *kwargs.values()]))
                return run(self, *args, **kwargs)

            return watched_run

        undo.append(replace_function(triton.JITFunction, "run", watched))
    if hasattr(torch.cuda.CUDAGraph, "replay"):
        undo.append(around(torch.cuda.CUDAGraph, "replay", before=lambda _graph: launched(GRAPH, [])))

    return undo_all(undo)


# Reports what Python does with the content of a tensor without an operator: ``tolist``, ``numpy`` and their like.

READERS = ("tolist", "numpy")  # ``__array__`` calls ``numpy``; ``item`` and comparisons are operators
SHARERS = ("__dlpack__", "data_ptr")  # they hand the memory to code that torch does not know


def watch_host_reads(used: Callable[[torch.Tensor, str, bool], None]) -> Undo:
    """Call ``used`` before each such call, with the tensor, the method's name and whether it only reads."""

    def before(name: str) -> Callable[[Any], None]:
        return lambda tensor: used(tensor, name, name in READERS)

    return undo_all([around(torch.Tensor, name, before=before(name)) for name in (*READERS, *SHARERS)])


_SAMPLED = (
    f"Of values on {{device}} {MAX_SAMPLE} elements each were looked at; of integers and square matrices all, up to "
    f"{MAX_WHOLE_BYTES >> 10} kB."
)


class DataflowWindow:
    """Holds the mode while it is on the stack; everything happens on the thread that steps."""

    def __init__(self, contents: Contents | None = None, limits: Limits | None = None) -> None:
        self.num_steps = 0  # whole ones
        self._modules, self._contents = Modules(), contents or Contents()
        self._mode = FlowMode(self._contents, self._modules, limits or Limits())
        self._roles = Roles(self._modules, self._mode.storages)
        self._stance = EagerStance()
        self._undo: list[Undo] = []
        self._is_open = False
        self._has_graphs = False
        self._first_nodes: list[int] = []  # of each step, by their numbers

    def start(self) -> None:
        """Begin to record, at a step boundary."""
        self._is_open = True
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        self._undo.append(no_full_collections())
        accept_higher_order()
        self._stance.start()
        self._undo.append(self._stance.stop)
        self._modules.start()
        self._undo.append(self._modules.stop)
        self._undo.append(watch_host_reads(self._mode.note_python))
        self._undo.append(register_optimizer_step_pre_hook(self._optimizer_steps).remove)
        self._undo.append(around(torch.Tensor, "requires_grad_", after=self._mode.note_asked))
        self._undo += [replace_function(torch, name, self._taking_over) for name in ("from_numpy", "as_tensor")]
        self._undo.append(watch_launches(self._launched))
        self._undo.append(replace_function(torch, "cond", self._outside))
        with _without_modes_of_the_script(None):  # which then are above, so that each leaves the stack as it came
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    @property
    def is_recording(self) -> bool:
        """Return whether operators are still recorded."""
        return self._is_open and self._mode.is_on

    def end_step(self) -> None:
        """Take notice that a step is over."""
        if not self._mode.is_on:
            return
        try:
            self._roles.end_step()
        except Exception as error:  # modules and optimizers of the script's own classes
            self._mode.fail(error)
            return
        self.num_steps += 1
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        self._mode.step = self._mode.storages.step = self.num_steps

    def stop(self) -> None:
        """End recording, at a step boundary or wherever the script has come to; hooks are removed."""
        if not self._is_open:
            return
        self._is_open = self._mode.is_on = False
        self._mode.storages.end()
        with _without_modes_of_the_script(self._mode) as is_there:
            if is_there:
                self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        while self._undo:
            self._undo.pop()()

    @property
    def cost_ns(self) -> int:
        """Return what recording has taken so far."""
        return self._mode.cost_ns

    @property
    def storages(self) -> Storages:
        """Return the storages that the steps have touched."""
        return self._mode.storages

    @property
    def wide_buffers(self) -> dict[str, tuple[str, int]]:
        """Return the buffers of 64-bit floats, with file and line of the ``__init__`` of their module's class."""
        return self._roles.wide

    @property
    def earlier_nodes(self) -> range:
        """Return the numbers of autograd's nodes that the steps before the last whole one have made."""
        return range(self._first_nodes[0], self._first_nodes[-2])

    def pause(self) -> None:
        """Record no more, wherever the script is; ``stop`` has to follow where an operator cannot be running."""
        self._mode.is_on = False

    def result(self, *, rank: int = 0) -> Dataflow:
        """Return what was recorded of whole steps."""
        left_out = []
        if self._mode.why_ended:
            left_out.append(f"Recording ended inside step {self.num_steps + 1}: {self._mode.why_ended}.")
        if self._mode.is_short_of_time:
            left_out.append("Contents of values were looked at in a part of the steps only, which took long enough.")
        left_out += [_SAMPLED.format(device=device) for device in self._contents.devices]
        if any(operator.walk.kinds & COMPILED for operator in self._mode.operators):
            left_out.append("What torch.compile has made ran eagerly in these steps.")
        if self._has_graphs:
            left_out.append("CUDA graphs were replayed: what they run is not in this table.")
        if others := sorted(kind.__name__ for kind in self._mode.subclasses - PLAIN_TENSORS):
            left_out.append(f"Operators on {', '.join(others)} are those that they run on ordinary tensors.")
        if self._modules.threads - {operator.thread for operator in self._mode.operators}:
            left_out.append("What threads that the script has started itself run is not in this table.")
        recorded = Recorded(self._mode, self._roles, self._contents.finish(), self._modules.names())
        return dataflow(recorded, self.num_steps, rank, left_out)

    def _outside(self, cond: Any) -> Callable[..., Any]:
        """Run ``torch.cond``, which compiles itself, as without a recording: torch 2.13 fails to run it eagerly."""

        def unrecorded_cond(*args: Any, **kwargs: Any) -> Any:
            self._mode.note_opaque("higher_order::cond", tensors_in([*args, *kwargs.values()]))
            with self._stance.left():
                return cond(*args, **kwargs)

        return unrecorded_cond

    def _taking_over(self, make: Any) -> Callable[..., Any]:
        """Note what ``make`` makes of an array."""

        def noted_make(data: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = make(data, *args, **kwargs)
            if not isinstance(data, torch.Tensor):
                self._mode.note_array(tensor)
            return tensor

        return noted_make

    def _launched(self, name: str, tensors: list[torch.Tensor]) -> None:
        self._has_graphs |= name == GRAPH
        self._mode.note_launch(name, tensors)

    def _optimizer_steps(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._mode.is_on:
            try:
                self._roles.optimizer_steps(optimizer)
            except Exception as error:  # an optimizer of the script's own class
                self._mode.fail(error)

    def __enter__(self) -> DataflowWindow:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


@contextmanager
def _without_modes_of_the_script(mode: FlowMode | None) -> Iterator[bool]:
    """Take the modes above ``mode`` (all, if None) off the stack in this block; yield whether ``mode`` is there."""
    above = []
    while (top := _python_dispatch._get_current_dispatch_mode()) is not None and top is not mode:
        above.append(_python_dispatch._pop_mode())
    try:
        yield top is mode
    finally:
        for each in reversed(above):
            _python_dispatch._push_mode(each)
