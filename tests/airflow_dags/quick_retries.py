"""A file for Airflow's folder of DAGs: both DAGs, whose tasks are tried again after a second."""

import sys
from datetime import timedelta
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "airflow_dags"))

from image_dataset import dag as dataset  # type: ignore[import-not-found]
from image_model import dag as model  # type: ignore[import-not-found]

for task in (*dataset.tasks, *model.tasks):
    task.retry_delay = timedelta(seconds=1)
    task.retry_exponential_backoff = 0
