"""Every change that can be made to an unmodified script from outside, by the id of its prescription."""

from __future__ import annotations

from collections.abc import Iterable

from diagnose.trials.patches import compiling, distributed, loading, memory, optimizers, precision, scaling
from diagnose.trials.patches.base import Log, Patch, Undo

__all__ = ["BY_HAND", "PATCHES", "Log", "Patch", "Undo", "any_compiles"]

_ALL = (
    Patch("load-in-workers", "Load batches in worker processes", "identical", loading.load_in_workers),
    Patch("more-workers", "Load batches in more worker processes", "identical", loading.more_workers),
    Patch("concurrent-samples", "Load the samples of a batch on threads", "identical", loading.concurrent_samples),
    Patch(
        "prefetch-to-device", "Copy batches one step ahead", "identical", loading.prefetch_to_device, needs_gpu=True
    ),
    Patch("fused-optimizer", "Use the fused optimizer", "rounding", optimizers.fused_optimizer, group="optimizer"),
    Patch(
        "foreach-optimizer",
        "Use the foreach optimizer",
        "rounding",
        optimizers.foreach_optimizer,
        group="optimizer",
    ),
    Patch("autocast", "Run the model under bf16 autocast", "reduced", precision.autocast, group="autocast"),
    Patch(
        "autocast-fp16",
        "Run the model under fp16 autocast, with a GradScaler",
        "reduced",
        scaling.autocast_fp16,
        needs_gpu=True,
        group="autocast",
    ),
    Patch("allow-tf32", "Allow TF32 in matrix products", "reduced", precision.allow_tf32, needs_gpu=True),
    Patch(
        "cudnn-benchmark",
        "Let cuDNN pick its fastest algorithms",
        "rounding",
        precision.benchmark_convolutions,
        needs_gpu=True,
    ),
    Patch("compile-model", "Compile the model", "rounding", compiling.compile_model, compiles=True, group="compile"),
    Patch(
        "compile-graphs",
        "Compile the model with CUDA graphs",
        "rounding",
        compiling.compile_graphs,
        needs_gpu=True,
        compiles=True,
        group="compile",
    ),
    Patch("channels-last", "Keep images in channels-last format", "rounding", memory.channels_last),
    Patch("checkpoint-blocks", "Recompute repeated blocks in backward", "identical", memory.checkpoint_blocks),
    Patch("schedule-gc", "Collect garbage on a schedule", "identical", memory.schedule_gc),
    Patch(
        "bucket-gradients", "Exchange gradients in buckets", "rounding", distributed.bucket_gradients, group="buckets"
    ),
    Patch(
        "overlap-gradients",
        "Exchange gradients in small buckets",
        "rounding",
        distributed.overlap_gradients,
        group="buckets",
    ),
    Patch("no-buffer-broadcast", "Do not broadcast buffers", "identical", distributed.no_buffer_broadcast),
    Patch("compress-gradients", "Exchange gradients in bf16", "reduced", distributed.compress_gradients),
    Patch(
        "expandable-segments",
        "Let the allocator grow its segments",
        "identical",
        environment=dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"),
        needs_gpu=True,
    ),
    Patch("sham", "Change nothing (a control)", "identical", lambda log, _options: _sham(log)),
)  # fmt: skip
PATCHES = {patch.id: patch for patch in _ALL}

BY_HAND = {
    "defer-sync": "the script itself reads the value at that line; only its author can read it later",
    "defer-readback": "the script itself copies the result back; only its author can read it later",
    "python-off-the-loop": "what the script's own Python does at that line cannot be moved from outside",
    "no-host-collective": "the script itself waits for the other ranks at that line",
    "wait-elsewhere": "the script itself waits at that line",
    "stop-recompiling": "the shapes that the script feeds to the compiled model are its own",
    "own-device": "another process holds the device",
    "fused-attention": "the attention is written out in the model's own forward",
    "other-attention": "the attention is chosen in the model's own forward",
}
"""Prescriptions that a reader must apply by hand, and why."""


def _sham(log: Log) -> Undo:
    log.did("nothing, on purpose")
    return lambda: None


def any_compiles(ids: Iterable[str]) -> bool:
    """Say whether one of the patches compiles."""
    return any(PATCHES[name].compiles for name in ids)
