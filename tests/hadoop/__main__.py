"""A Hadoop on this machine, to try things on: `python -m tests.hadoop up`, and `down`, `status` or `env`."""

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
from tests.hadoop.distribution import locked


def default_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ringslice-hadoop-{os.getuid()}"


def up(folder: Path) -> int:
    """Start the cluster if it does not run, and print how to use it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise EnvironmentFailure(f"{folder} is another user's; give another --folder")
    with locked(folder / "start.lock"):
        if Cluster.is_up(folder):
            cluster = Cluster.attach(folder)
            missing = [daemon for daemon in DAEMONS if not cluster.lives(daemon)]
            for daemon in missing:
                cluster.restart(daemon)
            print(f"already up; started again: {', '.join(missing)}" if missing else "already up")
        else:
            cluster = Cluster.start(folder)
    print(f"HDFS             {cluster.uri}")
    print(f"ResourceManager  {cluster.resource_manager}")
    return show_environment(folder)


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


def show_environment(folder: Path) -> int:
    """Print the lines for a shell that is to use the cluster."""
    for name, value in Cluster.attach(folder).environment().items():
        print(f"export {name}={shlex.quote(value)}")
    print('export PATH="$HADOOP_HOME/bin:$PATH"')
    return 0


COMMANDS = {"up": up, "down": down, "status": status, "env": show_environment}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hadoop", description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "guard"], help="guard is for the tests")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="of its data and logs (%(default)s)")
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.command == "guard":
        state.guard(arguments.folder, arguments.data)
        return 0
    return COMMANDS[arguments.command](arguments.folder.absolute())


if __name__ == "__main__":
    sys.exit(run_reporting(main))
