"""Places in the user's program: whose file a line is in, whether it draws random numbers, occurrences of a finding."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

RANDOM_DRAW = re.compile(
    r"\b(?:np|numpy|torch)\.random\.|(?<![\w.])(?:random|rng|self\.rng|self\.random)\.\w+\(|\bdefault_rng\("
    r"|\btorch\.(?:rand|randn|randint|randperm|bernoulli|normal|multinomial|poisson)(?:_like)?\("
    r"|\btorch\.Generator\(|\.(?:bernoulli_|normal_|uniform_|random_)\(|\bRandom[A-Z]\w*\("
)


_LIBRARY = r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|torch|torchvision|triton|numpy|diagnose)/|^<"
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
_GENERATED = r"torchinductor_|torch_compile_debug|(^|/)c[a-z2-7]{51}\.py$"
INSTALLED = re.compile(r"^.*(site|dist)-packages/")
# What a sampler's line is of, if it is none of the user's: it is written with its whole path.
_NO_USERS = r"/(site|dist)-packages/|/lib/python3(\.\d+t?)?/|/torchinductor_|^<(?!string>|stdin>|ipython-input)"


@lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Return whether a file with its whole path is of an installed package, of the standard library or generated."""
    return re.search(_NO_USERS, file) is not None


@lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Return whether a file is the user's own: neither torch, nor an installed package, nor the standard library."""
    if re.search(_LIBRARY, file):
        return False
    return file.startswith("/") or file.split("/", 1)[0].removesuffix(".py") not in sys.stdlib_module_names


@lru_cache(maxsize=4096)
def is_own_file(file: str) -> bool:
    """Return whether the user can be expected to edit a file: it is neither a library's nor generated code."""
    if not is_user_file(file) or re.search(_GENERATED, file):
        return False
    if not file.startswith("/"):
        return file.split("/", maxsplit=1)[0].removesuffix(".py") not in _PACKAGES
    folders = file.split("/")[:-1]
    return not any(inner in _PACKAGES and outer in (*_SOURCES, inner) for outer, inner in pairwise(folders))


FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$")
"""A Python frame as the profiler writes it, with the first line of its function."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place in the user's program; each field None where the trace does not show it.

    It is the innermost frame of the user's own files, with its line; ``library`` is what a library or generated code
    runs inside it. Without such a frame the place is the operator.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    op: str | None = None  # the outermost operator or annotation, such as aten::item
    stack: tuple[str, ...] = ()  # innermost first, "file(line): function" or an op's name
    code: str | None = None  # the text of the line, where the capture holds it
    library: str | None = field(default=None, compare=False)  # "file:line in function" that it ran inside the line
    last_line: int | None = None  # of the loop or function that begins at the line, where the place is all of it
    caller: Literal["", "module", "hook"] = field(default="", compare=False)  # what called it, as far as it matters


class Example(NamedTuple):
    """One occurrence of a finding, with what stood around it."""

    step: int
    start_ns: int  # from the beginning of its step
    lost_ns: int
    before: str  # the device task before, or ""
    after: str  # the device task after, or ""
    host: str  # what the launching thread did meanwhile
    where: Where = Where()


def own_place(places: Iterable[Where]) -> Where | None:
    """Return the first place in the user's own files: a line of a library or of generated code cannot be edited."""
    return next((place for place in places if place.file and is_own_file(place.file)), None)


def in_library(places: Iterable[Where]) -> bool:
    """Return whether a library or generated code does it, inside a line of the user's or without one."""
    places = tuple(places)
    place = next((w for w in places if w.file or w.library), None)
    return place is not None and (place.library is not None or own_place(places) is None)


def path_tail(path: str, limit: int = 40) -> str:
    """Return the end of a path that is longer than ``limit`` characters, cut at folders where it can be."""
    if len(path) <= limit:
        return path
    tail = path[-(limit - 1) :]
    cut = tail.find("/")
    return "…" + (tail[cut:] if 0 <= cut < len(tail) - 1 else tail)


def at_line(place: Where) -> str:
    """Return "model.py:40", "model.py" without a line: of a full path the name, of a long one the end."""
    file = place.file or ""
    name = file.rpartition("/")[2] if file.startswith("/") else path_tail(file)
    return name if place.line is None else f"{name}:{place.line}"
