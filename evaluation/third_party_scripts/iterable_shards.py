"""A stream of JSON lines as an IterableDataset: shards are read one after another and parsed in the main process."""
import argparse
import json
import os
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def write_shards(folder, shards=4, rows=600):
    rng = random.Random(0)
    paths = []
    for s in range(shards):
        path = os.path.join(folder, f"shard-{s:03d}.jsonl")
        with open(path, "w") as f:
            for _ in range(rows):
                row = {"features": [[rng.random() for _ in range(32)] for _ in range(24)], "label": rng.randrange(5)}
                f.write(json.dumps(row) + "\n")
        paths.append(path)
    return paths


class JsonLines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = get_worker_info()
        paths = self.paths if info is None else self.paths[info.id :: info.num_workers]
        for path in paths:
            with open(path) as f:
                for line in f:
                    row = json.loads(line)
                    yield torch.tensor(row["features"]), row["label"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        stream = JsonLines(write_shards(folder))
        loader = DataLoader(stream, batch_size=args.batch_size, num_workers=args.workers)
        model = nn.Sequential(nn.Flatten(), nn.Linear(24 * 32, 128), nn.ReLU(), nn.Linear(128, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loss_fn = nn.CrossEntropyLoss()
        for epoch in range(100):
            for features, labels in loader:
                optimizer.zero_grad(set_to_none=True)
                loss = loss_fn(model(features), labels)
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
