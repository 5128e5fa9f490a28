"""What was measured of each public module of diagnose.kernels: on a CPU, by which script, and on a GPU.

evaluation/pages/remedies.md is made of it by scripts/rules; `none: …` is why there is no figure on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FIGURES", "NOT_MEASURED", "Figures"]

NOT_MEASURED = "not measured"
OPERATORS = "[operators](operators.md#figures)"
RANKS = "[distributed](ranks.md#the-remedies-for-several-ranks)"
MEMORY = "[memory](remedies-memory.md)"
ON_A_GPU = "[H100](gpu.md#operators)"


class Figures(NamedTuple):
    """One module's: the script of evaluation/benchmarks that measures it on a CPU, the figure, and that of a GPU."""

    script: str  # "" where there is none
    cpu: str  # the figure, or why there is none
    gpu: str = NOT_MEASURED


_LOADING, _MEMORY, _FURTHER, _RANKS, _SHARES, _OPS = (
    "remedies_loading", "remedies_memory", "remedies_further", "distributed", "remedies_ranks", "ops",
)  # fmt: skip
_ROWS = Figures(_OPS, OPERATORS, ON_A_GPU)
_OF_THE_HOST = "nothing of it runs on a GPU"

FIGURES = {
    "accumulation": Figures(
        _LOADING, "error of the gradient 1.8e-07; 1.0e-01 where batches are divided by their number"
    ),
    "allocator": Figures("", "none: the host has no such allocator"),
    "background_loader": Figures(_LOADING, "1.75 × (1.73 to 1.78)", _OF_THE_HOST),
    "batch_size": Figures(_FURTHER, "24 × the samples a second: 1024 found, from 8"),
    "checkpointing": Figures(_MEMORY, f"−74 % of the bytes, +26 % of the time ({MEMORY})"),
    "compiling": Figures(_FURTHER, "31 × of a chain of 32 pointwise operators; `diagnose prove` measures a model's"),
    "concurrent_samples": Figures(_FURTHER, "7.9 × with 8 threads, of samples that wait 2 ms", _OF_THE_HOST),
    "deferred_metrics": Figures("", "none: on a CPU the values are there anyway"),
    "distributed.bucket_tuning": Figures(_RANKS, f"1 % to 56 % hidden ({RANKS})"),
    "distributed.comm_hooks": Figures(_RANKS, f"2 × to 11 × fewer bytes ({RANKS})"),
    "distributed.ddp_arguments": Figures(_SHARES, "1.3 × shorter step without a search for unused parameters"),
    "distributed.fully_sharded": Figures(_SHARES, "1/2.0 of parameters and state, on two ranks"),
    "distributed.hook_timing": Figures("", "none: it reports times, and changes none"),
    "distributed.hook_trials": Figures(_RANKS, f"loss and bytes of each hook ({RANKS})"),
    "distributed.launch": Figures("", "none: it starts processes, and saves no time"),
    "distributed.local_sgd": Figures(_RANKS, f"loss +3.0 % ({RANKS})"),
    "distributed.memory_estimate": Figures(_SHARES, "0.0 % from the bytes that a rank held"),
    "distributed.mesh": Figures("", "none: gloo has no faster links"),
    "distributed.pipelined": Figures(_SHARES, "1/1.8 of the parameters, on two ranks; equal to one process, by test"),
    "distributed.single_process_parity": Figures("", "none: it compares, and saves no time"),
    "distributed.tensor_parallel": Figures(
        _SHARES, "1/1.4 of the parameters with half of the layers split, on two ranks; equal to one process, by test"
    ),
    "distributed.uneven": Figures(
        _SHARES, "1.7 × shorter step beside a rank three times as slow (a stand-in); exact to 1e-6, by test"
    ),
    "distributed.zero": Figures(_SHARES, "1/1.8 of the optimizer's state, on two ranks"),
    "dropout": Figures(_FURTHER, "3.7 × of a million elements with their gradient", "none: kernels draw their masks"),
    "eight_bit": Figures(_MEMORY, f"1/3.9 of the state ({MEMORY})"),
    "fast_load": Figures(_MEMORY, f"126 ×, 1/201 of the memory ({MEMORY})"),
    "fast_save": Figures(_FURTHER, "0.9 × of torch.save's rate, 67 MB; what it writes can be mapped", _OF_THE_HOST),
    "gc_schedule": Figures(_LOADING, "0.2 to 0.4 s to nothing, a step", _OF_THE_HOST),
    "indexing": Figures(_FURTHER, "2.1 × for 8000 rows in sequence; masks gain nothing on a CPU"),
    "layout": Figures(_FURTHER, "1.4 × of two convolutions in float32"),
    "length_batches": Figures(
        _FURTHER, "3.4 × shorter epoch: 7 % of the tokens are padding, 62 % of batches drawn at random"
    ),
    "loader_tuning": Figures(_LOADING, "1.83 × (1.71 to 1.83)", _OF_THE_HOST),
    "matmul_precision": Figures("", "none: this CPU has no TF32"),
    "memory_snapshot": Figures("", "none: it reports, and changes nothing"),
    "offload": Figures("", "none: on a CPU nothing is copied"),
    "ops.adamw": Figures(_OPS, OPERATORS, ON_A_GPU),
    "ops.bias_gelu": _ROWS,
    "ops.cross_entropy": _ROWS,
    "ops.custom_op": Figures("", "none: operators are made with it"),
    "ops.gelu": _ROWS,
    "ops.native": Figures(_OPS, OPERATORS, ON_A_GPU),
    "ops.norms": _ROWS,
    "ops.rotary": _ROWS,
    "ops.scale": Figures("", "none: an example"),
    "ops.softmax": _ROWS,
    "ops.swiglu": _ROWS,
    "optimizers": Figures(_MEMORY, f"3.5 × and 2.7 × ({MEMORY})"),
    "parity": Figures("", "none: it compares, and saves no time"),
    "patching": Figures(
        "", "none: on a CPU torch's own operators are the faster ones", "as the operators, " + ON_A_GPU
    ),
    "precision": Figures(_FURTHER, "1.9 × of wide layers in bfloat16, on a CPU with AMX"),
    "prefetch": Figures("", "none: on a CPU nothing is copied"),
    "saving": Figures(_FURTHER, "2.9 × shorter pause, of 67 MB"),
    "shard_writing": Figures(_FURTHER, "1500 samples of 2 kB a second", _OF_THE_HOST),
    "sharding": Figures(_FURTHER, "64 elements of two workers where 128 came", _OF_THE_HOST),
    "shared_cache": Figures(_LOADING, "12.9 × from the second epoch on", _OF_THE_HOST),
    "step_graph": Figures("", "none: CUDA graphs need a GPU"),
    "tiny": Figures(_FURTHER, "5.8 × shorter step with 2 of 12 blocks"),
    "web_shards": Figures(
        _FURTHER, "0.1 × of files in the page cache: it is for storage that is slow to open", _OF_THE_HOST
    ),
}
