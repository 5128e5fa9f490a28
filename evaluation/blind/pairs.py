"""Image-caption pretraining at toy scale with a cross-batch memory of negatives."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 32
DIM = 128
MEMORY = 32768
DRAWN = 2048
VOCAB = 2000
CAPTION_LEN = 12


class ImageTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 24, 4, stride=4), nn.GELU(),
            nn.Conv2d(24, 64, 2, stride=2), nn.GELU(),
            nn.Conv2d(64, 128, 2, stride=2), nn.GELU(),
        )
        self.proj = nn.Linear(128, DIM)

    def forward(self, pixels):
        return F.normalize(self.proj(self.stem(pixels).mean((2, 3))), dim=-1)


class CaptionTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, DIM))

    def forward(self, tokens):
        return F.normalize(self.mlp(self.words(tokens).mean(1)), dim=-1)


class FeatureMemory:
    """The last MEMORY features of one modality, used as extra negatives."""

    def __init__(self, generator, in_place):
        self.bank = F.normalize(torch.randn(MEMORY, DIM, generator=generator), dim=-1)
        self.in_place = in_place
        self.oldest = 0

    def draw(self, generator):
        ages = torch.randint(0, MEMORY, (DRAWN,), generator=generator)
        return self.bank[(self.oldest + ages) % MEMORY]

    def push(self, feats):
        feats = feats.detach()
        if self.in_place:
            self.bank[self.oldest:self.oldest + len(feats)] = feats
            self.oldest = (self.oldest + len(feats)) % MEMORY
        else:
            self.bank = torch.cat([self.bank, feats], dim=0)[-MEMORY:]


def contrast(query, positive_keys, older_keys, temperature):
    logits = torch.cat([query @ positive_keys.t(), query @ older_keys.t()], dim=1)
    return F.cross_entropy(logits / temperature, torch.arange(len(query)))


def make_pairs(count, generator):
    topics = torch.randint(0, 50, (count,), generator=generator)
    prototypes = torch.randn(50, 3, 32, 32, generator=generator)
    images = prototypes[topics] + 0.5 * torch.randn(count, 3, 32, 32, generator=generator)
    captions = topics[:, None] * 40 + torch.randint(0, 40, (count, CAPTION_LEN), generator=generator)
    return images, captions


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(11)
    images, captions = make_pairs(2048, gen)
    image_tower, caption_tower = ImageTower(), CaptionTower()
    params = [*image_tower.parameters(), *caption_tower.parameters()]
    optimizer = torch.optim.AdamW(params, lr=5e-4, weight_decay=0.01)
    image_memory = FeatureMemory(gen, args.fixed)
    caption_memory = FeatureMemory(gen, args.fixed)

    started = time.process_time()
    for step in range(1, args.steps + 1):
        pick = torch.randint(0, len(images), (BATCH,), generator=gen)
        img = image_tower(images[pick])
        cap = caption_tower(captions[pick])
        loss = 0.5 * (contrast(img, cap, caption_memory.draw(gen), 0.1)
                      + contrast(cap, img, image_memory.draw(gen), 0.1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        image_memory.push(img)
        caption_memory.push(cap)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}")
        if step == 10:
            started = time.process_time()
    print(f"step_ms={(time.process_time() - started) * 1000 / max(1, args.steps - 10):.2f}")


if __name__ == "__main__":
    main()
