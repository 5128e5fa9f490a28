"""A diagnosis logged to MLflow and to Weights & Biases with the real libraries, without a network."""

import json
from pathlib import Path

import pytest

import diagnose
from diagnose.reports.exports import scalars

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TRACE = Path(__file__).parents[2] / "fixtures" / "captures" / "loop_optimizer"


@pytest.fixture(scope="module")
def diagnosis():
    return diagnose.analyze_trace(TRACE)


def test_mlflow_keeps_numbers_report_and_json(tmp_path, monkeypatch, diagnosis):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    from diagnose.integrations import mlflow as logged

    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("net")
    with mlflow.start_run() as run:
        assert logged.log(diagnosis, step=7) == run.info.run_id
    client = mlflow.MlflowClient()
    kept = client.get_run(run.info.run_id).data
    assert kept.metrics == {f"diagnose/{name}": value for name, value in scalars(diagnosis).items()}
    assert kept.metrics["diagnose/step_ms"] == diagnosis.step_ns / 1e6
    assert client.get_metric_history(run.info.run_id, "diagnose/steps")[0].step == 7
    assert kept.tags["diagnose.headline"] == diagnosis.headline
    folder = Path(client.download_artifacts(run.info.run_id, "diagnose", str(tmp_path)))
    assert sorted(path.name for path in folder.iterdir()) == ["diagnosis.json", "report.html"]
    assert json.loads((folder / "diagnosis.json").read_text())["verdict"] == diagnosis.verdict
    alone = logged.log(diagnosis)  # begins a run of its own, and ends it
    assert (client.get_run(alone).info.status, mlflow.active_run()) == ("FINISHED", None)


def test_wandb_keeps_numbers_report_and_json_offline(tmp_path, monkeypatch, diagnosis):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    wandb = pytest.importorskip("wandb")
    from diagnose.integrations import wandb as logged

    with pytest.raises(diagnose.UsageError, match=r"wandb.init\(\)"):
        logged.log(diagnosis)
    run = wandb.init(project="net", dir=str(tmp_path))
    try:
        logged.log(diagnosis)
        assert run.summary["diagnose/step_ms"] == pytest.approx(diagnosis.step_ns / 1e6)
        assert run.summary["diagnose/headline"] == diagnosis.headline
    finally:
        run.finish()
    folder = Path(run.dir)
    assert [path.suffix for path in folder.rglob("media/**/*") if path.is_file()] == [".html"]
