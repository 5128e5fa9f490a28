"""Keeps experiment trackers and model hubs offline in a run, by the variables of their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["offline_settings"]

OFFLINE = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # a server that a script names is not tried for minutes
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
SILENT = frozenset({"debug", "disabled", "dryrun", "local", "offline", "read-only"})  # modes that send nothing
MLFLOW, LOCAL_STORES = "MLFLOW_TRACKING_URI", ("file:", "sqlite:", "/", ".")


def offline_settings(folder: Path) -> Mapping[str, str]:
    """Return the variables; what a tracker keeps outside the working folder goes into ``folder``, which exists."""
    found = {name: value for name, value in OFFLINE.items() if os.environ.get(name) not in SILENT}
    found["WANDB_DATA_DIR"] = str(folder)
    if os.environ.get(MLFLOW) and not os.environ[MLFLOW].startswith(LOCAL_STORES):
        found[MLFLOW] = f"sqlite:///{folder / 'mlflow.db'}"
    return found
