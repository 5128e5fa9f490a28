"""Remedies of a training loop against the code that they replace, for gpu/kernels.py."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from kernel_measures import GPU, REPEATS, Left, Row, apart, bar, kept, kernels_ms, peak_mb, release, wall_ms
from op_steps import NUM_TENSORS, clipped
from op_timing import DEVICE, alone_ms, host_us, median_ms
from ops import FUSED_BAR
from rows import in_turns, turns
from torch import Tensor, nn

from diagnose.kernels import ops
from diagnose.kernels.deferred_metrics import DeferredMetrics
from diagnose.kernels.offload import ActivationOffload
from diagnose.kernels.prefetch import DevicePrefetcher
from diagnose.kernels.step_graph import StepGraph

HIDDEN = 0.9
EPS = 1e-3  # as large as the clipped gradients: else AdamW's step would be the same whatever they are clipped to
TENSOR_SIZES = (10_000, 1_000_000) if GPU else (10, 100)
BATCH = (8_192, 4_096) if GPU else (64, 32)  # 64 MiB in bfloat16
NUM_BATCHES, WORK_MS = (40, 10.0) if GPU else (4, 0.1)
GRAPH_LAYERS, GRAPH_WIDTH, GRAPH_STEPS = (12, 256, 60) if GPU else (2, 8, 6)
PUSHES = 60 if GPU else 6
WIDE, FORWARD = ((4_096, 16_384), (8_192, 4_096)) if GPU else ((8, 16), (8, 16))  # rows and columns


def adamw(left: Left) -> Iterator[Row]:
    """Yield a step with the norm of all gradients clipped: torch's two calls, and ours."""
    for size in TENSOR_SIZES:
        found: dict[str, Row] = {}
        for way in ("ours", "torch", "ours, clip_factor"):
            row: Row = {"remedy": "FusedAdamW", "tensors": NUM_TENSORS, "of": size, "way": way}
            with kept(row):
                if left() < 3.0:
                    row["error"] = "left out: the time was over"
                else:
                    _, step = _adamw(way, size)
                    row["alone_ms"] = alone_ms(step, 2 * REPEATS)
                    row["device_ms"], row["host_us"] = median_ms(step, REPEATS), host_us(step)
                    found[way] = row
            yield row
        if {"ours", "torch"} <= found.keys():
            for what in ("alone_ms", "device_ms"):
                gain = found["torch"][what] / found["ours"][what]
                name = f"AdamW with max_norm, {NUM_TENSORS} × {size}: fused=True / ours, {what.removesuffix('_ms')}"
                yield bar(name, gain, FUSED_BAR)
    yield bar("AdamW with max_norm: parameters as torch's after 3 steps, 1e-6", float(_same_steps() <= 1e-6), 1.0)


