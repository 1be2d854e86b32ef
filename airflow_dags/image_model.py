"""The model's DAG: train one candidate or several, promote the best if it beats the champion, export the champion.

It runs on each event of the asset `image_dataset`, with the root and the slices of the event, or by hand, with those of
the params. The run of a candidate is named after the DAG run, so a task that is tried again resumes it.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

sys.path.append(str(Path(__file__).resolve().parent))

from ringslice_airflow import (
    DAG_OPTIONS,
    DATA,
    DATASET,
    FOLDER_NAME,
    PRINTABLE,
    RingsliceOperator,
    option,
    optional,
    require_declared,
    run_name,
    text,
)

OWN_OPTIONS = "data|name|run|resume|json"

PARAMS = {
    "root": text(
        f"{DATA}/nightly",
        "A run that an event started takes the event's.",
        title="Root of the dataset",
    ),
    "name": optional(
        "string",
        "Empty: the newest finished ones. A run that an event started takes the event's.",
        title="Name of the slices",
        pattern=FOLDER_NAME,
    ),
    "run": optional(
        "string",
        "One that is there is resumed. Empty: after the DAG run's id.",
        title="Name of the training run",
        pattern=FOLDER_NAME,
    ),
    "ranks": Param(2, "Ranks, workers or replicas of each candidate.", title="Ranks", type="integer", minimum=1),
    "candidates": Param(
        [{"model": "cnn", "epochs": 10}],
        "Each trains with its own options of ringslice train, such as model, recipe, strategy, epochs and batch.",
        title="Candidates",
        type="array",
        minItems=1,
        items={
            "type": "object",
            "propertyNames": {"pattern": f"^(?!({OWN_OPTIONS})$)[a-z][a-z-]*$"},
            "additionalProperties": {"type": ["string", "number"], "pattern": PRINTABLE},
        },
    ),
    "min_accuracy": Param(
        0, "Fail if the best candidate has less on the test split.", title="Minimum accuracy", type="number"
    ),
    "max_class_drop": Param(
        0.1, "No class may lose more of its accuracy.", title="Maximum loss of a class", type="number"
    ),
}


def plan_runs(params: Mapping[str, Any], extra: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """For each candidate its run, and words of its commands; ``extra`` is of the event, ``name`` of the DAG run."""
    candidates: Sequence[Mapping[str, Any]] = params["candidates"]
    chosen = {each: extra.get(each) or params[each] for each in ("root", "name")}
    data, named = f"--data={chosen['root']}", f"--name={chosen['name']}" if chosen["name"] else ""
    base = params["run"] or name
    runs = [base] if len(candidates) == 1 else [f"{base}-{number}" for number in range(1, len(candidates) + 1)]
    return [
        {
            "run": run,
            "data": data,
            "name": named,
            "train": [f"--ranks={params['ranks']}", data, named, f"--run={run}", "--resume"]
            + [f"--{each}={value}" for each, value in candidate.items()],
        }
        for run, candidate in zip(runs, candidates, strict=True)
    ]


PLANNED = [f"{{{{ ti.xcom_pull(task_ids='plan')[0]['{each}'] }}}}" for each in ("data", "name")]

with DAG(
    "image_model",
    description="Slices to trained models; the best one is exported",
    doc_md=__doc__,
    schedule=[DATASET],
    params=PARAMS,
    **DAG_OPTIONS,
) as dag:

    @task(retries=0, doc_md="Names the runs, on the newest event's slices or those of the params.")
    def plan(**context: Any) -> list[dict[str, Any]]:
        require_declared(context)
        events = sorted(context["triggering_asset_events"].get(DATASET, ()), key=lambda event: event.timestamp)
        return plan_runs(context["params"], events[-1].extra if events else {}, run_name(context["dag_run"]))

    planned = plan()
    train = RingsliceOperator.partial(
        task_id="train",
        command="train",
        max_active_tis_per_dagrun=1,
        map_index_template="{{ task.options | join(' ') }}",
        doc_md="Trains one candidate; tried again, it resumes from the last checkpoint.",
    ).expand(options=planned.map(lambda each: each["train"]))
    promote = RingsliceOperator(
        task_id="promote",
        command="promote",
        options=[option("ranks"), *PLANNED, option("min-accuracy"), option("max-class-drop")],
        arguments=planned.map(lambda each: each["run"]),
        doc_md="Makes the best candidate the champion if it is better on the same test images, by a paired test.",
    )
    export = RingsliceOperator(
        task_id="export",
        command="export",
        options=[*PLANNED, "--run=champion"],
        doc_md="Writes the champion as a SavedModel, which `train/predict.py champion` uses.",
    )
    train >> promote >> export
