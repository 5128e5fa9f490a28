"""Text-line recogniser: convolutional features, BiLSTM, CTC."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = "0123456789-/.:ABCDEF"
HEIGHT, GLYPH_W = 16, 10


def render_lines(count, generator):
    glyphs = torch.rand(len(ALPHABET), HEIGHT, GLYPH_W, generator=generator) > 0.55
    groups = {}
    for _ in range(count):
        n = int(torch.randint(5, 9, (1,), generator=generator))
        label = torch.randint(0, len(ALPHABET), (n,), generator=generator)
        line = torch.cat([glyphs[c] for c in label.tolist()], 1).float() * 200
        line = (line + 25 * torch.randn(line.shape, generator=generator)).clamp(0, 255)
        groups.setdefault(n, []).append((line.to(torch.uint8), label + 1))
    return {n: (torch.stack([a for a, _ in rows]), torch.stack([b for _, b in rows]))
            for n, rows in groups.items()}


class LineSampler:
    def __init__(self, groups, batch, generator):
        self.groups, self.batch, self.gen = groups, batch, generator
        self.plan = []

    def __iter__(self):
        while True:
            for n, (images, _) in self.groups.items():
                order = torch.randperm(len(images), generator=self.gen)
                self.plan += [(n, rows) for rows in order.split(self.batch) if len(rows) == self.batch]
            for k in torch.randperm(len(self.plan), generator=self.gen).tolist():
                n, rows = self.plan[k]
                images, labels = self.groups[n]
                yield images[rows], labels[rows]
            self.plan = []


class Recogniser(nn.Module):
    def __init__(self, width=16, hidden=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(True),
            nn.MaxPool2d((2, 1)),
        )
        self.rnn = nn.LSTM(2 * width * HEIGHT // 4, hidden, bidirectional=True)
        self.out = nn.Linear(2 * hidden, len(ALPHABET) + 1)

    def forward(self, images):
        x = images.unsqueeze(1).float().div_(127.5).sub_(1.0)
        x = self.conv(x)
        x, _ = self.rnn(x.permute(3, 0, 1, 2).flatten(2))
        return F.log_softmax(self.out(x), -1)


def ctc(log_probs, labels):
    steps, batch, _ = log_probs.shape
    return F.ctc_loss(log_probs, labels, torch.full((batch,), steps), torch.full((batch,), labels.size(1)),
                      zero_infinity=True)


@torch.no_grad()
def exact_match(model, groups):
    model.eval()
    good = total = 0
    for images, labels in groups.values():
        best = model(images).argmax(-1).t()
        for path, truth in zip(best, labels):
            path = torch.unique_consecutive(path)
            good += int(torch.equal(path[path > 0], truth))
            total += 1
    model.train()
    return good / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(17)
    gen = torch.Generator().manual_seed(17)
    lines = render_lines(1600, gen)
    held_out = {n: (a[:12], b[:12]) for n, (a, b) in lines.items()}
    lines = {n: (a[12:], b[12:]) for n, (a, b) in lines.items()}
    model = Recogniser()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=args.steps)
    for step, (images, labels) in zip(range(1, args.steps + 1), LineSampler(lines, 16, gen)):
        loss = ctc(model(images), labels)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 50 == 0:
            print(f"step {step:4d}  ctc {loss.item():.5f}", flush=True)
        if step % 150 == 0:
            print(f"step {step:4d}  exact match {exact_match(model, held_out):.3f}")
        if step == 10:
            t0 = time.process_time()
    print(f"step_ms={(time.process_time() - t0) * 1000 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()
