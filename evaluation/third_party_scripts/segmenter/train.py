import argparse
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader

from .data import Circles
from .model import UNet

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("segmenter")


def make_loader(dataset, args):
    loader_args = dict(batch_size=args.batch_size, drop_last=True, pin_memory=False)
    return DataLoader(dataset, shuffle=True, **loader_args)


def train_model(model, args):
    loader = make_loader(Circles(args.size), args)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr, weight_decay=1e-8, momentum=0.999)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        model.train()
        epoch_loss = 0.0
        for images, masks in loader:
            loss = criterion(model(images), masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            epoch_loss += loss.item()
        log.info("epoch %d loss %.4f", epoch, epoch_loss / len(loader))


def get_args():
    parser = argparse.ArgumentParser(description="Train the UNet")
    parser.add_argument("--epochs", "-e", type=int, default=20)
    parser.add_argument("--batch-size", "-b", type=int, default=16)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--lr", type=float, default=1e-5)
    return parser.parse_args()


if __name__ == "__main__":
    torch.manual_seed(0)
    train_model(UNet(), get_args())
