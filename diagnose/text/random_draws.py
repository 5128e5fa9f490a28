"""Source lines that draw random numbers, by their text."""

from __future__ import annotations

from diagnose.text.patterns import lazy_pattern

__all__ = ["RANDOM_DRAW"]

RANDOM_DRAW = lazy_pattern(
    r"\b(?:np|numpy|torch)\.random\.|(?<![\w.])(?:random|rng|self\.rng|self\.random)\.\w+\(|\bdefault_rng\("
    r"|\btorch\.(?:rand|randn|randint|randperm|bernoulli|normal|multinomial|poisson)(?:_like)?\("
    r"|\btorch\.Generator\(|\.(?:bernoulli_|normal_|uniform_|random_)\(|\bRandom[A-Z]\w*\("
)
