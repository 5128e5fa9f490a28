"""A diagnosis in a run of Weights & Biases: its numbers, its report as a panel, report and JSON as an artifact.

from diagnose.integrations import wandb as diagnose_wandb

diagnose_wandb.log(diagnose.analyze(train_step))
"""

from __future__ import annotations

from typing import Any

from diagnose.errors import UsageError, missing_extra
from diagnose.model.diagnosis import Diagnosis
from diagnose.reports.exports import scalars
from diagnose.text.masking import mask_text

try:
    import wandb
except ImportError:
    raise missing_extra("A diagnosis is to be logged to Weights & Biases", "wandb") from None

__all__ = ["log"]


def log(diagnosis: Diagnosis, *, run: Any = None, step: int | None = None) -> None:
    """Log a diagnosis to a run, or to the one that ``wandb.init`` has begun.

    Numbers are called ``diagnose/step_ms`` and so on; verdict, headline and dominant rule are in the run's summary.

    Args:
        diagnosis: What ``diagnose.analyze`` or a trace has returned.
        run: A run of wandb's.
        step: Of the training, to log several diagnoses of one run.

    Raises:
        UsageError: there is no run.
    """
    run = run if run is not None else wandb.run
    if run is None:
        raise UsageError("There is no run of Weights & Biases: call wandb.init() first, or pass run=.")
    page, data = str(diagnosis.to_html()), diagnosis.to_json()
    values: dict[str, object] = {f"diagnose/{name}": value for name, value in scalars(diagnosis).items()}
    values["diagnose/report"] = wandb.Html(page, inject=False)
    run.log(values, step=step)
    run.summary.update(
        {
            "diagnose/verdict": diagnosis.verdict,
            "diagnose/headline": mask_text(diagnosis.headline),
            "diagnose/dominant": diagnosis.dominant or "none",
        }
    )
    artifact = wandb.Artifact(f"diagnosis-{run.id}", type="diagnosis")
    for name, text in (("report.html", page), ("diagnosis.json", data)):
        with artifact.new_file(name, encoding="utf-8") as file:
            file.write(text)
    run.log_artifact(artifact)
