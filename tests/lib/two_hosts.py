"""Trains on two hosts of this machine: namespaces of our own, each with its name, address and sshd, beside a Hadoop.

    python -m tests.lib.two_hosts ROOT OUT      # the finished slices of ROOT; the run comes to OUT/runs/two-hosts

A third, ``head``, has the bridge between them, HDFS and horovodrun. Names, addresses, keys and mounts are of namespaces
that nobody else sees and that end with their first process, however that ends: nothing is left, and ~/.ssh is not read.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from etl.errors import EnvironmentFailure, run_reporting
from tests.hadoop.cluster import Cluster

REPOSITORY = Path(__file__).parents[2]
HEAD = "10.77.0.1"
HOSTS = {"host1": "10.77.0.11", "host2": "10.77.0.12"}
INTERFACE = "eth0"  # on head too: Horovod looks for the ranks' interface where it was started
PACKAGES = {
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
PRIVATE = Path("/run/two-hosts")  # on a tmpfs of our own
SSHD_FOLDER = Path("/run/sshd")  # sshd wants it
TRAINING = ("--run", "two-hosts", "--model", "mlp", "--epochs", "2", "--json")
READY_TIMEOUT_S = 20
SYSTEM_FOLDERS = "/usr/sbin:/sbin"  # not on every user's PATH

HOST_SCRIPT = """
hostname "$0" && echo ready && read -r go && ip link set lo up && ip address add "$1/24" dev eth0 \
&& ip link set eth0 up && exec "$2" -D -e -f "$3"
"""
SSHD_CONFIGURATION = """
ListenAddress {address}
HostKey {folder}/{name}-key
AuthorizedKeysFile {folder}/key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
PidFile none
"""
SSH_CONFIGURATION = """
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
"""


def network_namespaces() -> set[str]:
    """Those that any process is in."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            found.add(os.readlink(folder / "ns" / "net"))
    return found


