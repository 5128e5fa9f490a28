"""Repaired forms of scripts in third_party_scripts: the waste is left out, and what is trained stays the same.

Each is made from the script by replacing text, as its author would mend what the first change is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["REPAIRS", "repair"]

Edits = tuple[tuple[str, str], ...]

REPAIRS: Mapping[str, tuple[str, Edits]] = {  # by script: the file, and what stands there instead
    "char_lm": (
        "char_lm.py",
        (("    return [i for i, ch in enumerate(chars) if ch == c][0]", "    return stoi[c]"),),
    ),
    "data_beside": (
        "data_beside/src/train.py",
        (
            (
                "        self.files = sorted(os.path.join(root, name) for name in os.listdir(root) "
                'if name.endswith(".csv"))',
                "        self.files = sorted(os.path.join(root, name) for name in os.listdir(root) "
                'if name.endswith(".csv"))\n'
                '        self.tables = [np.loadtxt(file, delimiter=",", dtype=np.float32) for file in self.files]',
            ),
            (
                '        table = np.loadtxt(self.files[index], delimiter=",", dtype=np.float32)',
                "        table = self.tables[index]",
            ),
        ),
    ),
    "gradient_accumulation": (
        "gradient_accumulation.py",
        (
            (
                "        self.labels = rng.integers(0, 2, n)",
                "        self.labels = rng.integers(0, 2, n)\n        self.kept = [self.encoded(i) for i in range(n)]",
            ),
            (
                "    def __getitem__(self, i):",
                "    def __getitem__(self, i):\n        return self.kept[i]\n\n    def encoded(self, i):",
            ),
        ),
    ),
    "iterable_shards": (
        "iterable_shards.py",
        (
            ("        self.paths = paths\n", "        self.paths, self.rows = paths, {}\n"),
            (
                "            with open(path) as f:\n"
                "                for line in f:\n"
                "                    row = json.loads(line)\n"
                '                    yield torch.tensor(row["features"]), row["label"]',
                "            if path not in self.rows:\n"
                "                with open(path) as f:\n"
                "                    rows = [json.loads(line) for line in f]\n"
                '                self.rows[path] = [(torch.tensor(r["features"]), r["label"]) for r in rows]\n'
                "            yield from self.rows[path]",
            ),
        ),
    ),
    "lightning_autoencoder": (
        "lightning_autoencoder.py",
        (
            (
                "                for row in range(image.shape[0]):\n"
                "                    out[row] += np.roll(image[(row + dy) % image.shape[0]], dx)",
                "                out += np.roll(image, (-dy, dx), (0, 1))",
            ),
        ),
    ),
    "many_items": (
        "many_items.py",
        (
            (
                "        for c in range(CLASSES):\n"
                "            self.hits[c] += ((pred == c) & (target == c)).sum().item()\n"
                "            self.seen[c] += (target == c).sum().item()",
                "        hits = torch.bincount(target[pred == target], minlength=CLASSES).tolist()\n"
                "        seen = torch.bincount(target, minlength=CLASSES).tolist()\n"
                "        self.hits = [a + b for a, b in zip(self.hits, hits)]\n"
                "        self.seen = [a + b for a, b in zip(self.seen, seen)]",
            ),
        ),
    ),
    "package_layout": (
        "segmenter/data.py",
        (
            (
                "    rows = []\n"
                "    for y in range(side):\n"
                "        rows.append([1.0 if math.hypot(x - cx, y - cy) < r else 0.0 for x in range(side)])\n"
                "    return torch.tensor(rows)",
                "    at = torch.arange(side)\n    return (torch.hypot(at[None, :] - cx, at[:, None] - cy) < r).float()",
            ),
        ),
    ),
    "slow_transform": (
        "slow_transform.py",
        (
            (
                "        histogram = [0] * 256\n"
                "        for value in img.ravel():\n"
                "            histogram[value] += 1\n"
                "        table, total = [], 0\n"
                "        for n in histogram:\n"
                "            total += n\n"
                "            table.append(255 * total // img.size)\n"
                "        return np.array(table, dtype=np.uint8)[img]",
                "        total = np.bincount(img.ravel(), minlength=256).cumsum()\n"
                "        return (255 * total // img.size).astype(np.uint8)[img]",
            ),
        ),
    ),
    "tensor_loop": (
        "tensor_loop.py",
        (
            (
                "        losses = []\n"
                "        for i in range(len(embeddings)):\n"
                "            same = labels == labels[i]\n"
                "            distance = ((embeddings - embeddings[i]) ** 2).sum(1)\n"
                "            hardest_positive = distance[same].max()\n"
                "            hardest_negative = distance[~same].min()\n"
                "            losses.append(F.relu(hardest_positive - hardest_negative + self.margin))\n"
                "        return torch.stack(losses).mean()",
                "        same = labels[:, None] == labels\n"
                "        distance = ((embeddings[:, None] - embeddings) ** 2).sum(2)\n"
                '        hardest_positive = distance.masked_fill(~same, float("-inf")).amax(1)\n'
                '        hardest_negative = distance.masked_fill(same, float("inf")).amin(1)\n'
                "        return F.relu(hardest_positive - hardest_negative + self.margin).mean()",
            ),
        ),
    ),
    "weighted_sampler": (
        "weighted_sampler.py",
        (
            (
                "        self.seeds = rng.integers(0, 2**31, n)",
                "        self.seeds = rng.integers(0, 2**31, n)\n        self.kept = [self.made(i) for i in range(n)]",
            ),
            (
                "    def __getitem__(self, i):",
                "    def __getitem__(self, i):\n        return self.kept[i]\n\n    def made(self, i):",
            ),
        ),
    ),
}


def repair(name: str, folder: Path) -> None:
    """Repair a script in a copy of the folder.

    Raises:
        ValueError: the script has changed, so that its repair no longer fits.
    """
    file, edits = REPAIRS[name]
    path = folder / file
    text = path.read_text(encoding="utf-8")
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{file} does not hold what its repair replaces; write it anew in {Path(__file__).name}.")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
