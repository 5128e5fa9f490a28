"""An autoencoder with the Lightning Trainer; every image is blurred in Python when it is read."""
import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Blurred(Dataset):
    def __init__(self, size=640, side=28):
        rng = np.random.default_rng(0)
        self.images = rng.random((size, side, side), dtype=np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        out = np.zeros_like(image)
        for dy in range(-1, 2):
            for dx in range(-1, 2):
                for row in range(image.shape[0]):
                    out[row] += np.roll(image[(row + dy) % image.shape[0]], dx)
        return torch.from_numpy(out / 9.0)


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def training_step(self, batch, batch_idx):
        x = batch.view(batch.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    train_loader = DataLoader(Blurred(), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        max_epochs=20,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitAutoEncoder(), train_loader)
