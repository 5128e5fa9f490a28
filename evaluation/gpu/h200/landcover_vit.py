"""Land-cover segmentation of multispectral satellite tiles with a plain vision transformer."""
import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    bands: int = 8
    tile: int = 192
    patch: int = 12
    cells: int = 4
    classes: int = 10
    dim: int = 2048
    depth: int = 4
    head_dim: int = 128
    batch: int = 96
    tiles: int = 1024
    lr: float = 1e-4


SMALL = Config(tile=48, dim=64, depth=2, head_dim=32, batch=4, tiles=16)


class LowPrecisionLayerNorm(nn.LayerNorm):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype),
                                self.bias.to(x.dtype), self.eps)


class Block(nn.Module):
    def __init__(self, dim, head_dim):
        super().__init__()
        self.heads = dim // head_dim
        self.norm1 = LowPrecisionLayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.norm2 = LowPrecisionLayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class TileSegmenter(nn.Module):
    """Predicts a class for each of cells x cells sub-squares of every patch."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.grid = cfg.tile // cfg.patch
        self.embed = nn.Linear(cfg.bands * cfg.patch ** 2, cfg.dim)
        self.position = nn.Parameter(torch.randn(1, self.grid ** 2, cfg.dim) * 0.02)
        self.blocks = nn.ModuleList(Block(cfg.dim, cfg.head_dim) for _ in range(cfg.depth))
        self.norm = LowPrecisionLayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.cells ** 2 * cfg.classes)

    def forward(self, tiles):
        c, g = self.cfg, self.grid
        x = tiles.view(-1, c.bands, g, c.patch, g, c.patch).permute(0, 2, 4, 1, 3, 5)
        x = self.embed(x.reshape(tiles.shape[0], g * g, -1))
        x = x + self.position.to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).view(-1, c.classes)


class TileStore:
    """All tiles as uint8 in device memory; labels on the coarser cell grid."""

    def __init__(self, cfg, device):
        self.cfg = cfg
        self.device = device
        cell = cfg.patch // cfg.cells
        side = cfg.tile // cell
        coarse = torch.rand(cfg.tiles, 1, 12, 12, device=device)
        cover = F.interpolate(coarse, size=(side, side), mode="bilinear").squeeze(1)
        self.labels = (cover * cfg.classes).long().clamp_(max=cfg.classes - 1)
        spectra = torch.randint(40, 200, (cfg.classes, cfg.bands), device=device, dtype=torch.uint8)
        self.tiles = torch.empty(cfg.tiles, cfg.bands, cfg.tile, cfg.tile, dtype=torch.uint8, device=device)
        for i in range(0, cfg.tiles, 64):
            pure = F.embedding(self.labels[i:i + 64], spectra.float()).permute(0, 3, 1, 2)
            full = pure.repeat_interleave(cell, 2).repeat_interleave(cell, 3)
            self.tiles[i:i + 64] = (full + 20 * torch.randn_like(full)).clamp_(0, 255).to(torch.uint8)
        first = self.tiles[:64].float()
        self.mean = first.mean((0, 2, 3)).view(1, -1, 1, 1)
        self.scale = first.std((0, 2, 3)).reciprocal().view(1, -1, 1, 1)

    def batch(self):
        index = torch.randint(self.cfg.tiles, (self.cfg.batch,), device=self.device)
        tiles, labels = self.tiles.index_select(0, index), self.labels.index_select(0, index)
        if torch.rand(()) < 0.5:
            tiles, labels = tiles.flip(-1), labels.flip(-1)
        tiles = ((tiles - self.mean) * self.scale).to(torch.bfloat16)
        n, k = labels.shape[0], self.cfg.cells
        g = labels.shape[1] // k
        return tiles, labels.view(n, g, k, g, k).permute(0, 1, 3, 2, 4).reshape(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(17)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device(args.device)
    cfg = SMALL if args.small else Config()
    with device:
        model = TileSegmenter(cfg)
    store = TileStore(cfg, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.05, fused=True)

    start = None
    for step in range(args.steps):
        if step == 10:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        tiles, labels = store.batch()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(tiles)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    if start is not None:
        print(f"step_ms={(time.perf_counter() - start) * 1000 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()
