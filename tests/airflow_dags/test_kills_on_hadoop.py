"""A task whose job runs on YARN, or its command, is killed: the application ends, or the next try joins it."""

from collections.abc import Iterator

import pytest

from etl.storage.place import Place
from tests.airflow_dags.conftest import Dataset
from tests.airflow_dags.real_airflow import Airflow
from tests.airflow_dags.real_scheduler import Scheduler, running_scheduler
from tests.airflow_dags.victims import QUICK, QUICK_DAGS, Kills, kill_each
from tests.hadoop.cluster import Cluster
from tests.hadoop.jobs import tasks
from tests.lib.run_folder import fail_in_one_line


@pytest.fixture(scope="module")
def scheduler(hadoop: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    more = QUICK | hadoop.environment()
    with fail_in_one_line(), running_scheduler(Airflow(folder / "home"), folder, QUICK_DAGS, more) as scheduler:
        scheduler.pause("image_dataset", False)
        yield scheduler


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
    signs = {task: lambda: tasks(hadoop_undisturbed, "--mapper") for task in ("normalize", "shard")}
    kill_each(scheduler, "image_dataset", run, kills, signs)
    assert undisturbed.is_equal(root)
    applications = [each for each in hadoop_undisturbed.yarn_applications() if str(root) in each["name"]]
    assert {each["finalStatus"] for each in applications} <= {"SUCCEEDED", "KILLED"}
