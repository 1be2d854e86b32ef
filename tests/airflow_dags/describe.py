"""Run by Airflow's Python: parses the DAG files with Airflow's own DagBag, and prints what it found as JSON."""

import json
import sys
from types import SimpleNamespace

from airflow.dag_processing.dagbag import DagBag  # type: ignore[import-not-found]

bag = DagBag(sys.argv[1])
found = {"import_errors": bag.import_errors, "dags": {}}
for dag in bag.dags.values():
    dag.validate()
    found["dags"][dag.dag_id] = {
        "tasks": {task.task_id: sorted(task.downstream_task_ids) for task in dag.topological_sort()},
        "documented": all(task.doc_md for task in dag.tasks) and bool(dag.doc_md),
        "settings": [dag.catchup, dag.is_paused_upon_creation, dag.max_active_runs],
        "retries": sorted({task.retries for task in dag.tasks}),
        "schedule": type(dag.timetable).__name__,
        "params": {
            name: [param.description, param.schema]
            for name, param in ((n, dag.params.get_param(n)) for n in dag.params)
        },
    }
run_name = sys.modules["ringslice_airflow"].run_name
found["run_names"] = [run_name(SimpleNamespace(run_id=each)) for each in ("a:b", "a+b", "a-b", "a-b-1", "\xe9" * 250)]
print(json.dumps(found))
