"""A Hadoop on this machine, to try things on: `python -m tests.hadoop up`, `status` and `down`."""

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from etl.entry_point import run_reporting
from etl.errors import EnvironmentFailure
from tests.hadoop import state
from tests.hadoop.cluster import DAEMONS, Cluster
from tests.hadoop.distribution import lock


def up(folder: Path) -> int:
    """Start the cluster if it does not run, and print how to use it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise EnvironmentFailure(f"{folder} is another user's; give another --folder")
    with lock(folder / "start.lock"):
        if Cluster.is_up(folder):
            cluster = Cluster.attach(folder)
            dead = cluster.restart_dead()
            print(f"already up; started again: {', '.join(dead)}" if dead else "already up")
        else:
            cluster = Cluster.start(folder)
    print(f"HDFS             {cluster.uri}")
    print(f"ResourceManager  {cluster.resource_manager}")
    for name, value in cluster.environment().items():
        print(f"export {name}={shlex.quote(value)}")
    print('export PATH="$HADOOP_HOME/bin:$PATH"')
    return 0


def down(folder: Path) -> int:
    """End the cluster; HDFS' data stays in its folder."""
    was_up = Cluster.is_up(folder)
    if state.read(folder):
        Cluster.attach(folder).stop()  # of one whose daemons died, the containers may still run
    print(f"stopped; its data stays in {folder}" if was_up else "not up")
    return 0


def status(folder: Path) -> int:
    """Tell how each daemon is; 3 where one does not serve."""
    cluster = Cluster.attach(folder)
    serving = [cluster.serves(daemon) for daemon in DAEMONS]
    for daemon, serves in zip(DAEMONS, serving, strict=True):
        condition = "up" if serves else "not serving" if cluster.lives(daemon) else "down"
        print(f"{daemon:15}  {condition:11}  pid {cluster.pid(daemon):7}  {cluster.web(daemon)}")
    return 0 if all(serving) else EnvironmentFailure.status


FOLDER = Path(tempfile.gettempdir()) / f"ringslice-hadoop-{os.getuid()}"
COMMANDS = {"up": up, "down": down, "status": status}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hadoop", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of its data and logs (%(default)s)")
    arguments = parser.parse_args()
    return COMMANDS[arguments.command](arguments.folder.absolute())


if __name__ == "__main__":
    sys.exit(run_reporting(main))
