# Attention transfer: a slim student mimics the early attention maps of a larger pretrained network.
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    def __init__(self, n=1500, size=40, classes=12, seed=0):
        rng = np.random.default_rng(seed)
        proto = rng.normal(0, 1, (classes, 3, 10, 10)).repeat(size // 10, 2).repeat(size // 10, 3)
        self.y = rng.integers(0, classes, n)
        noise = rng.integers(-45, 45, (n, 3, size, size), dtype=np.int16)
        self.x = (128 + 30 * proto[self.y] + noise).clip(0, 255).astype(np.uint8)
        self.classes = classes

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        img = self.x[i]
        if np.random.rand() < 0.5:
            img = img[:, :, ::-1]
        dy, dx = np.random.randint(0, 5, 2)
        img = np.pad(img, ((0, 0), (2, 2), (2, 2)), mode="reflect")[:, dy:dy + 40, dx:dx + 40]
        return torch.from_numpy(np.ascontiguousarray(img)), int(self.y[i])


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(cout)
        self.c2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(cout)
        self.skip = nn.Identity() if stride == 1 and cin == cout else nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, widths, depth, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        stages, cin = [], widths[0]
        for k, w in enumerate(widths):
            blocks = [Residual(cin if b == 0 else w, w, 2 if b == 0 else 1) for b in range(depth)]
            stages.append(nn.Sequential(*blocks))
            cin = w
        self.stages = nn.ModuleList(stages)
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        maps = []
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return self.fc(x.mean((2, 3))), maps


def attention(fmap):
    return F.normalize(fmap.pow(2).mean(1).flatten(1), dim=1)


class AttentionTransfer(nn.Module):
    def __init__(self, levels, beta):
        super().__init__()
        self.levels, self.beta = levels, beta

    def forward(self, student_maps, teacher_maps):
        loss = 0.0
        for i in self.levels:
            loss = loss + (attention(student_maps[i]) - attention(teacher_maps[i])).pow(2).mean()
        return self.beta * loss / len(self.levels)


def load_teacher(path, classes):
    net = ResNet((24, 48, 144, 224), 2, classes)
    if not os.path.exists(path):
        torch.save(net.state_dict(), path)
    net.load_state_dict(torch.load(path, weights_only=True))
    return net.eval().requires_grad_(False)


def preprocess(x):
    return (x.float() - 127.5) / 58.0


class Distiller:
    def __init__(self, args, data, workdir):
        self.args = args
        self.loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
        torch.manual_seed(args.seed + 100)
        self.teacher = load_teacher(os.path.join(workdir, "teacher.pt"), data.classes)
        torch.manual_seed(args.seed)
        self.student = ResNet((12, 24, 32, 48), 1, data.classes)
        self.at = AttentionTransfer(args.levels, args.beta)
        self.opt = torch.optim.SGD(self.student.parameters(), args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.steps)

    def train_step(self, x, y):
        x = preprocess(x)
        with torch.no_grad():
            _, teacher_maps = self.teacher(x)
        logits, maps = self.student(x)
        ce = F.cross_entropy(logits, y, label_smoothing=0.05)
        at = self.at(maps, teacher_maps)
        self.opt.zero_grad()
        (ce + at).backward()
        self.opt.step()
        self.sched.step()
        return ce.detach(), at.detach(), logits.detach()

    def fit(self):
        step = 0
        while True:
            for x, y in self.loader:
                ce, at, logits = self.train_step(x, y)
                step += 1
                if step % self.args.log_every == 0:
                    top1 = (logits.argmax(1) == y).float().mean()
                    print(f"{step}/{self.args.steps} ce {ce:.4f} at {at:.5f} top1 {top1:.3f}", flush=True)
                if step == self.args.steps:
                    return


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--levels", type=int, nargs="+", default=[0, 1])
    ap.add_argument("--beta", type=float, default=500.0)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=2)
    args = ap.parse_args()
    np.random.seed(args.seed)
    with tempfile.TemporaryDirectory() as workdir:
        Distiller(args, Leaves(seed=args.seed), workdir).fit()


if __name__ == "__main__":
    main()
