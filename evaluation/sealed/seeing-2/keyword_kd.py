"""Keyword spotting: GRU student distilled from a frozen transformer teacher (response + relation terms)."""
import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def commands(n, frames, bands, classes, seed):
    rng = np.random.default_rng(seed)
    proto = rng.normal(0, 1, (classes, frames // 4, bands)).repeat(4, 1).astype(np.float32)
    y = rng.integers(0, classes, n)
    x = proto[y] + rng.standard_normal((n, frames, bands), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


class Teacher(nn.Module):
    def __init__(self, bands, classes, dim=96, depth=3):
        super().__init__()
        self.inp = nn.Linear(2 * bands, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, batch_first=True, norm_first=True) for _ in range(depth))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        b, t, c = x.shape
        h = self.inp(x.reshape(b, t // 2, 2 * c))
        for layer in self.layers:
            h = layer(h)
        e = h.mean(1)
        return self.out(e), e


class Student(nn.Module):
    def __init__(self, bands, classes, width=80):
        super().__init__()
        self.conv = nn.Conv1d(bands, width, 5, stride=2, padding=2)
        self.gru = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.emb = nn.Linear(width, 64)
        self.out = nn.Linear(64, classes)

    def forward(self, x):
        h = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        h, _ = self.gru(h)
        e = torch.tanh(self.emb(h.mean(1)))
        return self.out(e), e


def load_teacher(path, bands, classes):
    t = Teacher(bands, classes)
    if not os.path.exists(path):
        torch.save(t.state_dict(), path)
    t.load_state_dict(torch.load(path, weights_only=True))
    return t.eval().requires_grad_(False)


def response_loss(s, t, tau):
    return F.kl_div(F.log_softmax(s / tau, -1), F.log_softmax(t / tau, -1), reduction="batchmean", log_target=True) * tau ** 2


def relation_loss(es, et):
    def rel(e):
        d = torch.cdist(e, e)
        return d / d.sum().clamp(min=1e-6) * (d.numel() - len(d))
    return F.smooth_l1_loss(rel(es + 1e-6), rel(et))


class Augment:
    """Time shift, band masking and mixup-free gain; the teacher sees the same augmented batch."""

    def __init__(self, gen):
        self.gen = gen

    def __call__(self, x):
        shift = int(torch.randint(-6, 7, (), generator=self.gen))
        x = torch.roll(x, shift, 1)
        f = int(torch.randint(0, x.shape[2] - 5, (), generator=self.gen))
        x[:, :, f:f + 5] = 0.0
        return x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, generator=self.gen))


def distil(args, workdir):
    torch.manual_seed(args.seed)
    x, y = commands(1200, args.frames, args.bands, args.classes, args.seed)
    held = (x[:100], y[:100])
    x, y = x[100:], y[100:]
    teacher = load_teacher(os.path.join(workdir, "kws_teacher.pt"), args.bands, args.classes)
    student = Student(args.bands, args.classes)
    opt = torch.optim.AdamW(student.parameters(), lr=args.lr, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps)
    gen = torch.Generator().manual_seed(args.seed)
    augment = Augment(gen)
    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(x), (args.batch,), generator=gen)
        batch, target = augment(x[idx]), y[idx]
        with torch.inference_mode():
            t_logits, t_emb = teacher(batch)
        s_logits, s_emb = student(batch)
        ce = F.cross_entropy(s_logits, target)
        kd = response_loss(s_logits, t_logits.clone(), args.tau)
        rel = relation_loss(s_emb, t_emb.clone())
        loss = (1 - args.alpha) * ce + args.alpha * kd + args.gamma * rel
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:3d} ce {ce.item():.4f} kd {kd.item():.4f} rel {rel.item():.4f}", flush=True)
    student.eval()
    with torch.inference_mode():
        print(f"held-out acc {(student(held[0])[0].argmax(1) == held[1]).float().mean().item():.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--frames", type=int, default=96)
    ap.add_argument("--bands", type=int, default=40)
    ap.add_argument("--classes", type=int, default=12)
    ap.add_argument("--tau", type=float, default=3.0)
    ap.add_argument("--alpha", type=float, default=0.7)
    ap.add_argument("--gamma", type=float, default=5.0)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=37)
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as d:
        distil(a, d)
