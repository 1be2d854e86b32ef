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

import ringslice_airflow as ringslice
from ringslice_airflow import RingsliceOperator, number, option, text

OPTION = {"pattern": f"^(?!(data|name|run|resume|json|help)$)[a-z][a-z-]{{0,49}}{ringslice.END}"}
VALUE = {"type": ["string", "number", "boolean"], "pattern": ringslice.LINE, "maxLength": ringslice.MAX_TEXT}
CANDIDATE = {"type": "object", "propertyNames": OPTION, "additionalProperties": VALUE, "maxProperties": 50}

PROMOTION, MORE = {"section": "Promotion", "maximum": 1}, {"section": "More"}
PARAMS = {
    "root": text(f"{ringslice.DATA}/nightly", "Where the dataset is. A run that an event started takes the event's."),
    "candidates": Param(
        [{"model": "cnn", "epochs": 10}],
        "Each has its own options of ringslice train: model, recipe, epochs, batch, others. A flag is true or false.",
        **{"type": "array", "minItems": 1, "maxItems": 100, "items": CANDIDATE},
    ),
    "ranks": number(2, "Ranks, workers or replicas of each candidate.", minimum=1),
    "min_accuracy": number(0, "Fail if the best candidate has less on the test split.", "number", **PROMOTION),
    "max_class_drop": number(0.1, "Keep the champion if a class loses more of its accuracy.", "number", **PROMOTION),
    "name": text(None, "Name of the slices, as root. Empty: the newest finished ones.", ringslice.FOLDER_NAME, **MORE),
    "run": text(None, "Name of the run, resumed if it exists. Empty: airflow-ID-CRC.", ringslice.FOLDER_NAME, **MORE),
}


def word(name: str, value: str | float) -> str:
    """The word of an option of a command; true and false are the values of a flag."""
    flag = f"--{name}" if value else f"--no-{name}"
    return flag if isinstance(value, bool) else f"--{name}={value}"


def plan_runs(params: Mapping[str, Any], extra: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """For each candidate the words of its commands; ``extra`` is of the event, ``name`` of the DAG run."""
    candidates: Sequence[Mapping[str, Any]] = params["candidates"]
    root, slices = (extra.get(each) or params[each] for each in ("root", "name"))
    shared = {"data": f"--data={root}", "name": f"--name={slices}" if slices else ""}
    run = params["run"] or name
    runs = [run] if len(candidates) == 1 else [f"{run}-{number}" for number in range(1, len(candidates) + 1)]
    words = [f"--ranks={int(params['ranks'])}", *shared.values()]
    return [
        {**shared, "train": [*words, f"--run={run}", "--resume", *(word(*each) for each in own.items())]}
        for run, own in zip(runs, candidates, strict=True)
    ]


PLANNED = [f"{{{{ ti.xcom_pull(task_ids='plan')[0]['{each}'] }}}}" for each in ("data", "name")]

with DAG(
    "image_model",
    description="Slices to trained models; the best one is exported",
    doc_md=__doc__,
    schedule=[ringslice.DATASET],
    params=PARAMS,
    **ringslice.DAG_OPTIONS,
) as dag:

    @task(doc_md="Names the runs, on the newest event's slices or those of the params.")
    def plan(**context: Any) -> list[dict[str, Any]]:
        ringslice.require_declared(context)
        found = context["triggering_asset_events"].get(ringslice.DATASET, ())
        events = sorted(found, key=lambda event: event.timestamp)
        return plan_runs(context["params"], events[-1].extra if events else {}, ringslice.run_name(context["dag_run"]))

    train = RingsliceOperator.partial(
        task_id="train",
        max_active_tis_per_dagrun=1,
        map_index_template="{{ (task.options[3:] | join(' '))[:250] }}",  # Airflow's database takes no more
        doc_md="Trains one candidate; tried again, it resumes from the last checkpoint.",
    ).expand(options=plan().map(lambda each: each["train"]))
    promote = RingsliceOperator(
        task_id="promote",
        options=[option("ranks"), *PLANNED, option("min-accuracy"), option("max-class-drop")],
        arguments=train.output.map(lambda each: each["place"].rpartition("/")[2]),  # none of those that failed
        trigger_rule="all_done_min_one_success",
        doc_md="Makes the best candidate the champion if it is better on the same test images, by a paired test.",
    )
    export = RingsliceOperator(
        task_id="export",
        options=[PLANNED[0], "--run=champion"],  # the slices of a champion that was kept are older
        doc_md="Writes the champion as a SavedModel, which `train/predict.py champion` uses.",
    )
    train >> promote >> export
