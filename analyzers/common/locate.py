"""Which operators enclosed a moment of a host thread, and the user's line behind it.

Three sources, the most exact first: the sampler's lines (the line being executed), Python frames recorded by the
profiler (only the first line of each function, no line of the function that runs the recording), and the call stacks
that old exporters attach to operators.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Where
from diagnose.model.intervals import Intervals, distinct
from diagnose.model.locations import FRAME
from diagnose.tables import Tables
from diagnose.tables.late_samples import late_samples
from diagnose.tables.names import KERNEL_LAUNCH, STEP_MARK
from diagnose.tables.open_frames import open_frames
from diagnose.text.patterns import lazy_pattern

__all__ = [
    "enclosing_operators",
    "is_own_file",
    "is_user_file",
    "locate",
    "locate_one",
    "sampled_lines",
    "source_line",
]

UNFINISHED = "Unfinished"  # before the mark of a step that the recording ended in
MAX_LINES_APART = 2  # of one loop
MAX_LINES = 50  # that are looked at: those with most samples
_LIBRARY = lazy_pattern(
    r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|torch|torchvision|triton|numpy|diagnose)/|^<"
)
# The profiler cuts the folder of installed packages off their files' paths: those that steps often run through.
_PACKAGES = frozenset(
    {
        *("accelerate", "ai_edge_torch", "aiter", "apex", "audiocraft", "bitsandbytes", "catalyst"),
        *("colossalai", "comfy", "composer", "cv2", "datasets", "deepspeed", "detectron2", "dgl"),
        *("diffusers", "einops", "espnet", "evaluate", "fairscale", "fairseq", "fairseq2", "fastai"),
        *("fbgemm_gpu", "fla", "flair", "flash_attn", "flashinfer", "fsspec", "galore_torch"),
        *("gpytorch", "h5py", "huggingface_hub", "hydra", "ignite", "imageio", "jax", "joblib"),
        *("keras", "kornia", "librosa", "liger_kernel", "lightning", "lightning_fabric", "lmdb"),
        *("matplotlib", "megatron", "mlflow", "mmcv", "mmdet", "mmengine", "monai", "msgpack", "nemo"),
        *("onnxruntime", "open_clip", "opt_einsum", "optimum", "pandas", "peft", "PIL", "pyarrow"),
        *("pytorch_lightning", "ray", "recbole", "safetensors", "scipy", "segment_anything"),
        *("sentence_transformers", "sglang", "skimage", "sklearn", "skorch", "soundfile", "spacy"),
        *("speechbrain", "tensorboard", "tensorboardX", "tensordict", "tensorrt_llm", "timm"),
        *("tokenizers", "torch_geometric", "torch_guard", "torch_tensorrt", "torchao", "torchaudio"),
        *("torchdata", "torchmetrics", "torchrec", "torchrl", "torchtext", "torchtitan", "torchtune"),
        *("tqdm", "transformer_engine", "transformers", "trl", "ultralytics", "unsloth", "vllm"),
        *("wandb", "webdataset", "wids", "xformers", "yaml", "zarr"),
    }
)
# Folders of a checkout in which its package stands, beside one of the package's own name.
_SOURCES = ("src", "python")
_GENERATED = lazy_pattern(r"torchinductor_|torch_compile_debug|(^|/)c[a-z2-7]{51}\.py$")
_INSTALLED = lazy_pattern(r"^.*(site|dist)-packages/")
_MODULE_CALL = lazy_pattern(r"torch/nn/modules/module\.py\(\d+\): _(wrapped_)?call_impl|^nn\.Module: ")
_HOOK = lazy_pattern(r"hook", re.IGNORECASE)
_MAX_STACK = 12


@lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Return whether a file is the user's own: neither torch, nor an installed package, nor the standard library."""
    if _LIBRARY.search(file):
        return False
    return file.startswith("/") or file.split("/", 1)[0].removesuffix(".py") not in sys.stdlib_module_names


@lru_cache(maxsize=4096)
def is_own_file(file: str) -> bool:
    """Return whether the user can be expected to edit a file: it is neither a library's nor generated code."""
    if not is_user_file(file) or _GENERATED.search(file):
        return False
    return not _is_of_a_package(file)


def _is_of_a_package(file: str) -> bool:
    if not file.startswith("/"):
        return file.split("/", maxsplit=1)[0].removesuffix(".py") in _PACKAGES
    folders = file.split("/")[:-1]
    return any(inner in _PACKAGES and outer in (*_SOURCES, inner) for outer, inner in pairwise(folders))


def source_line(t: Tables, file: str, line: int) -> str | None:
    """Return the text of a source line as the capture holds it, else None: no file that a trace names is opened."""
    return t.capture.lines.get((file, line))


def enclosing_operators(t: Tables, thread: int, time: Ints) -> list[str]:
    """Return the names of the operators that were open on a thread at each time, outermost first."""
    layers = t.work_layers.get(thread)
    each = layers.at_each(time) if layers else [[] for _ in time]
    return [" > ".join(_names(t, rows)) or "between operators" for rows in each]


def _names(t: Tables, rows: list[int]) -> list[str]:
    return [name for name in map(t.name, rows) if not STEP_MARK.match(name.removeprefix(UNFINISHED))]


