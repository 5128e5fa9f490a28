"""Fine-grained classification of bird feather patches with a small pre-activation ResNet."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def feathers(n, classes, size, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    freq = 2 + 6 * torch.rand(classes, 2, generator=g)
    tint = torch.rand(classes, 3, generator=g)
    grid = torch.linspace(0, 2 * torch.pi, size)
    phase = 6 * torch.rand(n, 1, 1, generator=g)
    f = freq[y]
    wave = torch.sin(f[:, 0, None, None] * grid[None, :, None] + f[:, 1, None, None] * grid[None, None, :] + phase)
    x = tint[y][:, :, None, None] * (0.5 + 0.4 * wave.unsqueeze(1)) + 0.15 * torch.randn(n, 3, size, size, generator=g)
    return (x.clamp(0, 1) * 255).to(torch.uint8), y


class PatchStream:
    """Shuffled batches with reflected crops and flips drawn once per batch."""

    def __init__(self, images, labels, batch, pad, seed):
        self.images = F.pad(images.float(), (pad,) * 4, mode="reflect").to(torch.uint8)
        self.labels, self.batch, self.pad, self.size = labels, batch, pad, images.shape[-1]
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.labels), generator=self.gen)
            for idx in order.split(self.batch):
                if len(idx) == self.batch:
                    yield self.crop(self.images[idx]), self.labels[idx]

    def crop(self, x):
        dy, dx, flip = torch.randint(0, 2 * self.pad + 1, (3,), generator=self.gen).tolist()
        x = x[..., dy:dy + self.size, dx:dx + self.size]
        if flip % 2:
            x = x.flip(-1)
        return ((x.float() - 115) / 60).contiguous(memory_format=torch.channels_last)


class PreAct(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(cin, cout, 1, stride, bias=False) if (cin, stride) != (cout, 1) else None

    def forward(self, x):
        h = F.relu(self.bn1(x))
        s = x if self.short is None else self.short(h)
        return s + self.conv2(F.relu(self.bn2(self.conv1(h))))


class FeatherNet(nn.Module):
    def __init__(self, classes, widths=(32, 64, 96)):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 2, 1, bias=False)
        blocks, cin = [], widths[0]
        for i, w in enumerate(widths):
            for j in range(2):
                blocks.append(PreAct(cin, w, 2 if i and not j else 1))
                cin = w
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(cin)
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        x = F.relu(self.bn(self.blocks(self.stem(x))))
        return self.fc(x.mean((2, 3)))


@torch.no_grad()
def accuracy(net, images, labels, chunk=64):
    net.eval()
    hits = 0
    for x, y in zip(images.split(chunk), labels.split(chunk)):
        hits += (net((x.float() - 115) / 60).argmax(1) == y).sum().item()
    net.train()
    return hits / len(labels)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--classes", type=int, default=30)
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--seed", type=int, default=51)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    images, labels = feathers(1800, args.classes, 48, args.seed)
    stream = iter(PatchStream(images[:1728], labels[:1728], args.batch, 4, args.seed))
    net = FeatherNet(args.classes).to(memory_format=torch.channels_last)
    decay = [p for p in net.parameters() if p.ndim > 1]
    other = [p for p in net.parameters() if p.ndim == 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": 5e-4}, {"params": other}], lr=args.lr, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(1, args.steps + 1):
        x, y = next(stream)
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:4d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.4f}")
    print(f"held-out accuracy {accuracy(net, images[1728:], labels[1728:]):.3f}")


if __name__ == "__main__":
    main()
