"""Few-shot glyph classification, head adapted per task with a few gradient steps."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class GlyphWorld:
    """Procedural alphabets: every character is a low-frequency pattern plus pen jitter."""

    def __init__(self, n_chars=300, size=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        coarse = torch.randn(n_chars, 1, 6, 6, generator=g)
        self.proto = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)
        self.gen = g

    def draw(self, chars, shots):
        base = self.proto[chars].repeat_interleave(shots, 0)
        n = base.shape[0]
        dx, dy = torch.randint(-2, 3, (2, n), generator=self.gen)
        rolled = torch.stack([torch.roll(b, (int(y), int(x)), (1, 2)) for b, x, y in zip(base, dx, dy)])
        return rolled + 0.4 * torch.randn(rolled.shape, generator=self.gen)

    def episode(self, ways, shots, queries):
        chars = torch.randperm(len(self.proto), generator=self.gen)[:ways]
        sx, qx = self.draw(chars, shots), self.draw(chars, queries)
        cls = torch.arange(ways)
        return sx, cls.repeat_interleave(shots), qx, cls.repeat_interleave(queries)


def conv_unit(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(),
                         nn.MaxPool2d(2))


class Learner(nn.Module):
    def __init__(self, ways, width=32, inner_lr=0.1):
        super().__init__()
        self.trunk = nn.Sequential(conv_unit(1, width), conv_unit(width, width),
                                   conv_unit(width, width), nn.Flatten())
        d = width * 9
        self.w0 = nn.Parameter(0.01 * torch.randn(ways, d))
        self.b0 = nn.Parameter(torch.zeros(ways))
        self.log_lr = nn.Parameter(torch.tensor(float(inner_lr)).log())

    def adapt(self, sx, sy, inner_steps):
        w, b = self.w0, self.b0
        lr = self.log_lr.exp()
        for _ in range(inner_steps):
            feats = self.trunk(sx)
            inner = F.cross_entropy(F.linear(feats, w, b), sy)
            gw, gb = torch.autograd.grad(inner, (w, b), create_graph=True)
            w, b = w - lr * gw, b - lr * gb
        return w, b

    def forward(self, sx, sy, qx, qy, inner_steps):
        w, b = self.adapt(sx, sy, inner_steps)
        logits = F.linear(self.trunk(qx), w, b)
        return F.cross_entropy(logits, qy), (logits.argmax(1) == qy).float().mean()


class MetaTrainer:
    def __init__(self, args):
        self.args = args
        self.world = GlyphWorld(seed=args.seed)
        self.learner = Learner(args.ways)
        self.opt = torch.optim.Adam(self.learner.parameters(), lr=1e-3, fused=True)

    def meta_step(self):
        a = self.args
        total, acc = 0.0, 0.0
        self.opt.zero_grad()
        for _ in range(a.tasks):
            episode = self.world.episode(a.ways, a.shots, a.queries)
            loss, hit = self.learner(*episode, a.inner)
            (loss / a.tasks).backward()
            total += loss.item() / a.tasks
            acc += hit.item() / a.tasks
        nn.utils.clip_grad_norm_(self.learner.parameters(), 10.0)
        self.opt.step()
        return total, acc

    def run(self):
        for step in range(1, self.args.steps + 1):
            loss, acc = self.meta_step()
            if step % 10 == 0 or step == 1:
                print(f"meta-step {step}: query loss {loss:.5f}, query acc {acc:.3f}, "
                      f"inner lr {self.learner.log_lr.exp().item():.4f}")


def build_parser():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--tasks", type=int, default=4)
    ap.add_argument("--ways", type=int, default=5)
    ap.add_argument("--shots", type=int, default=2)
    ap.add_argument("--queries", type=int, default=8)
    ap.add_argument("--inner", type=int, default=4)
    ap.add_argument("--seed", type=int, default=17)
    return ap


if __name__ == "__main__":
    args = build_parser().parse_args()
    torch.manual_seed(args.seed)
    MetaTrainer(args).run()
