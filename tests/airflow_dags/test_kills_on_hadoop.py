"""A task whose job runs on YARN, or that trains on HDFS, is killed: nothing is left of it, or the next try joins it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from etl.storage.place import Place, open_place
from tests.airflow_dags.real_scheduler import Scheduler, run_scheduler
from tests.airflow_dags.victims import EPOCHS, Kills, kill_each, kill_in_training
from tests.hadoop.cluster import Cluster
from tests.hadoop.processes import Process, find_all
from tests.lib.commands import succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.on_hadoop import dfs, digests
from tests.lib.ranks.outcomes import require_each_key_once
from tests.lib.set_up import fail_in_one_line

pytestmark = pytest.mark.chaos


@dataclass(frozen=True)
class Dataset:
    """What the DAG `image_dataset` is given, and the root that the same commands made without Airflow."""

    source: Path
    config: Path
    root: Path

    def params(self, root: object) -> dict[str, str]:
        words = {"source": self.source, "config": self.config, "root": root, "size": 28, "name": "default"}
        return {name: str(value) for name, value in words.items()}

    def is_equal(self, root: Place) -> bool:
        """True if the slices of ``root`` have the same bytes."""
        return bool(expected := slices_of(open_place(str(self.root)))) and slices_of(root) == expected


def slices_of(root: Place) -> dict[str, str]:
    return {name: digest for name, digest in digests(root / "slices/default").items() if name.endswith(".tfrecord")}


@pytest.fixture(scope="module")
def undisturbed(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "options.toml").write_text('[ingest]\npack-size = "32KB"\n[shard]\nslices = 64\n')
    made = Dataset(digits, folder / "options.toml", folder / "root")
    words = ("-r", "inline", "--size", 28, "--config", made.config)
    succeeded(ringslice_here("pipeline", digits, made.root, *words))
    return made


@pytest.fixture(scope="module")
def scheduler(hadoop: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    with fail_in_one_line(), run_scheduler(folder, hadoop.environment()) as scheduler:
        scheduler.pause("image_dataset", False)
        yield scheduler


FOLDERS = {"normalize": "normalized", "shard": "slices/default"}


def mappers(folder: Place) -> list[Process]:
    """Those of the job of the stage in this folder: the place of its job file is among their words."""
    work = f"{folder}/_work/".encode()
    return find_all(lambda words, _: b"--mapper" in words and any(work in word for word in words))


def applications(cluster: Cluster, folder: Place) -> dict[bytes, str]:
    """The final status of each YARN application of the stage in this folder."""
    found = [each for each in cluster.yarn_applications() if each["name"].endswith(str(folder))]
    return {each["id"].encode(): each["finalStatus"] for each in found}


def left_on(cluster: Cluster, folder: Place) -> list[Process] | bool:
    """Truthy if an application of the stage has not ended, or has processes."""
    found = applications(cluster, folder)
    return "UNDEFINED" in found.values() or find_all(lambda words, _: any(a in word for a in found for word in words))


@pytest.mark.parametrize(
    "kills",
    [
        (("normalize", "runner"), ("normalize", "command"), ("shard", "supervisor")),
        (("normalize", "supervisor"), ("shard", "runner"), ("shard", "command")),
    ],
    ids=lambda kills: ", ".join(map(" ".join, kills)),
)
def test_kills_in_the_dataset(
    kills: Kills, scheduler: Scheduler, undisturbed: Dataset, *, hdfs: Place, hadoop: Cluster, run: str
) -> None:
    root = hdfs / "root"
    scheduler.trigger("image_dataset", undisturbed.params(root) | {"runner": "hadoop"}, run)
    places = {task: root / folder for task, folder in FOLDERS.items()}
    at_work = {task: partial(mappers, place) for task, place in places.items()}
    left = {task: partial(left_on, hadoop, place) for task, place in places.items()}
    kill_each(scheduler, "image_dataset", run, kills, is_at_work=at_work, is_left=left)
    assert undisturbed.is_equal(root)
    for place in places.values():
        assert set(applications(hadoop, place).values()) <= {"SUCCEEDED", "KILLED"}


def test_kills_in_training(
    scheduler: Scheduler, undisturbed: Dataset, *, hdfs: Place, hadoop: Cluster, run: str, tmp_path: Path
) -> None:
    dfs(hadoop, "-put", undisturbed.root, hdfs)
    names = kill_in_training(scheduler, hdfs / undisturbed.root.name, run)
    dfs(hadoop, "-get", hdfs / undisturbed.root.name / "runs", tmp_path)
    for name in names:
        require_each_key_once(tmp_path / f"runs/{name}", undisturbed.root / "slices/default", EPOCHS)
