"""Sites that are set up otherwise: FairScheduler, and a default filesystem that is not the root's HDFS."""

import re
import shutil
from pathlib import Path

import pytest

from etl.storage.place import open_place
from tests.conftest import TreeMaker
from tests.hadoop.cluster import Cluster
from tests.lib.commands import run, succeeded

JOB_TIMEOUT_S = 400
FAIR = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fair.FairScheduler"
ALLOCATIONS = """<?xml version="1.0"?>
<allocations><queue name="images"><queue name="small"/><queue name="large"/></queue><queue name="other"/></allocations>
"""


def put(path: Path, name: str, value: object) -> None:
    """Set a property of a site file, in place of the one that is there."""
    text = re.sub(rf"<property><name>{re.escape(name)}</name>.*</property>\n", "", path.read_text())
    added = f"<property><name>{name}</name><value>{value}</value></property>\n</configuration>"
    path.write_text(text.replace("</configuration>", added))


@pytest.mark.chaos
def test_fair_scheduler_and_another_default_filesystem(make_tree: TreeMaker, tmp_path: Path) -> None:
    """A queue is that of the scheduler; all of a job's files are on the root's HDFS."""
    source = make_tree({"a": 3, "b": 3})
    with Cluster.start(tmp_path / "own", die_with_parent=True) as own:
        put(own.conf_dir / "yarn-site.xml", "yarn.resourcemanager.scheduler.class", FAIR)
        (own.conf_dir / "fair-scheduler.xml").write_text(ALLOCATIONS)
        own.restart("resourcemanager")
        own.restart("nodemanager")
        client = tmp_path / "client"
        shutil.copytree(own.conf_dir, client)
        put(client / "core-site.xml", "fs.defaultFS", (tmp_path / "default").as_uri())
        variables = own.environment() | {"HADOOP_CONF_DIR": str(client)}
        root = f"{own.uri}/tmp/images"

        doctor = run("ringslice", "doctor", "--only", "yarn", "--queue", "images.small", "--json", variables=variables)
        assert '"queues", "state": "ok"' in succeeded(doctor).stdout
        succeeded(run("ringslice", "ingest", source, root, variables=variables))
        start = ("ringslice", "normalize", root, "--size", "8", "-r", "hadoop", "--queue")
        succeeded(run(*start, "images.small", timeout_s=JOB_TIMEOUT_S, variables=variables))
        (application,) = own.yarn_applications()
        assert (application["queue"], application["finalStatus"]) == ("root.images.small", "SUCCEEDED")
        packed = open_place(f"{own.uri}/user/{own.user}/.ringslice/python")
        assert [info.base_name for info in packed.children()] != []
        job = open_place(f"{root}/normalized/run.json").read_json()
        assert job["applications"] == [application["id"]]
