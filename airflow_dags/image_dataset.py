"""The dataset's DAG: ingest, normalize, shard, verify, check quality, report, prune; its end is an event of an asset.

Each run renews one dataset: only new images are packed and decoded, slices named after the day keep every known image
in its split, and old runs and slices are removed. The event starts the DAG `image_model`.

Link this file, and image_model.py, into Airflow's folder of DAGs, on every machine that parses or runs them:

    ln -s /path/to/ringslice/airflow_dags/image_*.py "$AIRFLOW_HOME/dags/"

`RINGSLICE_SOURCE` and `RINGSLICE_DATA` name the places that a scheduled run works with; without a source there is no
schedule. For Hadoop the worker's environment contains `HADOOP_HOME`, `HADOOP_CONF_DIR` and `JAVA_HOME`.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

sys.path.append(str(Path(__file__).resolve().parent))

from ringslice_airflow import (
    DAG_OPTIONS,
    DATA,
    DATASET,
    FOLDER_NAME,
    HOME,
    DataError,
    RingsliceOperator,
    dated,
    flag,
    option,
    optional,
    text,
)

SOURCE = os.environ.get("RINGSLICE_SOURCE")
DATE_HELP = "{date} in it is replaced by the day of the DAG run."
QUALITY = {"section": "Quality: fail above these limits", "minimum": 0}
MORE = "More"

PARAMS = {
    "source": text(
        SOURCE or f"{HOME}/data/sources/digits",
        f"Folder with a folder for each class, IDX files, archives, Parquet files or a list. {DATE_HELP}",
        title="Source of the images",
    ),
    "root": text(
        f"{DATA}/nightly",
        f"Where the dataset and its runs go: a path, file:///… or hdfs://…. {DATE_HELP}",
        title="Root of the dataset",
    ),
    "size": optional(
        "string",
        "Height and width of the images in pixels: 224 or 224x320. Empty: the source's own, if it states one.",
        default="224",
        title="Size",
        pattern="^([1-9][0-9]*(x[1-9][0-9]*)?)?$",
    ),
    "name": text(
        "{date}",
        f"Known images keep the split that they have in the newest slices before. {DATE_HELP}",
        title="Name of the slices",
        pattern=FOLDER_NAME,
    ),
    "workers": Param(2, "The number of slices is a multiple of them.", title="Ranks", type="integer", minimum=1),
    "max_rejects": optional("number", "Share of images that cannot be used.", **QUALITY, default=0.05, maximum=1),
    "max_removed": optional("integer", "Images that the source lost or changed.", **QUALITY),
    "max_imbalance": optional("number", "Images of the largest class / the smallest.", **QUALITY),
    "max_duplicates": optional("integer", "Contents that are in several splits.", **QUALITY),
    "slices": optional("integer", "Of the training split. Empty: about 200 MB each.", section=MORE, minimum=1),
    "runner": text("local", "Where mrjob runs the jobs.", section=MORE, enum=["inline", "local", "hadoop"]),
    "keep": Param(7, "Newest slices to keep, besides those that a run names.", section=MORE, type="integer", minimum=1),
    "keep_runs": Param(
        7, "Newest runs of DAG runs to keep, besides champions.", section=MORE, type="integer", minimum=1
    ),
    "config": optional("string", "TOML file with more options, as for ringslice --config.", section=MORE),
    "overwrite": Param(
        False, "Replace what another source or configuration left at the root.", section=MORE, type="boolean"
    ),
}

ROOT, NAME = "{{ dated(params.root, dag_run) }}", "{{ dated(params.name, dag_run) }}"
NAMED = f"--name={NAME}"


def exceeded(summaries: Mapping[str, Mapping[str, Any]], limits: Mapping[str, Any]) -> list[str]:
    """Which ``limits`` the numbers of the stages exceed; None is no limit. Division by zero is infinite."""
    normalized, sharded = summaries["normalize"], summaries["shard"]
    largest, smallest = (max(sharded[each].values()) for each in ("largest_class", "smallest_class"))
    found = {
        "max_rejects": normalized["rejects"] / max(1, normalized["images"]),
        "max_removed": summaries["ingest"]["removed_or_changed"],
        "max_imbalance": largest / smallest if smallest else float("inf"),
        "max_duplicates": summaries["verify"]["duplicates"]["across_splits"],
    }
    return [
        f"{name}: {value:.4g} is above {limits[name]}"
        for name, value in found.items()
        if limits.get(name) is not None and value > limits[name]
    ]


with DAG(
    "image_dataset",
    description="Raw images to verified TFRecord slices, renewed each day",
    doc_md=__doc__,
    schedule="@daily" if SOURCE else None,
    params=PARAMS,
    user_defined_macros={"dated": dated},
    **DAG_OPTIONS,
) as dag:
    config, runner, overwrite = option("config"), option("runner"), flag("overwrite")
    ingest = RingsliceOperator(
        task_id="ingest",
        command="ingest",
        options=[config, overwrite],
        arguments=["{{ dated(params.source, dag_run) }}", ROOT],
        doc_md="Packs the source's images into tar files under `ROOT/raw`.",
    )
    normalize = RingsliceOperator(
        task_id="normalize",
        command="normalize",
        options=[config, overwrite, runner, option("size")],
        arguments=[ROOT],
        doc_md="Decodes and resizes the images, as an mrjob job. Unusable ones are kept apart, with a reason.",
    )
    shard = RingsliceOperator(
        task_id="shard",
        command="shard",
        options=[config, overwrite, runner, NAMED, "--splits-from=newest", option("workers"), option("slices")],
        arguments=[ROOT],
        doc_md="Writes the images as TFRecord slices, as an mrjob job; known images keep their split.",
    )
    verify = RingsliceOperator(
        task_id="verify",
        command="verify",
        options=[config, runner, NAMED],
        arguments=[ROOT],
        doc_md="Reads the slices from the first byte to the last, as an mrjob job, and checks all that is recorded.",
    )

    @task(retries=0, doc_md="Fails if the numbers of the stages exceed the limits among the params.")
    def check_quality(params: dict[str, Any], ti: Any) -> None:
        stages = ("ingest", "normalize", "shard", "verify")
        if found := exceeded(dict(zip(stages, ti.xcom_pull(task_ids=stages), strict=True)), params):
            raise DataError(f"the dataset is not good enough: {'; '.join(found)}")

    report = RingsliceOperator(
        task_id="report",
        command="report",
        options=[config, NAMED, f"--output={ROOT}/{NAME}-report.html"],
        arguments=[ROOT],
        doc_md="Writes `ROOT/NAME-report.html`: balance, sizes, rejects, examples, duplicates.",
    )
    prune = RingsliceOperator(
        task_id="prune",
        command="prune",
        options=[config, option("keep"), option("keep-runs")],
        arguments=[ROOT],
        doc_md="Removes old runs, slices that no run names, and the packs and parts that only they need.",
    )

    @task(outlets=[DATASET], doc_md="The event of the asset: root, name, SHA-256 of the manifest, and counts.")
    def publish(ti: Any, outlet_events: Any, root: str, name: str) -> None:
        sharded = ti.xcom_pull(task_ids="shard")
        outlet_events[DATASET].extra = {
            "root": root,
            "name": name,
            **{each: sharded[each] for each in ("manifest_sha256", "examples", "splits")},
        }

    ingest >> normalize >> shard >> verify >> check_quality() >> report >> prune >> publish(root=ROOT, name=NAME)
