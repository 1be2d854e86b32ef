"""The site's files are read as Hadoop reads them: ``${…}``, XInclude, no growth without a bound; and its queues."""

import getpass
import os
from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure
from etl.hadoop import site_config
from etl.hadoop.yarn_api import ResourceManager

XI = "http://www.w3.org/2001/XInclude"


def properties(**values: str) -> str:
    return "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items())


def write(path: Path, *content: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'<?xml version="1.0"?><configuration xmlns:xi="{XI}">{"".join(content)}</configuration>')
    return path


PLAIN = {"host": "nn1", "port": "8021", "which": "port", "ring2": "${ring}"}
VARIABLES = {  # text and what it resolves to; no second text: to itself
    "address": ("hdfs://${host}:${${which}}/x", "hdfs://nn1:8021/x"),
    "set": ("${env.RINGSLICE_SET}/${env.RINGSLICE_UNSET-a-b}", "yes/a-b"),
    "empty": ("${env.RINGSLICE_EMPTY-one}|${env.RINGSLICE_EMPTY:-two}|${env.RINGSLICE_UNSET:-three}", "|two|three"),
    "user": ("/tmp/${user.name}", f"/tmp/{getpass.getuser()}"),
    "unknown": ("${no.such.thing}/${host}",),
    "unset": ("${env.RINGSLICE_UNSET}",),
    "loop": ("a${loop}",),
    "ring": ("${ring2}",),
    "spaced": ("${a b} ${host}", "${a b} nn1"),
    "dollar": ("$host {host} ${}",),
}
VALUES = PLAIN | {name: texts[0] for name, texts in VARIABLES.items()}
RESOLVED = {name: texts[-1] for name, texts in VARIABLES.items()}


def test_variables_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSLICE_SET", "yes")
    monkeypatch.setenv("RINGSLICE_EMPTY", "")
    monkeypatch.delenv("RINGSLICE_UNSET", raising=False)
    assert {name: site_config.substitute_variables(VALUES)[name] for name in RESOLVED} == RESOLVED


def test_variables_are_replaced_a_bounded_number_of_times() -> None:
    chain = {f"v{number}": f"${{v{number + 1}}}" for number in range(site_config.MAX_SUBSTITUTIONS + 5)}
    assert site_config.substitute_variables(chain)["v0"] == "${v1}"
    bomb = {f"b{number}": f"${{b{number + 1}}}${{c{number + 1}}}" for number in range(50)}
    assert len(max(site_config.substitute_variables(bomb).values(), key=len)) < 1000


def test_the_files_of_a_site_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share their variables; a property may be final, and have its value as an attribute."""
    final = "<property><name>nn.port</name><value>8020</value><final>true</final></property>"
    write(tmp_path / "core-site.xml", properties(**{"fs.defaultFS": "hdfs://${nn.host}:${nn.port}"}), final)
    write(tmp_path / "yarn-site.xml", '<property name="nn.host" value="nn7"/>', properties(**{"nn.port": "9000"}))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert site_config.site_configuration()["fs.defaultFS"] == "hdfs://nn7:8020"


@pytest.mark.integration
def test_a_hadoop_program_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLASSPATH", raising=False)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    monkeypatch.setattr(site_config, "java_home", lambda: tmp_path)
    monkeypatch.setattr(site_config, "COMMAND_TIMEOUT_S", 0.1)
    program = write(tmp_path / "bin/hadoop")
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(EnvironmentFailure, match=r"classpath --glob took more than 0\.1 s; export CLASSPATH, or take"):
        site_config.class_path()


def test_a_user_without_a_name_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a container; the libraries of HDFS take the variable, too."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", site_config.USER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(EnvironmentFailure, match="user 4000000000 has no name on this machine; give --hdfs-user"):
        site_config.hadoop_user()
    monkeypatch.setenv(site_config.USER_VARIABLE, "etl")
    assert site_config.hadoop_user() == "etl"


def test_a_umask_is_octal() -> None:
    octal = {"022": 0o022, "27": 0o027, "0077": 0o077, "0": 0}
    assert {text: site_config.site_umask({site_config.UMASK: text}) for text in octal} == octal
    assert site_config.site_umask({}) == 0o022
    for text in ("", "888", "u=rwx,g=rx,o="):
        with pytest.raises(EnvironmentFailure, match="is not an octal number; set it to one like 027"):
            site_config.site_umask({site_config.UMASK: text})


def values_of(site: Path) -> dict[str, str]:
    return {name: value for name, value, _ in site_config.read_site_file(site)}


def test_includes_are_read_where_they_stand(tmp_path: Path) -> None:
    write(tmp_path / "more" / "far.xml", properties(a="far", b="far"), '<xi:include href="near.xml"/>')
    write(tmp_path / "more" / "near.xml", properties(b="near"))
    site = write(
        tmp_path / "core-site.xml", properties(a="1"), '<xi:include href="more/far.xml"/>', properties(c="3", b="4")
    )
    assert values_of(site) == {"a": "far", "b": "4", "c": "3"}
    for href in (tmp_path / "more" / "near.xml", (tmp_path / "more" / "near.xml").as_uri()):
        assert values_of(write(tmp_path / "core-site.xml", f'<xi:include href="{href}"/>')) == {"b": "near"}


def test_a_fallback_takes_the_place_of_a_file_that_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "near.xml", properties(a="near"), '<xi:include href="absent.xml"><xi:fallback/></xi:include>')
    parts = (
        f'<xi:include href="{href}"><xi:fallback>{properties(**{name: "fallback"})}</xi:fallback></xi:include>'
        for href, name in (("near.xml", "a"), ("absent.xml", "b"), ((tmp_path / "absent.xml").as_uri(), "c"))
    )
    assert values_of(write(tmp_path / "core-site.xml", *parts)) == {"a": "near", "b": "fallback", "c": "fallback"}


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ('<xi:include href="missing.xml"/>', "core-site.xml has an xi:include .*missing.xml"),
        ('<xi:include href="core-site.xml"/>', "recursive include of"),
        ('<xi:include href="broken.xml"/>', "broken.xml is not XML"),
    ],
)
def test_an_include_that_cannot_be_read_is_named(content: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "broken.xml").write_text("<configuration>")
    with pytest.raises(EnvironmentFailure, match=cause):
        site_config.read_site_file(write(tmp_path / "core-site.xml", content))


CAPACITY = {
    "type": "capacityScheduler",
    "queueName": "root",
    "queues": {
        "queue": [{"queueName": "default"}, {"queueName": "images", "queues": {"queue": [{"queueName": "nightly"}]}}]
    },
}
FAIR = {"type": "fairScheduler", "rootQueue": {"queueName": "root"}}


def test_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of FairScheduler, which makes them on demand, are not known."""
    manager = ResourceManager(["http://nowhere"])
    for scheduler, there in ((CAPACITY, (None, "default", "nightly", "root.images.nightly")), (FAIR, (None, "other"))):
        monkeypatch.setattr(manager, "_get", lambda path, found=scheduler: {"scheduler": {"schedulerInfo": found}})
        for name in there:
            manager.queues(name)
    monkeypatch.setattr(manager, "_get", lambda path: {"scheduler": {"schedulerInfo": CAPACITY}})
    for name in ("images", "small"):
        with pytest.raises(EnvironmentFailure, match=f"--queue '{name}' does not exist at http://nowhere; its queues"):
            manager.queues(name)
