"""Trains a stack of linear layers whose depth makes a step about as long as asked; to measure recorders with."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn


def build(depth: int, width: int, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU()))).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def step_ms(depth: int, width: int, device: str, x: torch.Tensor) -> float:
    model, optimizer = build(depth, width, device)
    train(model, optimizer, x, 3)
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    train(model, optimizer, x, 5)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / 5 * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    width = 1024 if options.device == "cuda" else 128
    x = torch.randn(256, width, device=options.device)
    each = step_ms(8, width, options.device, x) / 8
    depth = max(1, round(options.step_ms / each))
    model, optimizer = build(depth, width, options.device)
    train(model, optimizer, x, options.steps)


if __name__ == "__main__":
    main()
