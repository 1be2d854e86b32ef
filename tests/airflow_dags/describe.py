"""Run by Airflow's Python: parses the DAG file with Airflow's own DagBag, and prints what it found as JSON."""

import json
import sys

from airflow.dag_processing.dagbag import DagBag  # type: ignore[import-not-found]

bag = DagBag(sys.argv[1])
dag = bag.dags.get("image_training")
found = {"import_errors": bag.import_errors}
if dag:
    dag.validate()
    found |= {
        "tasks": {task.task_id: sorted(task.downstream_task_ids) for task in dag.topological_sort()},
        "retries": sorted({task.retries for task in dag.tasks}),
        "documented": all(task.doc_md for task in dag.tasks) and bool(dag.doc_md),
        "catchup": dag.catchup,
        "paused": dag.is_paused_upon_creation,
        "max_active_runs": dag.max_active_runs,
        "params": {
            name: [param.description, param.schema]
            for name, param in ((n, dag.params.get_param(n)) for n in dag.params)
        },
    }
print(json.dumps(found))
