"""Action recognition on surveillance clips: 2D stem, temporal shift, small head."""
import argparse
import collections

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

ACTIONS = ("walk", "run", "fall", "wave", "sit", "crouch")


def synth_clip(rng, action, frames, size):
    k = ACTIONS.index(action)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    back = rng.integers(40, 90, (size, size, 1)).astype(np.float32).repeat(3, 2)
    colour = rng.uniform(120, 255, 3)
    cx, cy = rng.uniform(0.3, 0.7, 2) * size
    out = np.empty((frames, size, size, 3), np.uint8)
    for t in range(frames):
        u = t / frames
        dx = (k % 3 - 1) * 20 * u
        dy = (k // 3) * 16 * u + 4 * np.sin(6 * u * (k + 1))
        body = (np.abs(x - cx - dx) < 4) & (np.abs(y - cy - dy) < 10 - 1.2 * k * u)
        img = back.copy()
        img[body] = colour
        out[t] = np.clip(img + rng.normal(0, 4, img.shape), 0, 255)
    return out


class ClipAugment:
    """Applies one randomly chosen corruption of random strength to a float clip [T, C, H, W]."""

    CHOICES = ("plain", "plain", "blur", "gamma", "grain", "zoom", "trail")

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.used = collections.Counter()

    @staticmethod
    def blur(clip, strength):
        taps = torch.exp(-torch.linspace(-2, 2, 7) ** 2 / (0.3 + strength))
        taps = (taps / taps.sum()).view(1, 1, 1, 7)
        flat = clip.flatten(0, 1).unsqueeze(1)
        flat = F.conv2d(F.pad(flat, (3, 3, 0, 0), mode="replicate"), taps)
        flat = F.conv2d(F.pad(flat, (0, 0, 3, 3), mode="replicate"), taps.transpose(2, 3))
        return flat.view_as(clip)

    @staticmethod
    def gamma(clip, strength):
        return clip.clamp(min=1e-3) ** (0.6 + 0.8 * strength)

    @staticmethod
    def grain(clip, strength, seed):
        gen = torch.Generator().manual_seed(seed)
        return (clip + 0.1 * strength * torch.randn(clip.shape, generator=gen)).clamp(0, 1)

    @staticmethod
    def zoom(clip, strength):
        size = clip.shape[-1]
        cut = int(strength * size * 0.15)
        inner = clip[..., cut:size - cut, cut:size - cut]
        return F.interpolate(inner, size=(size, size), mode="bilinear", align_corners=False)

    @staticmethod
    def trail(clip, strength):
        out = [clip[0]]
        for frame in clip[1:]:
            out.append(torch.lerp(frame, out[-1], 0.5 * strength))
        return torch.stack(out)

    def __call__(self, clip):
        kind = self.CHOICES[self.rng.integers(len(self.CHOICES))]
        strength, seed = float(self.rng.random()), int(self.rng.integers(2 ** 31))
        self.used[kind] += 1
        result = {
            "plain": clip,
            "blur": self.blur(clip, strength),
            "gamma": self.gamma(clip, strength),
            "grain": self.grain(clip, strength, seed),
            "zoom": self.zoom(clip, strength),
            "trail": self.trail(clip, strength),
        }
        return result[kind]


class Surveillance(Dataset):
    def __init__(self, n, frames, size, seed, augment=None):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, len(ACTIONS), n)
        self.clips = [synth_clip(rng, ACTIONS[k], frames, size) for k in self.labels]
        self.augment = augment

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        clip = torch.from_numpy(self.clips[i]).permute(0, 3, 1, 2).float().div_(255).contiguous()
        if self.augment is not None:
            clip = self.augment(clip)
        return clip.sub(0.4).div(0.25), int(self.labels[i])


class ShiftBlock(nn.Module):
    def __init__(self, cin, cout, frames, fold=8):
        super().__init__()
        self.frames, self.fold = frames, cin // fold
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(cout)

    def forward(self, x):
        v = x.view(-1, self.frames, *x.shape[1:])
        f = self.fold
        left = F.pad(v[:, 1:, :f], (0, 0, 0, 0, 0, 0, 0, 1))
        right = F.pad(v[:, :-1, f:2 * f], (0, 0, 0, 0, 0, 0, 1, 0))
        x = torch.cat([left, right, v[:, :, 2 * f:]], 2).flatten(0, 1)
        return F.relu(self.norm(self.conv(x)))


class ActionNet(nn.Module):
    def __init__(self, frames, width=24):
        super().__init__()
        self.frames = frames
        self.stem = nn.Sequential(nn.Conv2d(3, width, 5, 2, 2, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.stages = nn.Sequential(ShiftBlock(width, 2 * width, frames), ShiftBlock(2 * width, 4 * width, frames))
        self.head = nn.Linear(4 * width, len(ACTIONS))

    def forward(self, clips):
        x = self.stages(self.stem(clips.flatten(0, 1)))
        return self.head(x.mean((2, 3)).view(-1, self.frames, x.shape[1]).mean(1))


def run(args):
    torch.manual_seed(args.seed)
    augment = ClipAugment(args.seed + 1)
    loader = DataLoader(Surveillance(96, args.frames, 56, args.seed, augment), args.batch, shuffle=True, drop_last=True)
    net = ActionNet(args.frames)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    done = 0
    while True:
        for clips, labels in loader:
            loss = F.cross_entropy(net(clips), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            if done % args.log == 0:
                print(f"iter {done}: loss {loss.item():.4f}")
            if done == args.steps:
                print("augmentations:", dict(augment.used))
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--log", type=int, default=10)
    parser.add_argument("--seed", type=int, default=77)
    run(parser.parse_args())
