"""Flow-matching forecaster: predicts the next atmospheric state from the current one."""
import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn


class ModulatedBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(dim, 6 * dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.expand = nn.Linear(dim, 4 * dim)
        self.shrink = nn.Linear(4 * dim, dim)

    def forward(self, x, cond):
        b, n, d = x.shape
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(cond).unsqueeze(1).chunk(6, dim=-1)
        h = torch.addcmul(shift_a, F.layer_norm(x, (d,)), 1 + scale_a)
        q, k, v = self.qkv(h).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = torch.addcmul(x, gate_a, self.proj(h))
        h = torch.addcmul(shift_m, F.layer_norm(x, (d,)), 1 + scale_m)
        return torch.addcmul(x, gate_m, self.shrink(F.gelu(self.expand(h), approximate="tanh")))


class VelocityNet(nn.Module):
    def __init__(self, channels, size, patch, dim, depth, heads):
        super().__init__()
        self.patch, self.channels, self.grid = patch, channels, size // patch
        self.embed = nn.Linear(2 * channels * patch * patch, dim)
        self.position = nn.Parameter(torch.randn(1, self.grid * self.grid, dim) * 0.02)
        self.clock = nn.Sequential(nn.Linear(128, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.blocks = nn.ModuleList(ModulatedBlock(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, channels * patch * patch)
        self.register_buffer("bands", torch.exp(-math.log(1e4) * torch.arange(64) / 64))

    def patches(self, field):
        b, c, g, p = field.shape[0], field.shape[1], self.grid, self.patch
        return field.view(b, c, g, p, g, p).permute(0, 2, 4, 1, 3, 5).reshape(b, g * g, c * p * p)

    def forward(self, noisy, current, t):
        angles = 1000 * t[:, None] * self.bands
        cond = self.clock(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x = self.embed(self.patches(torch.cat([noisy, current], dim=1))) + self.position
        for block in self.blocks:
            x = block(x, cond)
        return self.out(F.layer_norm(x, x.shape[-1:]))


def reanalysis(count, channels, size, device):
    """A smooth random field that drifts eastward: state i + 1 follows state i."""
    coarse = torch.randn(1, channels, size // 4, size // 4, device=device)
    base = F.interpolate(coarse, size=(size, size), mode="bicubic")
    shifts = torch.stack([base[0].roll(i % size, dims=-1) for i in range(count)])
    return shifts + 0.1 * torch.randn(count, channels, size, size, device=device)


class Trainer:
    def __init__(self, model, states, batch, decay, fixed):
        self.model, self.states, self.batch, self.decay = model, states, batch, decay
        self.device = states.device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95),
                                           fused=self.device.type == "cuda")
        self.ema = AveragedModel(model, avg_fn=get_ema_avg_fn(decay)).requires_grad_(False)
        self.weights = [p.detach() for p in model.parameters()]
        self.ema_weights = list(self.ema.module.parameters())
        self.grouped = fixed

    def loss(self):
        rows = torch.randint(0, self.states.shape[0] - 1, (self.batch,), device=self.device)
        current, following = self.states[rows], self.states[rows + 1]
        noise = torch.randn_like(following)
        t = torch.rand(self.batch, device=self.device)
        mix = torch.lerp(noise, following, t[:, None, None, None])
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            velocity = self.model(mix, current, t)
        return F.mse_loss(velocity.float(), self.model.patches(following - noise))

    def step(self):
        loss = self.loss()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        if self.grouped:
            torch._foreach_lerp_(self.ema_weights, self.weights, 1 - self.decay)
        else:
            self.ema.update_parameters(self.model)
        return loss.detach()


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    cli.add_argument("--steps", type=int, default=60)
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--small", action="store_true")
    args = cli.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(21)
    torch.set_float32_matmul_precision("high")
    if args.small:
        count, size, dim, depth, heads, batch = 32, 16, 32, 3, 2, 4
    else:
        count, size, dim, depth, heads, batch = 2048, 32, 768, 32, 12, 40
    states = reanalysis(count, 8, size, device)
    with device:
        model = VelocityNet(8, size, 2, dim, depth, heads)
    trainer = Trainer(model, states, batch, 0.999, args.fixed)
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    began = None
    for step in range(args.steps):
        if step == 10:
            wait()
            began = time.perf_counter()
        loss = trainer.step()
        if step % 20 == 19 or (args.small and step == args.steps - 1):
            print(f"step {step + 1} loss {loss.item():.5f}", flush=True)
    wait()
    if began is not None:
        print(f"step_ms={(time.perf_counter() - began) * 1000 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()
