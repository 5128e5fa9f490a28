"""A DataLoader with workers: load.py START_METHOD|none [train]."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.ones(4)


def main():
    torch.set_num_threads(1)
    method = None if sys.argv[1] == "none" else sys.argv[1]
    workers = 0 if method is None else 2
    loader = DataLoader(
        Slow(), batch_size=4, num_workers=workers, multiprocessing_context=method, persistent_workers=workers > 0
    )
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if "train" in sys.argv else None
    for _ in range(200):
        for batch in loader:
            loss = model(batch).mean()
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
