# Self-distillation pretraining (student / momentum teacher) for a compact ViT.
import argparse
import copy
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, img=32, patch=8, dim=64, depth=6, heads=2, out=256):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (img // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, out))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


def augment(x, gen):
    b = len(x)
    dy, dx = torch.randint(0, 9, (2,), generator=gen).tolist()
    x = F.pad(x, (4, 4, 4, 4), mode="reflect")[:, :, dy:dy + 32, dx:dx + 32]
    if torch.rand((), generator=gen) < 0.5:
        x = x.flip(-1)
    gain = 0.7 + 0.6 * torch.rand(b, 3, 1, 1, generator=gen)
    return x * gain + 0.1 * torch.randn(x.shape, generator=gen)


def momentum_at(step, total, base=0.99):
    return 1 - (1 - base) * (math.cos(math.pi * step / total) + 1) / 2


@torch.no_grad()
def update_teacher(student, teacher, m):
    for name, value in teacher.state_dict().items():
        value.mul_(m).add_(student.state_dict()[name], alpha=1 - m)


@torch.no_grad()
def update_teacher_flat(student, teacher, m):
    source = student.state_dict()
    for name, value in teacher.state_dict().items():
        value.mul_(m).add_(source[name], alpha=1 - m)


def distill_loss(s_out, t_out, center, t_temp=0.05, s_temp=0.1):
    t1, t2 = F.softmax((t_out - center) / t_temp, -1).chunk(2)
    s1, s2 = F.log_softmax(s_out / s_temp, -1).chunk(2)
    return -((t1 * s2).sum(-1).mean() + (t2 * s1).sum(-1).mean()) / 2


def param_groups(model, wd):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    images = F.interpolate(torch.randn(512, 3, 8, 8, generator=gen), size=32, mode="bilinear")

    student = Encoder()
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    sync = update_teacher_flat if args.fixed else update_teacher
    opt = torch.optim.AdamW(param_groups(student, 0.04), lr=5e-4)
    center = torch.zeros(1, 256)
    tic = time.perf_counter()
    for step in range(1, args.steps + 1):
        batch = images[torch.randint(0, len(images), (args.batch,), generator=gen)]
        views = torch.cat([augment(batch, gen), augment(batch, gen)])
        with torch.no_grad():
            t_out = teacher(views)
        loss = distill_loss(student(views), t_out, center)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        opt.step()
        center.lerp_(t_out.mean(0, keepdim=True), 0.1)
        sync(student, teacher, momentum_at(step, args.steps))
        if step % 50 == 0:
            print(f"[{step}/{args.steps}] loss {loss.item():.5f}")
        if step == 10:
            tic = time.perf_counter()
    print(f"step_ms={(time.perf_counter() - tic) * 1e3 / max(1, args.steps - 10):.2f}")


if __name__ == "__main__":
    main()
