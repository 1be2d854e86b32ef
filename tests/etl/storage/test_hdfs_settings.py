"""Addresses of places: a local one, and an HDFS by the site's default, with or without the default port."""

import os
from pathlib import Path
from unittest import mock

import pytest

from etl.errors import EnvironmentFailure, UsageError
from etl.hadoop.yarn_api import ResourceManager
from etl.stages.layout import normalized_stage
from etl.storage.hdfs_settings import DRIVER_VARIABLE, authority_of
from etl.storage.libhdfs import start_environment
from etl.storage.place import open_place
from mapreduce.jobs.yarn import YarnJob
from tests.hadoop.configuration import write_site

SITE = {
    "fs.defaultFS": "hdfs://${nn}/",
    "nn": "NN1.example",
    "dfs.nameservices": "pair, single",
    "dfs.ha.namenodes.pair": "a,b",
    "dfs.namenode.rpc-address.pair.a": "nn1.example:8020",
    "dfs.namenode.rpc-address.single": "nn3.example:9000",
}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    write_site(tmp_path / "core-site.xml", SITE)
    return tmp_path / "core-site.xml"


def test_an_address_has_one_spelling() -> None:
    spellings = {"": "nn1.example:8020", "NN1.Example": "nn1.example:8020", "nn1.example:09000": "nn1.example:9000"}
    spellings |= {"[::1]": "[::1]:8020", "[::1]:9000": "[::1]:9000", "pair": "pair", "single": "nn3.example:9000"}
    assert {given: authority_of(given) for given in spellings} == spellings


def test_a_path_and_a_uri_name_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, spellings in {
        "hdfs://nn1.example:8020/x/y": (
            *("hdfs:///x/y", "hdfs://nn1.example/x/y/", "HDFS://NN1.example:8020//x/./y", "hdfs:///z/../x/y"),
        ),
        "/x/y": ("/x/y", "/x/y/", "//x/y", "file:///x/y", "FILE://localhost/x/./y", "/x/z/../y"),
    }.items():
        places = [open_place(spelling) for spelling in spellings]
        assert {place.uri for place in places} == {uri}
        assert len(set(places)) == 1
        assert open_place("hdfs://pair/x/y") not in places
    (tmp_path / "a b").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (f"{tmp_path}/a b", f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b", "~/a b"):
        assert open_place(text).read_bytes() == b"x"
    assert open_place("data").path == str(Path.cwd() / "data")


def test_the_jobs_of_a_root_have_one_tag() -> None:
    """By which a second start finds a job that runs, and joins or ends it."""
    for spellings in (("hdfs:///x", "hdfs://nn1.example/x/", "hdfs://NN1.example:8020/x"), ("/x", "file:///x/")):
        stages = [normalized_stage(open_place(uri)) for uri in spellings]
        assert len({YarnJob(stage, 1 << 30, manager=ResourceManager([])).tag for stage in stages}) == 1


@pytest.mark.parametrize(
    ("uri", "cause"),
    [
        ("hdfs://pair:8020/x", "pair is a nameservice of the site, not a host; leave out the port"),
        ("hdfs://nn1:http/x", "the port 'http' is not a number; give hdfs://namenode:8020/path"),
        ("s3a://bucket/x", r"\(.*object storage has no rename that refuses a taken name"),
        *((uri, f"cannot open '{uri}': give a") for uri in ("carrier://x/y", "C:/x", "file://host/x")),
        ("", "the place is empty; give a folder"),
        (r"C:\x", "give "),
        ("~nobody-here/x", "give "),
    ],
)
def test_other_addresses_are_refused(uri: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as raised:
        open_place(uri)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("default", ["viewfs://cluster/", "hdfs:///", ""])
def test_a_default_that_is_no_hdfs(default: str, site: Path) -> None:
    write_site(site, {"fs.defaultFS": default} if default else {})
    found = r" \(it is " + default + r"\)" if default else ""
    with pytest.raises(UsageError, match="no fs.defaultFS with hdfs://" + found + "; set HADOOP_CONF_DIR"):
        open_place("hdfs:///x")


def test_a_site_or_a_setting_that_is_broken_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_text("<configuration><property>")
    with pytest.raises(EnvironmentFailure, match=f"{site} is not XML.*correct it"):
        open_place("hdfs://nn1/x")
    monkeypatch.setenv("HADOOP_CONF_DIR", f"{site.parent}/absent")
    with pytest.raises(EnvironmentFailure, match=r"HADOOP_CONF_DIR .*/absent is not a folder; set it to the one"):
        open_place("hdfs://nn1/x")
    monkeypatch.setenv(DRIVER_VARIABLE, "carrier-pigeon")
    with pytest.raises(UsageError, match="'carrier-pigeon' is unknown; give native or libhdfs"):
        open_place("hdfs://nn1/x")


def test_libhdfs_without_a_hadoop_is_refused(tmp_path: Path) -> None:
    java = tmp_path / "jre/bin/java"
    java.parent.mkdir(parents=True)
    java.symlink_to("/bin/true")
    (tmp_path / "libhdfs.so").touch()
    with_java = {"PATH": "/absent", "JAVA_HOME": str(tmp_path / "jre")}
    with_library = {**with_java, "ARROW_LIBHDFS_DIR": str(tmp_path)}
    for variables, line in (
        ({"JAVA_HOME": str(tmp_path)}, f"JAVA_HOME {tmp_path} has no bin/java"),
        (with_java, "no libhdfs.so in .*; set ARROW_LIBHDFS_DIR, or take --hdfs-driver native"),
        (with_library, "libhdfs needs CLASSPATH, and no hadoop program in PATH; set HADOOP_HOME"),
        ({**with_library, "HADOOP_HOME": str(tmp_path)}, f"no hadoop program in {tmp_path}/bin; set HADOOP_HOME"),
    ):
        with mock.patch.dict(os.environ, variables), pytest.raises(EnvironmentFailure, match=line):
            start_environment(heap_bytes=1 << 28)
