"""Masked-language modelling with the transformers Trainer; the collator masks token by token in Python."""
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

VOCAB, MASK, LENGTH = 500, 3, 64


class Corpus(Dataset):
    def __init__(self, size=4000):
        rng = random.Random(0)
        self.rows = [[rng.randrange(10, VOCAB) for _ in range(LENGTH)] for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def mask_tokens(examples):
    inputs, labels = [], []
    for example in examples:
        ids = torch.tensor(example["input_ids"])
        target = torch.full_like(ids, -100)
        for position in range(len(ids)):
            if torch.rand(()) < 0.15:
                target[position] = ids[position]
                ids[position] = MASK
        inputs.append(ids)
        labels.append(target)
    return {"input_ids": torch.stack(inputs), "labels": torch.stack(labels)}


def main():
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=600,
            learning_rate=5e-4,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=BertForMaskedLM(config), args=args, train_dataset=Corpus(), data_collator=mask_tokens)
        trainer.train()


if __name__ == "__main__":
    main()
