"""One remedy, one file. What users call is importable from here, and imported when it is first used.

    from diagnose.kernels import DevicePrefetcher, Precision, patch

Operators are in ``diagnose.kernels.ops``, remedies for several ranks in ``diagnose.kernels.distributed``. ``fast_load``
is the name of both a module and its function: ``from diagnose.kernels.fast_load import fast_load``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.kernels.accumulation import GradientAccumulation
    from diagnose.kernels.allocator import advise, apply_settings
    from diagnose.kernels.background_loader import BackgroundLoader
    from diagnose.kernels.batch_size import find_batch_size
    from diagnose.kernels.checkpointing import checkpoint_blocks, plan_checkpoints
    from diagnose.kernels.compiling import compile_in_place, compile_log
    from diagnose.kernels.concurrent_samples import ConcurrentSamples
    from diagnose.kernels.deferred_metrics import DeferredMetrics
    from diagnose.kernels.dropout import attention_with_dropout, fast_dropout, use_fast_dropout
    from diagnose.kernels.eight_bit import eight_bit_adamw
    from diagnose.kernels.fast_load import load_on_demand
    from diagnose.kernels.fast_save import save_files
    from diagnose.kernels.gc_schedule import scheduled_gc
    from diagnose.kernels.indexing import assign_where, compact, masked_mean, masked_sum, select_rows
    from diagnose.kernels.layout import channels_last
    from diagnose.kernels.length_batches import LengthBatches, find_length_batches
    from diagnose.kernels.loader_tuning import tune_loader
    from diagnose.kernels.matmul_precision import fp32_precision, set_fp32_precision
    from diagnose.kernels.memory_snapshot import memory_watch, snapshot_on_oom
    from diagnose.kernels.offload import ActivationOffload, offload_optimizer_state
    from diagnose.kernels.optimizers import best_optimizer
    from diagnose.kernels.parity import check_parity
    from diagnose.kernels.patching import patch
    from diagnose.kernels.precision import Precision
    from diagnose.kernels.prefetch import DevicePrefetcher
    from diagnose.kernels.saving import BackgroundSaver
    from diagnose.kernels.shard_writing import dataset_samples, folder_samples, table_samples, write_shards
    from diagnose.kernels.sharding import ShardedStream, share_of
    from diagnose.kernels.shared_cache import SharedCache
    from diagnose.kernels.step_graph import StepGraph
    from diagnose.kernels.tiny import short_dataset, tiny_config, tiny_model
    from diagnose.kernels.web_shards import WebShards

__all__ = [
    "ActivationOffload",
    "BackgroundLoader",
    "BackgroundSaver",
    "ConcurrentSamples",
    "DeferredMetrics",
    "DevicePrefetcher",
    "GradientAccumulation",
    "LengthBatches",
    "Precision",
    "ShardedStream",
    "SharedCache",
    "StepGraph",
    "WebShards",
    "advise",
    "apply_settings",
    "assign_where",
    "attention_with_dropout",
    "best_optimizer",
    "channels_last",
    "check_parity",
    "checkpoint_blocks",
    "compact",
    "compile_in_place",
    "compile_log",
    "dataset_samples",
    "eight_bit_adamw",
    "fast_dropout",
    "find_batch_size",
    "find_length_batches",
    "folder_samples",
    "fp32_precision",
    "load_on_demand",
    "masked_mean",
    "masked_sum",
    "memory_watch",
    "offload_optimizer_state",
    "patch",
    "plan_checkpoints",
    "save_files",
    "scheduled_gc",
    "select_rows",
    "set_fp32_precision",
    "share_of",
    "short_dataset",
    "snapshot_on_oom",
    "table_samples",
    "tiny_config",
    "tiny_model",
    "tune_loader",
    "use_fast_dropout",
    "write_shards",
]

_HOMES = {
    "accumulation": ("GradientAccumulation",),
    "allocator": ("advise", "apply_settings"),
    "background_loader": ("BackgroundLoader",),
    "batch_size": ("find_batch_size",),
    "checkpointing": ("checkpoint_blocks", "plan_checkpoints"),
    "compiling": ("compile_in_place", "compile_log"),
    "concurrent_samples": ("ConcurrentSamples",),
    "dropout": ("attention_with_dropout", "fast_dropout", "use_fast_dropout"),
    "eight_bit": ("eight_bit_adamw",),
    "fast_load": ("load_on_demand",),
    "fast_save": ("save_files",),
    "gc_schedule": ("scheduled_gc",),
    "indexing": ("assign_where", "compact", "masked_mean", "masked_sum", "select_rows"),
    "layout": ("channels_last",),
    "length_batches": ("LengthBatches", "find_length_batches"),
    "loader_tuning": ("tune_loader",),
    "matmul_precision": ("fp32_precision", "set_fp32_precision"),
    "memory_snapshot": ("memory_watch", "snapshot_on_oom"),
    "deferred_metrics": ("DeferredMetrics",),
    "offload": ("ActivationOffload", "offload_optimizer_state"),
    "optimizers": ("best_optimizer",),
    "parity": ("check_parity",),
    "patching": ("patch",),
    "precision": ("Precision",),
    "prefetch": ("DevicePrefetcher",),
    "saving": ("BackgroundSaver",),
    "shard_writing": ("dataset_samples", "folder_samples", "table_samples", "write_shards"),
    "sharding": ("ShardedStream", "share_of"),
    "shared_cache": ("SharedCache",),
    "step_graph": ("StepGraph",),
    "tiny": ("short_dataset", "tiny_config", "tiny_model"),
    "web_shards": ("WebShards",),
}
_OLD_NAMES = frozenset({"background", "garbage", "metrics", "one_process", "scaffold"})  # deprecated
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
