"""Distil a quantised teacher MLP-mixer style network into a small student."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class PackedLinear(nn.Module):
    """Linear layer stored as group-wise int8 codes, groups of 32 input features."""

    GROUP = 32

    def __init__(self, n_in, n_out):
        super().__init__()
        w = torch.randn(n_out, n_in // self.GROUP, self.GROUP) / n_in ** 0.5
        lo, hi = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
        self.register_buffer("scale", (hi - lo) / 255)
        self.register_buffer("zero", (-lo / self.scale).round())
        self.register_buffer("codes", (w / self.scale + self.zero).round().clamp(0, 255).to(torch.uint8))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.dense = None

    def weight(self):
        w = (self.codes.float() - self.zero) * self.scale
        return w.flatten(1)

    def unpack(self):
        self.dense = self.weight()

    def forward(self, x):
        w = self.weight() if self.dense is None else self.dense
        return F.linear(x, w, self.bias)


def teacher_net(n_in, n_out, width=1024):
    return nn.Sequential(
        PackedLinear(n_in, width), nn.GELU(), PackedLinear(width, width), nn.GELU(),
        PackedLinear(width, width), nn.GELU(), PackedLinear(width, n_out),
    )


class Student(nn.Module):
    def __init__(self, n_in, n_out, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, n_out)

    def forward(self, x):
        return self.head(self.body(x))


def kd_loss(student_logits, teacher_logits, temp=2.0):
    p = F.log_softmax(teacher_logits / temp, -1)
    q = F.log_softmax(student_logits / temp, -1)
    return F.kl_div(q, p, log_target=True, reduction="batchmean") * temp ** 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(14)
    teacher = teacher_net(256, 20).requires_grad_(False).eval()
    student = Student(256, 20)
    if args.fixed:
        for m in teacher:
            if isinstance(m, PackedLinear):
                m.unpack()
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = torch.randn(128, 256)
        with torch.no_grad():
            t_logits = teacher(x) * 4
        loss = kd_loss(student(x), t_logits)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 4 == 3:
            print(f"step {step + 1} kd {loss.item():.6f}")


if __name__ == "__main__":
    main()
