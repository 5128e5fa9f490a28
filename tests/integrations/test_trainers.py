"""The callbacks in the real trainers: which steps they count, and that the watch ends with the training."""

import pytest

from diagnose.capture import step_marker
from diagnose.monitor.run_folder import load_runs

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SAMPLES, BATCH, ACCUMULATED = 24, 2, 2
UPDATES = SAMPLES // BATCH // ACCUMULATED


def watched_steps(folder):
    (run,) = load_runs(folder, "net")
    assert not step_marker.is_listened_to()
    return run.info.steps, run.info.ended


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": out.square().mean(), "logits": out}


DATA = [{"x": torch.ones(4), "labels": torch.zeros(1)}] * SAMPLES


def test_a_step_of_transformers_is_an_update(tmp_path):
    from transformers import Trainer, TrainingArguments

    from diagnose.integrations.transformers import DiagnoseCallback

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=1, per_device_train_batch_size=BATCH, use_cpu=True,
        gradient_accumulation_steps=ACCUMULATED, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    callback = DiagnoseCallback("net", folder=tmp_path, every=2, quiet=True)
    Trainer(Model(), arguments, train_dataset=DATA, callbacks=[callback]).train()
    assert watched_steps(tmp_path) == (UPDATES, "finished")


def lightning_training(tmp_path, fail_at=None, epochs=1, **given):
    import lightning

    from diagnose.integrations.lightning import DiagnoseCallback

    given = given or {"callbacks": [DiagnoseCallback("net", folder=tmp_path, every=2, quiet=True)]}

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, index):
            if index == fail_at:
                raise ValueError("planted")
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", accumulate_grad_batches=ACCUMULATED, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        **given,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(DATA, batch_size=BATCH))


def test_a_step_of_lightning_is_an_update(tmp_path):
    lightning_training(tmp_path)
    assert watched_steps(tmp_path) == (UPDATES, "finished")


def test_a_training_of_lightning_that_fails_ends_the_watch(tmp_path):
    with pytest.raises(ValueError, match="planted"):
        lightning_training(tmp_path, fail_at=8)
    assert watched_steps(tmp_path) == (8 // ACCUMULATED, "ValueError")
