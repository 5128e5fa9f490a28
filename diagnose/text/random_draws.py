"""Source lines that draw random numbers, by their text."""

from __future__ import annotations

import re

__all__ = ["RANDOM_DRAW"]

RANDOM_DRAW = re.compile(
    r"\b(?:np|numpy|torch)\.random\.|(?<![\w.])(?:random|rng|self\.rng|self\.random)\.\w+\(|\bdefault_rng\("
    r"|\btorch\.(?:rand|randn|randint|randperm|bernoulli|normal|multinomial|poisson)(?:_like)?\("
    r"|\btorch\.Generator\(|\.(?:bernoulli_|normal_|uniform_|random_)\(|\bRandom[A-Z]\w*\("
)
