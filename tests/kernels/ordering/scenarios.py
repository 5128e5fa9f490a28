"""What modules with streams are used for, on a fake device that fails if an access comes too early, by module."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnose.kernels import deferred_metrics, prefetch
from diagnose.kernels._host_copies import SideCopies
from diagnose.kernels.compiling import compile_in_place
from diagnose.kernels.deferred_metrics import DeferredMetrics
from diagnose.kernels.distributed._hook import Rounds, run_rounds
from diagnose.kernels.offload import ActivationOffload, offload_optimizer_state
from diagnose.kernels.prefetch import DevicePrefetcher
from diagnose.kernels.step_graph import StepGraph, _CudaRecorder
from tests.kernels.ordering.fake_device import HOST, FakeDevice, Unordered, fake_device

Patch = pytest.MonkeyPatch


class Opaque:
    """Moves itself, so that its tensor cannot be recorded with the allocator."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def to(self, device: Any, non_blocking: bool = False) -> Opaque:
        return Opaque(self.tensor.to(device, non_blocking=non_blocking))


def prefetcher(patch: Patch, wrap: Callable[[Tensor], Any], ahead: int) -> None:
    """Use batches that are freed while kernels that read them are queued."""
    patch.setattr(prefetch, "WITHOUT_STREAMS", frozenset())
    patch.setattr(prefetch, "needs_pin", lambda batch: False)
    with fake_device() as device:
        weight = device.made(8)
        for batch in DevicePrefetcher((wrap(device.pinned(8)) for _ in range(8)), "meta", ahead=ahead):
            (getattr(batch, "tensor", batch) * weight).sum()
            del batch


def network() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8, device="meta"), nn.GELU()) for _ in range(4)))


def offloaded_activations(patch: Patch, ahead: int) -> None:
    """Run steps whose inputs are freed, and their memory written, before the backward pass."""
    patch.setattr(SideCopies, "is_on_device", lambda self, tensor: tensor.is_meta)
    with fake_device() as device:
        model, offload = network(), ActivationOffload(min_bytes=0, ahead=ahead)
        for _ in range(3):
            x = device.made(4, 8)
            with offload:
                loss = model(x * 2).square().sum()
            del x
            device.made(4, 8)
            loss.backward()
            del loss
            gc.collect()
        assert offload.restored > 12


def offloaded_state(patch: Patch, is_early: bool) -> None:
    """Train with a state that is fetched by the step, or before it."""
    patch.setattr(SideCopies, "is_on_device", lambda self, tensor: tensor.is_meta)
    with fake_device() as device:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        state = offload_optimizer_state(optimizer, min_bytes=0)
        for _ in range(4):
            model(device.made(4, 8)).sum().backward()
            if is_early:
                state.fetch()
            optimizer.step()
            optimizer.zero_grad()
        assert state.num_bytes > 0
        state.undo()
        model(device.made(4, 8)).sum().backward()
        optimizer.step()


def step_graph(_: Patch) -> None:
    """Warm up, capture and replay a training step whose input and result the caller overwrites."""
    with fake_device() as device:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def whole_step(x: Tensor) -> dict[str, Tensor]:
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach()}

        step = StepGraph(whole_step, "meta", recorder=_CudaRecorder(torch.device("meta")), warm_up=3)
        for number in range(8):
            x = device.made(4, 8)
            loss = step(x)["loss"]
            x.mul_(2)
            loss.add_(1)
            model[0][0].weight.sum()
            del loss, x
            assert step.replays == max(0, number - 2), step.reason


def step_graph_on_several_streams(_: Patch) -> None:
    """Warm up for callers on streams of their own."""
    with fake_device() as device:
        weight = device.made(4)
        step = StepGraph(lambda x: x * weight, "meta", recorder=_CudaRecorder(torch.device("meta")), warm_up=5)
        for stream in [device.Stream(), device.Stream()] * 2:
            stream.wait_stream(device.current_stream())
            with device.stream(stream):
                result = step(device.made(4))
                result.add_(1)
                del result


def metrics(patch: Patch, is_finished: bool) -> None:
    """Push metrics and overwrite them; read them when they have arrived, or wait."""
    patch.setattr(deferred_metrics, "WITH_EVENTS", frozenset({"meta"}))
    with fake_device() as device:
        pending, seen = DeferredMetrics(max_pending=2), 0
        for step in range(6):
            loss = device.made(())
            pending.push(step, loss=loss, norm=loss * 2)
            loss.mul_(2)
            if is_finished:
                device.finish()
            seen += len(list(pending.ready()))
        assert seen == (5 if is_finished else 4)
        assert len(list(pending.drain())) == 6 - seen


