"""Compiles a model in the mode that fits its bottleneck.

What it cures
    `launch-bound` and `unfused-elementwise`: many small operators become few kernels. `recompilation`: what compiles
    again in every step is named before the run instead of during it. `kernel-latency` with CUDA graphs.

When it does not help
    Steps that wait for data or for the host, models that are large matrix products already, and runs shorter than the
    compilation. Each graph break costs a part of the gain; they are listed with their lines.

Cost
    10 to 60 s for the first call of each shape (less with the cache on disk), before training starts. With CUDA graphs
    the memory of one step stays reserved for each captured shape.

Numerics
    Different in rounding, since operators are merged and products may be summed in another order; the report has the
    largest difference from the eager outputs where these are the same each time. Dropout draws other numbers.

Example::

    from diagnose.kernels.compiling import compile_in_place, compile_log

    samples = [(torch.randn(16, 4),)]  # the arguments of one call; two sizes where sizes change
    # before: model = torch.compile(model, mode="reduce-overhead")
    report = compile_in_place(model, samples, cause="launch-bound", backend="aot_eager")  # inductor if left out
    log(report)  # the mode and why, graphs, breaks with their lines, seconds
    with compile_log() as watch:
        for x, y in loader:
            report.mark_step()  # needed by CUDA graphs, nothing otherwise
            train_step(x, y)
    log(watch.recompiles)  # which guard failed, if anything compiled again
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from diagnose.kernels._compile_log import Break, CompileLog, compile_log
from diagnose.kernels._nested import tensors
from diagnose.kernels._state import trial_passes

__all__ = ["Break", "CompileLog", "CompileReport", "choose_mode", "compile_in_place", "compile_log", "compiled_call"]

Sample: TypeAlias = tuple[Any, ...] | Mapping[str, Any]
"""The arguments of one call: a tuple of positional ones, or a mapping of named ones."""

BY_LAUNCHES = frozenset({"launch-bound", "kernel-latency", "cpu-bound"})
"""Causes that fewer launches cure: CUDA graphs replay a whole graph with one."""

BY_KERNELS = frozenset({"slow-kernel", "kernel-bound", "misaligned-matmul"})
"""Causes within kernels, for which it is worth trying several implementations of each product."""

WITH_CUDA_GRAPHS = frozenset({"reduce-overhead", "max-autotune"})


@dataclass(frozen=True)
class CompileReport:
    """What became of the model. ``mode`` is None where it runs as before; ``reason`` is why.

    ``cold_seconds``: all warm-up calls together. ``difference``: the largest of the outputs relative to their largest
    value; None where outputs are random or nothing was compiled.
    """

    model: nn.Module = field(repr=False)
    mode: str | None
    reason: str
    graphs: int = 0
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[str, ...] = ()
    cold_seconds: float = 0.0
    cache_hits: int = 0
    difference: float | None = None

    def mark_step(self) -> None:
        """Mark the beginning of a step: outputs of the one before may be overwritten. Only CUDA graphs need it."""
        if self.mode in WITH_CUDA_GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def undo(self) -> None:
        """Let the model run eagerly again."""
        self.model._compiled_call_impl = None

    def __str__(self) -> str:
        """Return a few lines for a log."""
        if self.mode is None:
            return f"not compiled: {self.reason}"
        first = f"compiled in mode {self.mode} ({self.reason}): {self.graphs} graphs in {self.cold_seconds:.1f} s"
        return "\n".join([first, *(f"graph break at {b}" for b in self.breaks), *self.recompiles])


def choose_mode(cause: str | None, device_type: str, *, changing: bool) -> tuple[str, str]:
    """Return a mode of torch.compile and the reason; ``cause`` is the id of the rule with the largest finding.

    ``changing``: sizes differ between steps.
    """
    if device_type == "cpu":
        return "default", "CUDA graphs and autotuning are for devices"
    if cause in BY_LAUNCHES and not changing:
        return "reduce-overhead", f"{cause}: CUDA graphs replay all launches of a step at once"
    if cause in BY_LAUNCHES:
        return "default", f"{cause}, but sizes change, and CUDA graphs would be captured for each size"
    if cause in BY_KERNELS:
        return "max-autotune-no-cudagraphs", f"{cause}: several implementations of each product are tried"
    return "default", "merges operators" if cause is None else f"{cause}: merges operators"


def compile_in_place(
    model: nn.Module,
    samples: Sequence[Sample],
    *,
    cause: str | None = None,
    mode: str | None = None,
    backend: str | Callable[..., Any] = "inductor",
    **options: Any,  # torch.compile's own: fullgraph, dynamic
) -> CompileReport:
    """Compile the model's call, run it on every sample, backward too, and return what came of it.

    ``samples`` are the arguments of calls, tuples or mappings of names (``model(**batch)``); with two of different
    sizes the compiler makes the changing dimensions dynamic at once. Names of the state stay. Where compiling fails, or
    nothing was compiled, the model runs as before and the report has the reason; errors that the model itself raises
    are raised. No gradient, buffer or random generator changes.

    Raises:
        ValueError: no samples, an unknown mode, the model is compiled already, or a mode with CUDA graphs was asked for
            while sizes change.
    """
    changing = _check(model, samples, mode)
    device = next((t.device.type for t in (*model.parameters(), *tensors(list(samples)))), "cpu")
    chosen, reason = (mode, "as asked for") if mode else choose_mode(cause, device, changing=changing)
    with trial_passes(model):
        expected = [_run(model, sample) for sample in samples]
        repeated = [_run(model, sample) for sample in samples]
    start = time.perf_counter()
    model._compiled_call_impl = compiled_call(model, chosen, backend, options)
    with compile_log() as log, trial_passes(model):
        try:
            outputs = [_run(model, sample, marked=chosen in WITH_CUDA_GRAPHS) for sample in samples]
        except Exception as error:  # the model itself ran before, so this is the compiler's
            model._compiled_call_impl = None
            return CompileReport(model, None, f"{type(error).__name__}: {_sentence(error)}")
    seconds = time.perf_counter() - start
    if not log.graphs:
        model._compiled_call_impl = None
        return CompileReport(model, None, "the compiler found nothing to compile", breaks=log.breaks)
    same = _difference(expected, repeated) == 0
    return CompileReport(
        model,
        chosen,
        reason,
        graphs=log.graphs,
        breaks=log.breaks,
        recompiles=log.recompiles,
        cold_seconds=seconds,
        cache_hits=log.cache_hits,
        difference=_difference(expected, outputs) if same else None,
    )


def _check(model: nn.Module, samples: Sequence[Sample], mode: str | None) -> bool:
    """Return whether sizes change between samples."""
    if not samples or not all(isinstance(sample, tuple | Mapping) for sample in samples):
        raise ValueError(
            "compile_in_place needs at least one sample: a list of tuples, or of mappings of names, each the arguments "
            "of one call."
        )
    if model._compiled_call_impl is not None or hasattr(model, "_orig_mod"):
        raise ValueError(f"{type(model).__name__} is compiled already; pass the model as it was before.")
    known = () if mode is None else torch._inductor.list_mode_options()
    if mode is not None and mode not in known:
        raise ValueError(f"torch.compile has no mode {mode!r}; it has {', '.join(known)}.")
    changing = len({tuple(tensor.shape for tensor in tensors(sample)) for sample in samples}) > 1
    if changing and mode in WITH_CUDA_GRAPHS:
        raise ValueError(
            f"Mode {mode!r} captures a CUDA graph for each size, and the samples differ in size; pad them to one size, "
            "or leave mode out."
        )
    return changing


def compiled_call(
    model: nn.Module, mode: str, backend: str | Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    """Return the compiled call; modules of torch's own are wrapped, since the compiler skips code of torch.

    ``nn.Sequential(...).compile()`` compiles nothing at all, without an error.
    """
    call: Callable[..., Any] = model._call_impl
    if type(model).__module__.startswith("torch."):
        inner = call

        def call(*args: Any, **kwargs: Any) -> Any:  # the module's own
            return inner(*args, **kwargs)

    if backend == "inductor":  # the only one with modes
        options = {**options, "mode": mode}
    compiled: Callable[..., Any] = torch.compile(call, backend=backend, **options)
    return compiled


def _run(model: nn.Module, sample: Sample, *, marked: bool = False) -> list[Tensor]:
    """Run forward, and backward where there is one; return detached outputs."""
    if marked:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    called = model(**sample) if isinstance(sample, Mapping) else model(*sample)
    outputs = tensors(_plain(called))
    losses = [output.float().sum() for output in outputs if output.requires_grad and not output.is_complex()]
    if losses:
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    kept = [output.detach().clone() for output in outputs]
    for parameter in model.parameters():
        parameter.grad = None
    return kept


def _plain(output: Any) -> Any:  # whatever the model returns
    """Return outputs of a class of their own (Hugging Face's) as a dictionary."""
    return dict(output) if hasattr(output, "keys") else output


def _difference(expected: Sequence[list[Tensor]], outputs: Sequence[list[Tensor]]) -> float:
    worst = 0.0
    for a, b in zip((t for ts in expected for t in ts), (t for ts in outputs for t in ts), strict=True):
        apart = torch.where(a == b, 0.0, (a.double() - b.double()).abs())  # equal infinities are equal
        apart = apart[~(a.isnan() & b.isnan())]
        if apart.numel():
            scale = float(a.double().abs().max())
            worst = max(worst, float(apart.max()) / scale if scale else float(apart.max()))
            if math.isnan(worst) or bool(apart.isnan().any()):
                return math.inf
    return worst


def _sentence(error: Exception) -> str:
    """Return the first line of a message that is no heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1
    return " ".join(lines[:count]) or "no message"