def _adamw(way: str, size: int) -> tuple[list[Tensor], Callable[[], object]]:
    """Return parameters with gradients, all alike, and the step."""
    torch.manual_seed(0)
    parameters = [torch.randn(size, device=DEVICE, requires_grad=True) for _ in range(NUM_TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    if way == "torch":
        return parameters, clipped(torch.optim.AdamW(parameters, fused=True, eps=EPS), parameters)
    optimizer = ops.FusedAdamW(parameters, eps=EPS)
    if way == "ours":
        return parameters, clipped(optimizer, parameters)
    return parameters, lambda: optimizer.step(grad_scale=ops.clip_factor(parameters, 1.0))


def _same_steps() -> float:
    """Return how far the parameters are from torch's after three steps, relative."""
    ends = []
    for way in ("ours", "torch"):
        parameters, step = _adamw(way, TENSOR_SIZES[0])
        for _ in range(3):
            step()
        ends.append(torch.cat([parameter.detach() for parameter in parameters]))
    return apart(*ends)


def prefetch(left: Left) -> Iterator[Row]:
    """Yield how much of the copies is hidden beside products of matrices that take 10 ms."""
    batches = [torch.ones(BATCH, dtype=torch.bfloat16, pin_memory=GPU) for _ in range(6)]
    there = [batch.to(DEVICE) for batch in batches]
    # Of ones: the clocks stay where they are, and differences of a hundredth of a step can be seen.
    weight = torch.full((BATCH[1], BATCH[1]), 1 / BATCH[1], dtype=torch.bfloat16, device=DEVICE)
    products = max(round(WORK_MS / median_ms(lambda: there[0] @ weight, REPEATS)), 1)
    copy = median_ms(lambda: there[0].copy_(batches[0], non_blocking=True), REPEATS)

    def cycled(source: list[Tensor]) -> Iterable[Tensor]:
        return itertools.islice(itertools.cycle(source), NUM_BATCHES)

    def loop(source: Callable[[], Iterable[Tensor]]) -> float:
        _wait()
        start = time.perf_counter()
        for batch in source():
            made = batch
            for _ in range(products):
                made = made @ weight
        _wait()
        return (time.perf_counter() - start) / NUM_BATCHES

    ways: list[Callable[[], float]] = [
        lambda: loop(lambda: cycled(there)),
        lambda: loop(lambda: (b.to(DEVICE, non_blocking=True) for b in cycled(batches))),
        lambda: loop(lambda: DevicePrefetcher(cycled(batches), DEVICE)),
    ]
    found = turns(ways, 5 if left() > 20 else 3, dropped=1)
    alone, copied, ahead = map(statistics.median, found)
    hidden = 1 - (ahead - alone) / (copied - alone) if copied > alone else None
    each = [1 - (p - a) / (c - a) for a, c, p in zip(*found, strict=True) if c > a]
    yield {
        "remedy": "DevicePrefetcher", "batch_mb": batches[0].nbytes / 1e6, "batches": NUM_BATCHES,
        "products": products, "copy_ms": copy, "link_gb_s": batches[0].nbytes / copy / 1e6,
        "step_ms_batches_there": 1e3 * alone, "step_ms_copied_in_the_step": 1e3 * copied,
        "step_ms_prefetched": 1e3 * ahead, "hidden": hidden, "hidden_each_round": each,
        "at_most": 1 - 1 / NUM_BATCHES,  # nothing runs beside the first copy
    }  # fmt: skip
    if hidden is not None:
        yield bar(f"DevicePrefetcher: share of the copy that is hidden, of {NUM_BATCHES} batches", hidden, HIDDEN)


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def graph(left: Left) -> Iterator[Row]:
    """Yield a step of many small kernels, run by the host and replayed as a graph."""
    torch.manual_seed(0)
    batches = [torch.randn(64, GRAPH_WIDTH, device=DEVICE) for _ in range(4)]
    found: dict[str, Row] = {}
    ends: dict[str, Tensor] = {}
    for way in ("eager", "graph", "eager, fused", "graph, fused"):
        row: Row = {"remedy": "StepGraph", "layers": GRAPH_LAYERS, "way": way}
        with kept(row):
            if left() < 3.0:
                row["error"] = "left out: the time was over"
            else:
                row["step_ms"], row["device_ms"], ends[way], row["reason"] = _graph_steps(way, batches)
                found[way] = row
        yield row
    for kind in ("", ", fused"):
        one, other = f"eager{kind}", f"graph{kind}"
        if {one, other} <= found.keys():
            yield bar(f"StepGraph: eager / graph{kind}", found[one]["step_ms"] / found[other]["step_ms"], 1.0)
            same = torch.equal(ends[one], ends[other])
            yield {"remedy": "StepGraph", "same_bit_by_bit": same, "apart": apart(ends[other], ends[one])}
            yield bar(
                f"StepGraph: parameters as without{kind}, 1e-5", float(apart(ends[other], ends[one]) <= 1e-5), 1.0
            )
            if GPU:
                yield bar(f"StepGraph: captured{kind}", float(found[other]["reason"] is None), 1.0)


def _graph_steps(way: str, batches: list[Tensor]) -> tuple[float, float, Tensor, str | None]:
    """Return a step's time by the clock and on the device, its parameters in the end, why it was not captured."""
    torch.manual_seed(1)
    layers = [(nn.LayerNorm(GRAPH_WIDTH), nn.Linear(GRAPH_WIDTH, GRAPH_WIDTH), nn.GELU()) for _ in range(GRAPH_LAYERS)]
    model = nn.Sequential(*itertools.chain(*layers)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=GPU, fused="fused" in way or None)

    def whole_step(x: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    step = StepGraph(whole_step, DEVICE, optimizers=[optimizer]) if way.startswith("graph") else whole_step
    coming = itertools.cycle(batches)
    for _ in range(6):  # warm, and captured
        step(next(coming))
    _wait()
    start = time.perf_counter()
    for _ in range(GRAPH_STEPS):
        step(next(coming))
    _wait()
    taken = 1e3 * (time.perf_counter() - start) / GRAPH_STEPS
    device = (kernels_ms if GPU else wall_ms)(lambda: step(next(coming)))
    end = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return taken, device, end, getattr(step, "reason", None)


def deferred(left: Left) -> Iterator[Row]:
    """Yield whether pushing and reading metrics ever waits, where any wait raises, and what they take on the host."""
    del left
    weight = torch.randn(1_024 if GPU else 16, 1_024 if GPU else 16, device=DEVICE)
    row: Row = {"remedy": "DeferredMetrics", "pushes": PUSHES}
    metrics, early, raised = DeferredMetrics(), [], None
    row["mode_sees_item"] = _raises(lambda: weight.sum().item())  # else it would say nothing
    _set_mode("error")
    try:
        for step in range(PUSHES):
            loss = (weight @ weight)[0, 0] * 0 + step
            metrics.push(step, loss=loss, right=torch.full((), step, device=DEVICE), norms=weight[0, :4], lr=0.1)
            early += list(metrics.ready())
    except RuntimeError as error:
        raised = str(error)[:500]
    finally:
        _set_mode("default")
    row["handed_out_early"], row["raised"] = len(early), raised
    values = early + list(metrics.drain())
    row["values_right"] = [(n, found["loss"], found["right"], found["lr"]) for n, found in values] == [
        (n, float(n), n, 0.1) for n in range(PUSHES)
    ]
    row["step_ms_item"], row["step_ms_deferred"], row["step_ms_neither"] = _metric_times(weight)
    yield row
    right = raised is None and row["values_right"] and (row["mode_sees_item"] or not GPU)
    yield bar("DeferredMetrics: nothing raised where any wait does, values right", float(right), 1.0)


def _metric_times(weight: Tensor) -> list[float]:
    metrics = DeferredMetrics()

    def later(value: Tensor) -> None:
        metrics.push(0, loss=value)
        for _ in metrics.ready():
            pass

    def loop(use: Callable[[Tensor], object]) -> Callable[[], float]:
        def run() -> float:
            _wait()
            start = time.perf_counter()
            for _ in range(PUSHES):
                made = weight
                for _ in range(8):
                    made = torch.tanh(made @ weight)
                use(made.mean())
            _wait()
            return 1e3 * (time.perf_counter() - start) / PUSHES

        return run

    return in_turns([loop(Tensor.item), loop(later), loop(lambda _: None)], 5, dropped=1)


def _set_mode(mode: str) -> None:
    if GPU:
        torch.cuda.set_sync_debug_mode(mode)


def _raises(call: Callable[[], object]) -> bool:
    _wait()
    _set_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        _set_mode("default")
    return False


def offload(left: Left) -> Iterator[Row]:
    """Yield steps with activations on the device, on the host by torch's context, and by ours."""
    for case, make in (("products that hide the copies", _wide), ("a feed-forward block", _feed_forward)):
        if left() < 12.0:
            yield {"remedy": "ActivationOffload", "case": case, "error": "left out: the time was over"}
            continue
        torch.manual_seed(0)
        model, x = make()
        yield from _offloaded(case, model, x)
        del model, x
        release()


def _wide() -> tuple[nn.Module, Tensor]:
    """Return layers that compute for about 3.5 ms forward beside a copy of 128 MiB."""
    rows, width = WIDE
    layers = [(nn.Linear(width, width, bias=False, device=DEVICE, dtype=torch.bfloat16), nn.ReLU()) for _ in range(4)]
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    return nn.Sequential(*itertools.chain(*layers)), x


def _feed_forward() -> tuple[nn.Module, Tensor]:
    """Return blocks as transformers have them: 576 MiB of activations each, too much for the link to keep up."""
    rows, width = FORWARD

    def layer(a: int, b: int) -> nn.Module:
        return nn.Linear(a, b, bias=False, device=DEVICE, dtype=torch.bfloat16)

    blocks = [(layer(width, 4 * width), nn.GELU(), layer(4 * width, width)) for _ in range(4)]
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    return nn.Sequential(*itertools.chain(*blocks)), x


def _offloaded(case: str, model: nn.Module, x: Tensor) -> Iterator[Row]:
    mine = ActivationOffload()
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "on the device": nullcontext,
        "save_on_cpu": lambda: torch.autograd.graph.save_on_cpu(pin_memory=GPU),
        "ours": lambda: mine,
    }

    def step(way: str) -> None:
        with ways[way]():
            loss = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]

    def timed(way: str) -> Callable[[], float]:
        def run() -> float:
            _wait()
            start = time.perf_counter()
            step(way)
            _wait()
            return 1e3 * (time.perf_counter() - start)

        return run

    grads: dict[str, list[Tensor]] = {}
    rows: dict[str, Row] = {}
    for way in ways:  # beside gradients that are there, so that the peak is that of activations
        row: Row = {"remedy": "ActivationOffload", "case": case, "way": way}
        with kept(row):
            step(way)
            _zero(model)
            before = mine.num_bytes
            row["peak_mb"] = peak_mb(lambda: step(way))  # noqa: B023  # called at once
            row["went_out_mb"] = (mine.num_bytes - before) / 2**20 if way == "ours" else None
            grads[way] = [p.grad[:64].clone() for p in model.parameters()]
            rows[way] = row
        if "error" in row:
            yield row
    times = in_turns([timed(way) for way in rows], 5 if GPU else 2, dropped=1)
    plain = grads.get("on the device")
    for (way, row), taken in zip(rows.items(), times, strict=True):
        same = None if plain is None else all(map(torch.equal, grads[way], plain))
        counts = {"late": mine.late, "restored": mine.restored} if way == "ours" else {}
        row |= {"step_ms": taken, "same_gradients": same, **counts}
        yield row
    if {"ours", "save_on_cpu"} <= rows.keys():
        yield from _offload_bars(case, rows["ours"], rows["save_on_cpu"])


def _zero(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def _offload_bars(case: str, ours: Row, torchs: Row) -> Iterator[Row]:
    yield bar(f"offload, {case}: save_on_cpu / ours", torchs["step_ms"] / ours["step_ms"], 1.0)
    if GPU:
        yield bar(f"offload, {case}: the same, peak", torchs["peak_mb"] / ours["peak_mb"], 0.97)
    yield bar(f"offload, {case}: the same gradients", float(bool(ours.get("same_gradients"))), 1.0)
