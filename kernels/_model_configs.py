"""Configurations of models, of whatever class: which of their fields are depths and widths, and copies of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any

__all__ = ["DEPTHS", "fields", "get", "length", "parts", "put", "shown", "smaller", "with_part"]

# The names that configurations of transformers and of single-file models have for the same thing.
DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers", "decoder_layers",
    "num_encoder_layers", "num_decoder_layers",
)  # fmt: skip
HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
SHARED_HEADS = ("num_key_value_heads", "n_kv_head", "n_kv_heads", "num_kv_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim")
INNER_WIDTHS = (
    "intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim",
    "moe_intermediate_size",
)  # fmt: skip


def parts(config: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return the configurations inside this one, and then itself, with where they are."""
    names = list(config) if isinstance(config, Mapping) else list(getattr(config, "__dict__", ()))
    found: list[tuple[str, Any]] = []
    for name in names:
        value = get(config, name)
        if hasattr(value, "to_dict") or (isinstance(value, Mapping) and name.endswith("config")):
            found += parts(value, f"{path}.{name}" if path else name)
    return [*found, (path, config)]


def smaller(config: Any, num_layers: int | None, narrower: int) -> dict[str, Any]:
    """Return the fields that change, with their new values."""
    wanted: dict[str, Any] = {}
    deepest = 0
    for name in fields(config, DEPTHS) if num_layers is not None else ():
        depth = get(config, name)
        if num_layers is not None and depth > num_layers:
            wanted[name] = num_layers
            deepest = max(deepest, depth)
    if deepest and num_layers is not None:
        wanted |= cut_lists(config, deepest, num_layers)
    if narrower > 1:
        for name in fields(config, (*HEADS, *WIDTHS, *INNER_WIDTHS)):
            wanted[name] = divided(name, get(config, name), narrower)
        for name in fields(config, SHARED_HEADS):
            shared = max(get(config, name) // narrower, 1)
            heads = [wanted[other] for other in fields(config, HEADS)]
            wanted[name] = next((n for n in range(shared, 0, -1) if all(h % n == 0 for h in heads)), 1)
    return {name: value for name, value in wanted.items() if value != get(config, name)}


def cut_lists(config: Any, depth: int, num_layers: int) -> dict[str, Any]:
    """Return the lists that hold one entry for each layer, cut off."""
    names = config if isinstance(config, Mapping) else getattr(config, "__dict__", ())
    found = {name: get(config, name) for name in names}
    return {n: v[:num_layers] for n, v in found.items() if isinstance(v, list | tuple) and len(v) == depth}


def divided(name: str, value: int, by: int) -> int:
    if value % by:
        raise ValueError(f"{name} is {value}, which cannot be divided by narrower={by}; choose one of its divisors.")
    return value // by


def fields(config: Any, names: tuple[str, ...]) -> list[str]:
    """Return which of the names the configuration has a number for, each once where one stands for another."""
    same: Mapping[str, str] = getattr(config, "attribute_map", None) or {}
    own = dict.fromkeys(same.get(name, name) for name in names)
    return [name for name in own if isinstance(value := get(config, name), int) and not isinstance(value, bool)]


def get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def put(config: Any, name: str, value: Any) -> None:
    if isinstance(config, MutableMapping):
        config[name] = value
    else:
        setattr(config, name, value)


def with_part(whole: Any, path: str, part: Any, wanted: Mapping[str, Any]) -> Any:
    """Return the whole configuration with a part's fields set; a frozen one is made anew."""
    if not path and dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(part, **wanted)
    for name, value in wanted.items():
        put(part, name, value)
    return whole


def length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else value if isinstance(value, int) else 0


def shown(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, list | tuple) else str(value)
