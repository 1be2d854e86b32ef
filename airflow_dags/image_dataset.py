"""The dataset's DAG: ingest, normalize, shard, verify, check quality, report, prune; its end is an event of an asset.

Each run renews one dataset: only new images are packed and decoded, slices named after the day keep every known image
in its split, and old runs and slices are removed. The event starts the DAG `image_model`.
Installation, schedule, params and failures: docs/airflow.md of ringslice.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

sys.path.append(str(Path(__file__).resolve().parent))

import ringslice_airflow as ringslice
from ringslice_airflow import RingsliceOperator, number, option, text

SOURCE = os.environ.get("RINGSLICE_SOURCE") or f"{ringslice.HOME}/data/sources/digits"
DATE = "{date} and {time} in it are replaced by those of the DAG run."
SIZE = f"^([1-9][0-9]*(x[1-9][0-9]*)?)?{ringslice.END}"
QUALITY, MORE = {"section": "Quality: fail above these limits"}, {"section": "More"}

PARAMS = {
    "source": text(SOURCE, f"Images: a folder for each class, IDX files, archives, Parquet files, a list. {DATE}"),
    "root": text(f"{ringslice.DATA}/nightly", f"Where the dataset and its runs go: a path or hdfs://HOST/PATH. {DATE}"),
    "size": text("224", "Pixels: 224, or height x width. Empty: 224, or IDX's own.", SIZE, type=["null", "string"]),
    "name": text("{date}-{time}", f"Name of the slices. Known images keep their split. {DATE}", ringslice.FOLDER_NAME),
    "workers": number(2, "Ranks that will train. The number of slices is a multiple of them.", minimum=1),
    "max_rejects": number(0.05, "Share of images that cannot be used.", ["null", "number"], maximum=1, **QUALITY),
    "max_removed_images": number(None, "Images that the source lost or changed.", **QUALITY),
    "max_imbalance": number(None, "Images of the largest class / the smallest.", "number", **QUALITY),
    "max_duplicates": number(None, "Contents that are in several splits.", **QUALITY),
    "slices": number(None, "Slices of the training split. Empty: about 200 MB each.", minimum=1, **MORE),
    "runner": text("local", "Where mrjob runs the jobs.", enum=["inline", "local", "hadoop"], **MORE),
    "keep": number(7, "Number of newest slices to keep, besides those that a run names.", minimum=1, **MORE),
    "keep_runs": number(7, "Number of newest runs of DAG runs to keep; champions among them count.", minimum=1, **MORE),
    "config": text(None, "Path of a TOML file with more options, as for ringslice --config.", **MORE),
    "overwrite": Param(False, "Replace what another source or configuration left.", type="boolean", **MORE),
}
FROM, ROOT, NAME = (f"{{{{ dated(params.{each}, dag_run, dag.timezone) }}}}" for each in ("source", "root", "name"))
OVERWRITE = "{{ '--overwrite' if params.overwrite else '' }}"
RUNNER, NAMED, OUTPUT = option("runner"), f"--name={NAME}", f"--output={ROOT}/{NAME}-report.html"
DECODING = (OVERWRITE, RUNNER, option("size"), option("max-rejects", empty="--max-rejects=1"))


def exceeded(summaries: Mapping[str, Mapping[str, Any]], limits: Mapping[str, Any]) -> list[str]:
    """Which ``limits`` the numbers of the stages exceed; None is no limit. Division by zero is infinite."""
    normalized, sharded = summaries["normalize"], summaries["shard"]
    largest, smallest = (max(sharded[each].values()) for each in ("largest_class", "smallest_class"))
    found = {
        "max_rejects": normalized["rejects"] / max(1, normalized["images"]),
        "max_removed_images": summaries["ingest"]["removed_or_changed"],
        "max_imbalance": largest / smallest if smallest else float("inf"),
        "max_duplicates": summaries["verify"]["duplicates"]["across_splits"],
    }
    above = {name: value for name, value in found.items() if limits[name] is not None and value > limits[name]}
    return [f"{name}: {value:.4g} is above {limits[name]}" for name, value in above.items()]


def stage(name: str, doc: str, *options: str, arguments: Sequence[str] = (ROOT,)) -> RingsliceOperator:
    """The task that runs the command of this name."""
    return RingsliceOperator(task_id=name, doc_md=doc, options=[option("config"), *options], arguments=arguments)


with DAG(
    "image_dataset",
    description="Raw images to verified TFRecord slices, renewed each day",
    doc_md=__doc__,
    schedule="@daily" if os.environ.get("RINGSLICE_SOURCE") else None,
    params=PARAMS,
    user_defined_macros={"dated": ringslice.dated},
    **ringslice.DAG_OPTIONS,
) as dag:
    ingest = stage("ingest", "Packs the images into tar files under `ROOT/raw`.", OVERWRITE, arguments=[FROM, ROOT])
    normalize = stage("normalize", "Decodes and resizes the images. Unusable ones are kept apart.", *DECODING)
    shard = stage(
        "shard",
        "Writes the images as TFRecord slices, as an mrjob job; known images keep their split.",
        *(OVERWRITE, RUNNER, NAMED, "--splits-from=newest", option("workers"), option("slices")),
    )
    verify = stage("verify", "Reads every byte of the slices, as an mrjob job, and checks them.", RUNNER, NAMED)

    @task(doc_md="Fails if the numbers of the stages exceed the limits among the params.")
    def check_quality(params: dict[str, Any], ti: Any) -> None:
        summaries = {name: ti.xcom_pull(task_ids=name) for name in ("ingest", "normalize", "shard", "verify")}
        if missing := [name for name, summary in summaries.items() if not summary]:
            raise ringslice.DataError(f"no summary of {', '.join(missing)} (marked as success?). Clear it")
        if found := exceeded(summaries, params):
            raise ringslice.DataError(f"the dataset is not good enough: {'; '.join(found)}")

    report = stage("report", "Writes `ROOT/NAME-report.html`: balance, rejects, duplicates, examples.", NAMED, OUTPUT)
    prune = stage("prune", "Removes old runs, and slices that no run names.", option("keep"), option("keep-runs"))

    @task(outlets=[ringslice.DATASET], doc_md="The event of the asset: root, name, SHA-256 of the manifest, counts.")
    def publish(ti: Any, outlet_events: Any, root: str, name: str) -> None:
        counts = {each: ti.xcom_pull(task_ids="shard")[each] for each in ("manifest_sha256", "examples", "splits")}
        outlet_events[ringslice.DATASET].extra = {"root": root, "name": name, **counts}

    ingest >> normalize >> shard >> verify >> check_quality() >> report >> prune >> publish(root=ROOT, name=NAME)
