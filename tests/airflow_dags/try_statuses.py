"""Run by Airflow's Python: executes a stage's task and a trainer's with commands of these exit statuses.

python try_statuses.py DAG_FILE STATUS... prints, by task and status, the name of what was raised, as JSON.
"""

import json
import os
import sys

from airflow.dag_processing.dagbag import DagBag  # type: ignore[import-not-found]

dag = DagBag(sys.argv[1]).dags["image_training"]
raised = {}
for name in ("ingest", "train"):
    for status in sys.argv[2:]:
        task = dag.get_task(name)
        task.env = dict.fromkeys(task.env, "") | {"FAKE_STATUS": status}
        try:
            task.execute({})
            raised[f"{name} {status}"] = ""
        except Exception as error:
            raised[f"{name} {status}"] = type(error).__name__
print(json.dumps(raised))
sys.stdout.flush()
os._exit(0)