def locate_one(t: Tables, thread: int, time: int) -> Where:
    """Return where a thread was at ``time`` as far as the trace shows."""
    return locate(t, np.array([thread]), np.array([time], np.int64))[0]


def locate(t: Tables, thread: npt.NDArray[np.integer], time: Ints) -> list[Where]:
    """Return, for each thread and time, where it was as far as the trace shows."""
    found, already = [Where()] * len(time), open_frames(t)
    for one in distinct(thread).tolist():
        mine = np.flatnonzero(thread == one)
        work, frames = t.work_layers.get(one), t.frame_layers.get(one)
        rows = work.at_each(time[mine]) if work else [[] for _ in mine]
        stacks = frames.at_each(time[mine]) if frames else [[] for _ in mine]
        for i, opened, stack in zip(mine.tolist(), rows, stacks, strict=True):
            num_open = sum(row in already for row in stack)
            found[i] = _where(tuple(_names(t, opened)), tuple(_frames(t, opened, stack)), num_open)
    return found


@lru_cache(maxsize=1024)  # all steps pass the same places
def _where(work: tuple[str, ...], frames: tuple[str, ...], num_open: int) -> Where:
    """Return the innermost frame of the user's own files; where there is none, the innermost of a library.

    The outermost ``num_open`` frames were open as the recording began, with the line that ran then: that of all but the
    innermost of them, which still calls the next one. Where it is by now is not known.
    """
    op = next((name for name in work if not KERNEL_LAUNCH.match(name)), None)  # the launch itself is no place
    library: Where | None = None
    for depth, text in enumerate(frames):
        match = FRAME.match(text)
        if match is None or not is_user_file(_INSTALLED.sub("", match["file"])):
            continue  # no line, or of torch or the standard library
        line = int(match["line"]) if not num_open or depth != len(frames) - num_open else None
        place = Where(_INSTALLED.sub("", match["file"]), line, match["function"], op, frames[:_MAX_STACK])
        if is_own_file(match["file"]):
            return replace(place, library=_beside(library), caller=_caller(frames, depth))
        library = library or place
    if library is not None:
        return replace(library, caller=_caller(frames, len(frames) - 1))
    return Where(op=op, stack=(*reversed(work), *frames)[:_MAX_STACK])


def _beside(library: Where | None) -> str | None:
    if library is None:
        return None
    line = f":{library.line}" if library.line is not None else ""
    return f"{library.file}{line} in {library.function}"


def _caller(frames: tuple[str, ...], depth: int) -> Literal["", "module", "hook"]:
    """Return what called the innermost frame: a hook up to the user's own, or a module anywhere around it."""
    if any(map(_HOOK.search, frames[: depth + 1])):
        return "hook"
    return "module" if any(map(_MODULE_CALL.search, frames)) else ""


def _frames(t: Tables, work: list[int], frames: list[int]) -> list[str]:
    """Return the names of Python frames, innermost first; of an operator's call stack where none were recorded.

    The call stack of a step's mark is the line that ends the step before: nothing runs there.
    """
    if frames:
        return [t.name(row) for row in reversed(frames)]
    for row in reversed(work):
        detail = int(t.trace.events.detail[row])
        if detail >= 0 and "(" in t.trace.names[detail] and not STEP_MARK.match(t.name(row)):
            return [frame for frame in t.trace.names[detail].split(";") if frame]
    return []


def sampled_lines(t: Tables, during: Intervals, most: int = 3) -> list[tuple[Where, float]]:
    """Return the user's lines that the sampler saw while ``during`` lasted, with their share of its samples.

    Lines beside each other count together, as those of a loop: the line with most samples of the place that has most
    comes first. Of a few dozen samples each of two lines of a loop may have fewer than a single one elsewhere. Lines of
    loading that were seen late, where nothing is loaded, are left out.
    """
    samples = t.capture.samples
    if samples is None or not len(during.start) or not t.trace.epoch_ns:
        return []
    time = samples.time_ns - t.trace.epoch_ns
    i = np.searchsorted(during.start, time, side="right") - 1
    inside = (i >= 0) & (time < during.end[np.maximum(i, 0)]) & (samples.place >= 0)
    inside &= ~late_samples(t)
    seen = Counter(samples.place[inside].tolist())
    total = sum(seen.values())
    found, places = [], samples.places
    often = seen.most_common(MAX_LINES)
    beside = {row: sum(n for other, n in often if _is_beside(places[row], places[other])) for row, _ in often}
    for row, count in sorted(often, key=lambda item: (-beside[item[0]], -item[1]))[:most]:
        file, line, function = places[row]
        op = _operator_at(t, time[inside][samples.place[inside] == row])
        found.append((Where(file, line, function, op, code=source_line(t, file, line)), count / total))
    return found


def _is_beside(one: tuple[str, int, str], other: tuple[str, int, str]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= MAX_LINES_APART


def _operator_at(t: Tables, time: Ints) -> str | None:
    """Return the operator that the stepping thread was in at most of the times, None between operators."""
    work = t.work_layers.get(t.main)
    opened = work.at_each(time) if work else []
    inner = [next((name for name in _names(t, rows) if not KERNEL_LAUNCH.match(name)), None) for rows in opened]
    return Counter(inner).most_common(1)[0][0] if inner else None
