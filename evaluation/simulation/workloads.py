"""Models drawn at random: what a step consists of before anything is planted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from simulation.layers import Layer, Shaper
from simulation.machine import Machine

__all__ = ["FAMILIES", "Block", "Family", "Planted", "Workload", "draw_workload"]

Family = Literal["transformer", "convnet", "recommender", "reinforcement", "inference"]
FAMILIES: tuple[Family, ...] = ("transformer", "convnet", "recommender", "reinforcement", "inference")
WEIGHTS = (5, 4, 3, 2, 3)
US = 1_000.0


@dataclass(frozen=True, slots=True)
class Block:
    """Layers of one module of the model."""

    name: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, its data and how it is trained."""

    family: Family
    blocks: tuple[Block, ...]
    batch_bytes: int
    optimizer: Literal["fused", "foreach"] = "foreach"
    element_bytes: int = 4  # of a gradient
    ranks: int = 1
    accumulate: int = 1
    amp: bool = False  # weights are cast in each forward
    glue_ns: float = 4 * US  # Python between two operators
    environment_ns: float = 0.0  # an environment's step on the host
    training: bool = True
    graph: bool = False  # inference by a CUDA graph

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return all layers in order."""
        return tuple(layer for block in self.blocks for layer in block.layers)

    @property
    def parameters(self) -> tuple[int, ...]:
        """Return the elements of each parameter."""
        return tuple(size for layer in self.layers for size in layer.parameters)


@dataclass(frozen=True, slots=True)
class Planted:
    """How layers are made wrongly; decided before the layers are drawn, so that both variants have the same draws."""

    float32: Literal["", "tf32", "single"] = ""  # all float32, with the products on tensor cores or not
    written_attention: bool = False
    written_activation: bool = False
    transposed: bool = False


def draw_workload(
    rng: random.Random, machine: Machine, *, family: Family | None = None
) -> tuple[Workload, Callable[[Planted], Workload]]:
    """Return a workload, and a function that makes the same one with layers planted."""
    chosen = family or rng.choices(FAMILIES, WEIGHTS)[0]
    seed = rng.randrange(2**31)

    def make(planted: Planted) -> Workload:
        return _make(random.Random(seed), machine, chosen, planted)

    return make(Planted()), make


def _make(rng: random.Random, machine: Machine, family: Family, planted: Planted) -> Workload:
    tf32 = machine.gpu.tf32_tflops > 0 and machine.gpu.vendor == "nvidia"
    drawn, amp = rng.random(), rng.random() < 0.3
    precision = planted.float32 or ("tf32" if tf32 and drawn < 0.3 else "half")
    shaper = Shaper(machine, precision)
    inner = family
    if family == "inference":
        inner = rng.choice(["transformer", "convnet"])
    blocks, batch_bytes = _BLOCKS[inner](rng, shaper, planted)
    training = family != "inference"
    return Workload(
        family=family,
        blocks=blocks,
        batch_bytes=batch_bytes,
        optimizer=rng.choice(["fused", "foreach"]),
        element_bytes=4,
        ranks=2 if training and family != "reinforcement" and rng.random() < 0.35 else 1,
        accumulate=2 if training and rng.random() < 0.1 else 1,
        amp=precision == "half" and training and amp,
        glue_ns=rng.uniform(1.5, 6.0) * US,
        environment_ns=rng.uniform(100, 900) * US if family == "reinforcement" else 0.0,
        training=training,
        graph=family == "inference" and rng.random() < 0.4,
    )


def _transformer(rng: random.Random, shaper: Shaper, planted: Planted) -> tuple[tuple[Block, ...], int]:
    width = rng.choice([128, 256, 512, 768, 1024, 2048])
    depth = rng.randint(2, 5)
    batch, length = rng.choice([1, 2, 4, 8, 16]), rng.choice([64, 128, 256, 512, 1024])
    heads, rows = max(width // 64, 1), batch * length
    blocks = []
    for number in range(depth):
        layers = (
            shaper.layer_norm(f"LayerNorm_{2 * number}", rows, width),
            shaper.linear(f"Linear_{4 * number}", rows, width, 3 * width),
            shaper.attention(f"Attention_{number}", (batch, heads, length, 64), written=planted.written_attention),
            shaper.linear(f"Linear_{4 * number + 1}", rows, width, width),
            shaper.add(f"Residual_{2 * number}", rows * width),
            shaper.layer_norm(f"LayerNorm_{2 * number + 1}", rows, width),
            shaper.linear(f"Linear_{4 * number + 2}", rows, width, 4 * width),
            shaper.activation(f"GELU_{number}", rows * 4 * width, pieces=8 if planted.written_activation else 1),
            shaper.linear(f"Linear_{4 * number + 3}", rows, 4 * width, width),
            shaper.add(f"Residual_{2 * number + 1}", rows * width),
        )
        blocks.append(Block(f"TransformerBlock_{number}", layers))
    head = shaper.linear("Linear_head", rows, width, rng.choice([1000, 8192]))
    return (*blocks, Block("Head_0", (head,))), rows * 8


def _convnet(rng: random.Random, shaper: Shaper, planted: Planted) -> tuple[tuple[Block, ...], int]:
    batch, size, channels = rng.choice([4, 16, 32, 64]), rng.choice([28, 56]), rng.choice([32, 64, 128])
    image = batch * 3 * (4 * size) ** 2 * 4
    blocks = []
    for number in range(rng.randint(3, 6)):
        if number and number % 3 == 0 and size > 7:
            size, channels = size // 2, channels * 2
        blocks.append(Block(f"BasicBlock_{number}", tuple(_residual(shaper, number, (batch, channels, size), planted))))
    head = shaper.linear("Linear_0", batch, channels, 1000)
    return (*blocks, Block("Head_0", (head,))), image


def _residual(shaper: Shaper, number: int, image: tuple[int, int, int], planted: Planted) -> list[Layer]:
    batch, channels, size = image
    elements = batch * channels * size * size
    layers: list[Layer] = []
    for half in (0, 1):
        tag = f"{2 * number + half}"
        layers += [
            shaper.convolution(f"Conv2d_{tag}", image, channels, transposed=planted.transposed),
            shaper.batch_norm(f"BatchNorm2d_{tag}", elements, channels),
            shaper.relu(f"ReLU_{tag}", elements),
        ]
    return [*layers, shaper.add(f"Residual_{number}", elements)]


def _recommender(rng: random.Random, shaper: Shaper, planted: Planted) -> tuple[tuple[Block, ...], int]:
    batch, width = rng.choice([256, 1024, 4096, 16384]), rng.choice([32, 64, 128])
    num_tables = rng.randint(4, 16)
    tables = [shaper.embedding(f"EmbeddingBag_{n}", rng.choice([1000, 20000]), batch, width) for n in range(num_tables)]
    sizes = [13, rng.choice([256, 512]), width]
    bottom = _mlp(shaper, "Bottom", batch, sizes, planted)
    top = _mlp(shaper, "Top", batch, [num_tables * width, rng.choice([512, 1024, 2048]), 512, 256, 1], planted)
    return (Block("Embeddings_0", tuple(tables)), Block("MLP_0", bottom), Block("MLP_1", top)), batch * (13 + 26) * 4


def _reinforcement(rng: random.Random, shaper: Shaper, planted: Planted) -> tuple[tuple[Block, ...], int]:
    batch, width = rng.choice([32, 256, 2048]), rng.choice([64, 128, 256])
    policy = _mlp(shaper, "Policy", batch, [17, width, width, 6], planted)
    value = _mlp(shaper, "Value", batch, [17, width, width, 1], planted)
    return (Block("Policy_0", policy), Block("Value_0", value)), batch * 17 * 4


def _mlp(shaper: Shaper, name: str, batch: int, sizes: list[int], planted: Planted) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for number, (k, n) in enumerate(pairwise(sizes)):
        layers.append(shaper.linear(f"{name}Linear_{number}", batch, k, n))
        if number < len(sizes) - 2:
            if planted.written_activation:
                layers.append(shaper.activation(f"{name}GELU_{number}", batch * n, pieces=8))
            else:
                layers.append(shaper.relu(f"{name}ReLU_{number}", batch * n))
    return tuple(layers)


_BLOCKS: dict[str, Callable[[random.Random, Shaper, Planted], tuple[tuple[Block, ...], int]]] = {
    "transformer": _transformer,
    "convnet": _convnet,
    "recommender": _recommender,
    "reinforcement": _reinforcement,
}
