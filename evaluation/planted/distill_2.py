"""Knowledge distillation with mixup: the teacher sees a new mixture in each step."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def cnn(ch, n_class):
    return nn.Sequential(
        nn.Conv2d(3, ch, 3, 2, 1), nn.BatchNorm2d(ch), nn.ReLU(inplace=True),
        nn.Conv2d(ch, 2 * ch, 3, 2, 1), nn.BatchNorm2d(2 * ch), nn.ReLU(inplace=True),
        nn.Conv2d(2 * ch, 2 * ch, 3, 1, 1), nn.BatchNorm2d(2 * ch), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * ch, n_class),
    )


class Distiller(nn.Module):
    def __init__(self, teacher, student, temp=3.0, alpha=0.7):
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = student
        self.temp, self.alpha = temp, alpha

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x, y_a, y_b, lam):
        with torch.no_grad():
            soft = (self.teacher(x) / self.temp).softmax(1)
        logits = self.student(x)
        kd = F.kl_div((logits / self.temp).log_softmax(1), soft, reduction="batchmean") * self.temp ** 2
        hard = lam * F.cross_entropy(logits, y_a) + (1 - lam) * F.cross_entropy(logits, y_b)
        return self.alpha * kd + (1 - self.alpha) * hard


def mixup(x, y, beta):
    lam = float(beta.sample())
    perm = torch.randperm(len(x))
    return torch.lerp(x[perm], x, lam), y, y[perm], lam


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(347)
    y = torch.randint(0, 10, (500,))
    x = torch.randn(500, 3, 32, 32) + 0.5 * torch.randn(10, 3, 32, 32)[y]
    model = Distiller(cnn(32, 10), cnn(16, 10)).train()
    opt = torch.optim.SGD(model.student.parameters(), lr=0.05, momentum=0.9, fused=True)
    beta = torch.distributions.Beta(0.4, 0.4)
    for step in range(args.steps):
        i = torch.randint(0, 440, (24,))
        loss = model(*mixup(x[i], y[i], beta))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                acc = (model.student(x[440:]).argmax(1) == y[440:]).float().mean().item()
            model.train()
            print(f"step {step + 1} loss {loss.item():.5f} val {acc:.3f}")


if __name__ == "__main__":
    main()
