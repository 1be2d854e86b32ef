"""Symbolic links in sources of local files."""

import os
import shutil
from pathlib import Path

import pytest

from etl.errors import UsageError
from etl.sources.base import Source, SourceOptions
from etl.sources.detect import open_source
from etl.storage.place import open_place
from tests.conftest import TreeMaker
from tests.lib.commands import failed
from tests.lib.in_process import ringslice_here
from tests.lib.inline import ingest_here
from tests.lib.sources.archives import contents_of, refused, some_images, tar_of

OUT = "; remove it, or give --follow-links"
KEYS = ["a/000.png", "a/001.png", "b/000.png"]


@pytest.fixture
def source(make_tree: TreeMaker) -> Path:
    return make_tree({"a": 2, "b": 1})


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.png").write_bytes(b"a secret")
    return tmp_path / "secret"


def opened(place: Path, follow: bool = False) -> Source:
    return open_source(open_place(str(place)), SourceOptions(follow_links=follow))


def keys(place: Path, follow: bool = False) -> list[str]:
    return [image.key for image in opened(place, follow).images]


@pytest.mark.parametrize(("target", "key"), [("key.png", "a/link"), (".", "a/link/key.png")])
def test_a_link_that_leads_out_is_followed_if_asked(source: Path, secret: Path, target: str, key: str) -> None:
    (source / "a" / "link").symlink_to(secret / target)
    refused(source, UsageError, f"a/link leads by a link to {secret}", OUT)
    assert contents_of(opened(source, follow=True))[key] == b"a secret"


def test_a_link_of_links_is_judged_by_where_it_ends(source: Path, secret: Path, tmp_path: Path) -> None:
    (tmp_path / "back").symlink_to(source / "a/000.png")
    (source / "a" / "there-and-back.png").symlink_to(tmp_path / "back")
    assert keys(source) == sorted([*KEYS, "a/there-and-back.png"])
    (source / "b" / "first.png").symlink_to("second.png")
    (source / "b" / "second.png").symlink_to(secret / "key.png")
    refused(source, UsageError, f"b/first.png leads by a link to {secret}/key.png", OUT)
    (source / "b" / "first.png").unlink()
    (source / "b" / "second.png").unlink()
    other = shutil.copytree(source, source.with_name(f"{source.name}-other"))  # named like the source
    (source / "c").symlink_to(other / "a")
    refused(source, UsageError, OUT)


def test_hard_hidden_and_inner_links_and_a_source_that_is_a_link(source: Path, secret: Path, tmp_path: Path) -> None:
    os.link(secret / "key.png", source / "a" / "hard.png")
    (source / "a" / ".hidden").symlink_to(secret)
    (source / "a" / ".#lock").symlink_to("user@host.1:9")
    (source / ".venv").mkdir()
    (source / ".venv" / "python").symlink_to(secret / "key.png")
    (tmp_path / "to-source").symlink_to(source)
    assert keys(tmp_path / "to-source") == sorted([*KEYS, "a/hard.png"])
    (source / "a" / "link.png").symlink_to("000.png")
    (source / "c").symlink_to("b")
    assert keys(tmp_path / "to-source") == sorted([*KEYS, "a/hard.png", "a/link.png", "c/000.png"])


def test_circles_are_refused(source: Path, secret: Path) -> None:
    loop, back = source / "a/loop", secret / "back"
    back.symlink_to(source)
    for target, line in (
        (source, "a/loop is a link back to a folder"),
        ("loop", "a/loop is a link to nothing"),
        (secret, "a/loop/back is a link back to a folder"),
    ):
        loop.symlink_to(target)
        refused(source, UsageError, line, follow_links=True)
        if target != secret:
            refused(source, UsageError, line)
        loop.unlink()


def test_a_listed_path_does_not_lead_out_of_the_list_s_folder(source: Path, secret: Path, tmp_path: Path) -> None:
    folder = tmp_path / "listed"
    shutil.copytree(source, folder / "images")

    def listing(*paths: object) -> Path:
        (folder / "list.csv").write_text("\n".join(["path,label", *(f"{path},a" for path in paths)]))
        return folder / "list.csv"

    (folder / "link.png").symlink_to(secret / "key.png")
    (folder / "linked").symlink_to(secret)
    (folder / "within.png").symlink_to("images/a/000.png")
    for path in ("link.png", "linked/key.png", folder / "link.png", f"file://{folder}/linked/key.png"):
        refused(listing(path), UsageError, "line 2 of ", f"leads by a link to {secret}/key.png", OUT)
        assert list(contents_of(opened(listing(path), follow=True)).values()) == [b"a secret"]
    for path in ("images/a/000.png", "within.png", secret / "key.png"):
        assert len(keys(listing(path))) == 1
    (tmp_path / "to-listed").symlink_to(folder)
    listing("images/a/000.png", tmp_path / "to-listed" / "images/a/001.png")
    assert len(keys(tmp_path / "to-listed/list.csv")) == 2


def test_the_option_is_that_of_ingest_and_pipeline(source: Path, secret: Path, tmp_path: Path) -> None:
    (source / "a" / "link.png").symlink_to(secret / "key.png")
    failed(ringslice_here("pipeline", source, tmp_path / "root"), 2, "--follow-links")
    ingest_here(source, tmp_path / "root", follow_links=True)
    (source / "a" / "link.png").unlink()
    ingest_here(source, tmp_path / "root", max_removed="1")  # the same dataset, with or without
    (tmp_path / "0.tar").write_bytes(tar_of(some_images(2)))
    with pytest.raises(UsageError, match="--follow-links does not apply to a source of the kind 'archive'"):
        ingest_here(tmp_path / "0.tar", tmp_path / "other", follow_links=True)