class Backend:
    """Collectives of a backend that queues them on a stream of its own, or that has a thread of the host."""

    def __init__(self, device: FakeDevice, is_queued: bool) -> None:
        self.device, self.is_queued = device, is_queued
        self.stream, self.callbacks = device.Stream(), device.Stream()

    def name(self) -> str:
        return "nccl" if self.is_queued else "gloo"

    def _get_backend(self, _: torch.device) -> Backend:
        return self

    def all_reduce(self, tensor: Tensor) -> Backend:
        """Start it; the handle is this backend, since one runs at a time."""
        if self.is_queued:
            self.stream.wait_stream(self.device.current_stream())
            with self.device.stream(self.stream):
                tensor.add_(1)
            tensor.record_stream(self.stream)  # as NCCL's does
        else:
            self.device.learn("thread", self.device.clocks[HOST])
            self.device._access("thread", "all_reduce", [], [self.device._memory(tensor)])
        return self

    def wait(self) -> None:
        if self.is_queued:
            self.device.current_stream().wait_stream(self.stream)
        else:
            self.device.learn(HOST, self.device.clocks["thread"])

    def get_future(self) -> SimpleNamespace:
        return SimpleNamespace(then=self._then)

    def _then(self, callback: Callable[[Any], Tensor]) -> SimpleNamespace:
        self.callbacks.wait_stream(self.stream)
        with self.device.stream(self.callbacks):
            value = callback(None)
        return SimpleNamespace(value=lambda: value)


def exchanges(_: Patch, is_queued: bool) -> None:
    """Run two collectives that depend on each other, on memory that is given out again right after."""
    with fake_device() as device:
        backend = Backend(device, is_queued)

        def memory() -> Tensor:
            return device.made(8) if is_queued else torch.zeros(8)

        def rounds() -> Rounds:
            first, second = memory(), memory()
            yield functools.partial(backend.all_reduce, first), (first, second)
            second.add_(first)
            del first
            yield functools.partial(backend.all_reduce, second), (second,)
            return second * 2

        for _ in range(2):
            future = run_rounds(rounds(), backend, torch.device("meta"))  # type: ignore[arg-type]
            memory()
            if is_queued:
                device.current_stream().wait_stream(backend.callbacks)
            future.value().sum()


def compiled_graphs(patch: Patch) -> None:
    """Run a model whose compiled graphs overwrite the outputs of the step before, and need to know when it ended."""
    marks: list[None] = []
    patch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(None))

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if not marks:
                raise Unordered("A graph overwrites outputs of a step that may not be over.")
            marks.clear()
            return graph.forward(*inputs)

        return run

    model = nn.Sequential(nn.Linear(4, 4))
    samples = [(torch.ones(2, 4),), (torch.zeros(2, 4),)]
    report = compile_in_place(model, samples, mode="reduce-overhead", backend=backend)
    if report.reason.startswith(Unordered.__name__):  # any error of a first call is one of the compiler's
        raise Unordered(report.reason)
    assert report.mode == "reduce-overhead"
    for sample in samples:
        report.mark_step()
        model(*sample)


def _cases() -> Iterator[tuple[str, str, Callable[[Patch], None]]]:
    for ahead in (1, 3):
        for kind, wrap in (("tensors", lambda tensor: tensor), ("objects", Opaque)):
            yield "prefetch", f"{kind}, {ahead} ahead", functools.partial(prefetcher, wrap=wrap, ahead=ahead)
    for ahead in (0, 2):
        yield "_host_copies", f"activations, {ahead} ahead", functools.partial(offloaded_activations, ahead=ahead)
    for early in (False, True):
        yield "_host_copies", f"state, early {early}", functools.partial(offloaded_state, is_early=early)
    yield "step_graph", "one stream", step_graph
    yield "step_graph", "several streams", step_graph_on_several_streams
    for over in (False, True):
        yield "deferred_metrics", f"finished {over}", functools.partial(metrics, is_finished=over)
    for queued in (False, True):
        yield "distributed._hook", f"queued {queued}", functools.partial(exchanges, is_queued=queued)
    yield "compiling", "graphs", compiled_graphs


CASES = tuple(_cases())
"""The module of kernels, what is done with it, and a function that does it."""
