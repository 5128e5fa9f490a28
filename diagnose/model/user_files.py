"""Whose file a line of Python is in: the user's, a library's, or generated code's."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from itertools import pairwise

__all__ = ["INSTALLED", "is_installed", "is_own_file", "is_user_file"]

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
    return not _is_of_a_package(file)


def _is_of_a_package(file: str) -> bool:
    if not file.startswith("/"):
        return file.split("/", maxsplit=1)[0].removesuffix(".py") in _PACKAGES
    folders = file.split("/")[:-1]
    return any(inner in _PACKAGES and outer in (*_SOURCES, inner) for outer, inner in pairwise(folders))
