"""Vision transforms as a chain of callables, one of them slow."""
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, img):
        top = random.randint(0, img.shape[0] - self.size)
        left = random.randint(0, img.shape[1] - self.size)
        return img[top : top + self.size, left : left + self.size]


class Equalize:
    """Histogram equalisation, pixel by pixel."""

    def __call__(self, img):
        histogram = [0] * 256
        for value in img.ravel():
            histogram[value] += 1
        table, total = [], 0
        for n in histogram:
            total += n
            table.append(255 * total // img.size)
        return np.array(table, dtype=np.uint8)[img]


class ToTensor:
    def __call__(self, img):
        return torch.from_numpy(img.astype(np.float32) / 255.0).unsqueeze(0)


class FakeImages(torch.utils.data.Dataset):
    def __init__(self, n, transform=None):
        self.data = np.random.default_rng(0).integers(0, 256, (n, 32, 32), dtype=np.uint8)
        self.targets = np.random.default_rng(1).integers(0, 10, n)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        img, target = self.data[index], int(self.targets[index])
        if self.transform is not None:
            img = self.transform(img)
        return img, target


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.fc1 = nn.Linear(8 * 13 * 13, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.log_softmax(self.fc1(torch.flatten(x, 1)), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print("Train Epoch: {} [{}/{}]\tLoss: {:.6f}".format(
                epoch, batch_idx * len(data), len(train_loader.dataset), loss.item()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    train_kwargs = {"batch_size": args.batch_size}
    transform = Compose([RandomCrop(28), Equalize(), ToTensor()])
    dataset1 = FakeImages(4000, transform=transform)
    train_loader = torch.utils.data.DataLoader(dataset1, shuffle=True, **train_kwargs)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        scheduler.step()


if __name__ == "__main__":
    main()
