"""The model's DAG: train one candidate or several on slices of `image_dataset`, and evaluate each.

It runs on each event of the asset `image_dataset`, with the root and the slices of the event, or by hand, with those of
the params. The run of a candidate is named after the DAG run, so a task that is tried again resumes it.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

sys.path.append(str(Path(__file__).resolve().parent))

from ringslice_airflow import (
    DATA,
    DEFAULT_ARGS,
    FOLDER_NAME,
    PRINTABLE,
    RingsliceOperator,
    optional,
    require_declared,
    run_name,
    text,
)

DATASET = Asset("image_dataset")
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
    "min_accuracy": optional(
        "number", "On the test split. Empty: any.", title="Minimum accuracy", minimum=0, maximum=1
    ),
}


def commands_of(params: Mapping[str, Any], extra: Mapping[str, Any], name: str) -> list[dict[str, list[str]]]:
    """The options of the commands of each candidate, by command; ``extra`` is of the event, ``name`` of the run."""
    candidates: Sequence[Mapping[str, Any]] = params["candidates"]
    chosen = {each: extra.get(each) or params[each] for each in ("root", "name")}
    shared = [f"--data={chosen['root']}", f"--ranks={params['ranks']}"]
    shared += [f"--name={chosen['name']}"] if chosen["name"] else []
    least = [] if params["min_accuracy"] is None else [f"--min-accuracy={params['min_accuracy']}"]
    base = params["run"] or name
    names = [base] if len(candidates) == 1 else [f"{base}-{number}" for number in range(1, len(candidates) + 1)]
    return [
        {
            "train": ["--resume", *shared, f"--run={run}", *(f"--{each}={value}" for each, value in candidate.items())],
            "evaluate": [*shared, f"--run={run}", *least],
        }
        for run, candidate in zip(names, candidates, strict=True)
    ]


with DAG(
    "image_model",
    description="Slices to trained and evaluated models",
    doc_md=__doc__,
    schedule=[DATASET],
    start_date=datetime(2025, 1, 1),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    params=PARAMS,
    default_args=DEFAULT_ARGS,
    tags=["ringslice"],
) as dag:

    @task(retries=0, doc_md="The commands of each candidate: on the newest event's slices, or those of the params.")
    def plan(**context: Any) -> list[dict[str, list[str]]]:
        require_declared(context)
        events = sorted(context["triggering_asset_events"].get(DATASET, ()), key=lambda event: event.timestamp)
        return commands_of(context["params"], events[-1].extra if events else {}, run_name(context["dag_run"]))

    commands = plan()
    mapped = {"max_active_tis_per_dagrun": 1, "map_index_template": "{{ task.options | join(' ') }}"}
    train = RingsliceOperator.partial(
        task_id="train",
        command="train",
        doc_md="Trains one candidate; tried again, it resumes from the last checkpoint.",
        **mapped,
    ).expand(options=commands.map(lambda each: each["train"]))
    evaluate = RingsliceOperator.partial(
        task_id="evaluate",
        command="evaluate",
        doc_md="Evaluates every image of the test split once, and fails below `min_accuracy`.",
        **mapped,
    ).expand(options=commands.map(lambda each: each["evaluate"]))
    train >> evaluate
