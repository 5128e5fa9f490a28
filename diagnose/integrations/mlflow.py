"""A diagnosis in a run of MLflow: its numbers as metrics, its report and JSON as artifacts.

from diagnose.integrations import mlflow as diagnose_mlflow

diagnose_mlflow.log(diagnose.analyze(train_step))
"""

from __future__ import annotations

from diagnose.errors import missing_extra
from diagnose.model.diagnosis import Diagnosis
from diagnose.reports.exports import scalars
from diagnose.text.masking import mask_text

try:
    import mlflow
except ImportError:
    raise missing_extra("A diagnosis is to be logged to MLflow", "mlflow") from None

__all__ = ["log"]


def log(diagnosis: Diagnosis, *, run_id: str | None = None, step: int | None = None, folder: str = "diagnose") -> str:
    """Log a diagnosis to the active run, or to the one that is named; return the run's id.

    Without either a run is begun and ended, as MLflow's own functions begin one. Metrics are called
    ``diagnose/step_ms`` and so on; verdict, headline and dominant rule are tags.

    Args:
        diagnosis: What ``diagnose.analyze`` or a trace has returned.
        run_id: A run of the tracking server.
        step: Of the training, to log several diagnoses of one run.
        folder: Of the artifacts ``report.html`` and ``diagnosis.json``.
    """
    active = mlflow.active_run()
    if run_id is None and active is None:
        with mlflow.start_run() as begun:
            return log(diagnosis, run_id=begun.info.run_id, step=step, folder=folder)
    named = run_id or str(active.info.run_id if active is not None else "")
    mlflow.log_metrics({f"diagnose/{name}": value for name, value in scalars(diagnosis).items()}, step, run_id=named)
    client = mlflow.MlflowClient()
    tags = {"verdict": diagnosis.verdict, "headline": diagnosis.headline, "dominant": diagnosis.dominant or "none"}
    for name, text in tags.items():
        # Every store of MLflow takes so many characters.
        client.set_tag(named, f"diagnose.{name}", mask_text(text)[:5000])
    client.log_text(named, str(diagnosis.to_html()), f"{folder}/report.html")
    client.log_text(named, diagnosis.to_json(), f"{folder}/diagnosis.json")
    return named