def tool(name: str) -> str:
    """The path of a command; fails with the package that holds it."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")
    if path is None:
        raise EnvironmentFailure(f"{name} is missing; install it first: apt-get install {PACKAGES[name]}")
    return path


def enter(root: Path, out: Path) -> int:
    """Run `train_there` in namespaces of our own, which end with it, and with this process; returns its status."""
    if os.geteuid() != 0:
        raise EnvironmentFailure("two hosts need root, to make network namespaces; run it as root")
    for name in PACKAGES:
        tool(name)
    namespaces = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    words = [sys.executable, "-m", "tests.lib.two_hosts", str(root), str(out), "--inside"]
    end_with_us = [tool("setpriv"), "--pdeathsig", "KILL"]
    # a session of its own: Ctrl-C is for this process, which ends the first process of the namespaces, and so all
    with subprocess.Popen(
        [*end_with_us, tool("unshare"), *namespaces, *words], cwd=REPOSITORY, start_new_session=True
    ) as inside:
        try:
            return inside.wait()
        finally:
            inside.kill()


def train_there(root: Path, out: Path) -> int:
    """Set up head and hosts, train and evaluate on them, and fetch the run; returns 0."""
    set_up_head()
    authorize()
    cores = sorted(os.sched_getaffinity(0))
    for number, (name, address) in enumerate(HOSTS.items()):
        start_host(name, address, cores[number :: len(HOSTS)] or cores)
    with Cluster.start(out / "hadoop", address=HEAD) as hadoop:
        programs = f"{PRIVATE}:{Path(sys.executable).parent}:{hadoop.home / 'bin'}"
        os.environ.update(hadoop.environment(), PATH=f"{programs}:{os.environ['PATH']}:{SYSTEM_FOLDERS}")
        for name, address in HOSTS.items():
            wait_for_sshd(name, address)
        data = f"{hadoop.uri}/data/{root.name}"
        call("hdfs", "dfs", "-mkdir", "-p", data)
        call("hdfs", "dfs", "-put", str(root / "slices"), data)
        horovodrun = ("horovodrun", "--disable-cache", "-np", "2", "-H", ",".join(f"{name}:1" for name in HOSTS))
        call(*horovodrun, "train/main.py", "--data", data, *TRAINING)
        call(*horovodrun, "train/evaluate.py", "--data", data, "--run", "two-hosts", "--json")
        call("hdfs", "dfs", "-get", f"{data}/runs", str(out))
    return 0


def call(*words: str) -> None:
    """Run a command; fails where it does."""
    status = subprocess.run(words, cwd=REPOSITORY, stdin=subprocess.DEVNULL).returncode
    if status:
        raise EnvironmentFailure(f"status {status} from: {' '.join(words)}")


def set_up_head() -> None:
    """Private mounts, our name, and the bridge; this process is the first of its namespaces."""
    if os.getpid() != 1:
        raise EnvironmentFailure("--inside is for tests.lib.two_hosts itself; leave it out")
    call(tool("mount"), "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    PRIVATE.mkdir()
    SSHD_FOLDER.mkdir()
    names = {"127.0.0.1": "localhost", HEAD: "head"} | {address: name for name, address in HOSTS.items()}
    (PRIVATE / "hosts").write_text("".join(f"{address} {name}\n" for address, name in names.items()))
    call(tool("mount"), "--bind", str(PRIVATE / "hosts"), "/etc/hosts")
    socket.sethostname("head")
    ip("link", "set", "lo", "up")
    ip("link", "add", INTERFACE, "type", "bridge")
    ip("address", "add", f"{HEAD}/24", "dev", INTERFACE)
    ip("link", "set", INTERFACE, "up")


def ip(*words: str) -> None:
    call(tool("ip"), *words)


def authorize() -> None:
    """Keys for us and each host, and an ssh that reads our configuration in place of the user's and the system's."""
    for name in ("key", *(f"{host}-key" for host in HOSTS)):
        call(tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(PRIVATE / name))
    known = [f"{name},{address} {(PRIVATE / f'{name}-key.pub').read_text()}" for name, address in HOSTS.items()]
    (PRIVATE / "known_hosts").write_text("".join(known))
    (PRIVATE / "ssh_config").write_text(SSH_CONFIGURATION.format(folder=PRIVATE))
    wrapper = PRIVATE / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {tool("ssh")} -F {PRIVATE}/ssh_config "$@"\n')
    wrapper.chmod(0o755)


def start_host(name: str, address: str, cores: list[int]) -> None:
    """A host with its own name, network, sshd and cores; it ends with the process namespace."""
    configuration = PRIVATE / f"{name}.conf"
    configuration.write_text(SSHD_CONFIGURATION.format(address=address, folder=PRIVATE, name=name))
    words = ["sh", "-c", HOST_SCRIPT, name, address, tool("sshd"), str(configuration)]
    log = (PRIVATE / f"{name}.log").open("w")
    with log:
        host = subprocess.Popen(
            [tool("unshare"), "--net", "--uts", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert host.stdin is not None and host.stdout is not None
    os.sched_setaffinity(host.pid, cores)
    if host.stdout.readline() != "ready\n":
        raise EnvironmentFailure(f"{name} did not begin: {(PRIVATE / f'{name}.log').read_text()}")
    ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", INTERFACE, "netns", str(host.pid))
    ip("link", "set", f"to-{name}", "master", INTERFACE, "up")
    host.stdin.write("go\n")
    host.stdin.flush()


def wait_for_sshd(name: str, address: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return socket.create_connection((address, 22), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"no sshd on {name}: {(PRIVATE / f'{name}.log').read_text()}") from None
            time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lib.two_hosts", description=__doc__)
    parser.add_argument("root", type=Path, help="a dataset on this machine, with finished slices")
    parser.add_argument("out", type=Path, help="an empty folder")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    do = train_there if options.inside else enter
    return do(options.root.absolute(), options.out.absolute())


if __name__ == "__main__":
    sys.exit(run_reporting(main))
