"""A task whose job runs on YARN, or its command, is killed: the application ends, or the next try joins it."""

from collections.abc import Iterator
from functools import partial

import pytest

from etl.storage.place import Place
from tests.airflow_dags.conftest import Dataset
from tests.airflow_dags.real_airflow import Airflow
from tests.airflow_dags.real_scheduler import Scheduler, running_scheduler
from tests.airflow_dags.victims import QUICK, QUICK_DAGS, Kills, kill_each
from tests.hadoop.cluster import Cluster
from tests.hadoop.processes import Process, find_all
from tests.lib.run_folder import fail_in_one_line


@pytest.fixture(scope="module")
def scheduler(hadoop: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    more = QUICK | hadoop.environment()
    with fail_in_one_line(), running_scheduler(Airflow(folder / "home"), folder, QUICK_DAGS, more) as scheduler:
        scheduler.pause("image_dataset", False)
        yield scheduler


FOLDERS = {"normalize": "normalized", "shard": "slices/default"}


def mappers(folder: Place) -> list[Process]:
    """Those of the job of the stage in this folder: the place of its job file is among their words."""
    work = f"{folder}/_work/".encode()
    return find_all(lambda words, _: b"--mapper" in words and any(work in word for word in words))


@pytest.mark.parametrize(
    "kills",
    [
        (("normalize", "command"), ("normalize", "runner"), ("shard", "supervisor")),
        (("normalize", "supervisor"), ("shard", "runner"), ("shard", "command")),
    ],
    ids=lambda kills: ", ".join(map(" ".join, kills)),
)
def test_kills_in_the_dataset(
    kills: Kills, scheduler: Scheduler, undisturbed: Dataset, hdfs: Place, hadoop_undisturbed: Cluster
) -> None:
    root = hdfs / "root"
    run = hdfs.name
    scheduler.trigger("image_dataset", undisturbed.params(root) | {"runner": "hadoop"}, run)
    signs = {task: partial(mappers, root / folder) for task, folder in FOLDERS.items()}
    kill_each(scheduler, "image_dataset", run, kills, signs)
    assert undisturbed.is_equal(root)
    applications = [each for each in hadoop_undisturbed.yarn_applications() if str(root) in each["name"]]
    assert {each["finalStatus"] for each in applications} <= {"SUCCEEDED", "KILLED"}
