"""The umask of a site, in each of Hadoop's forms."""

import pytest

from etl.errors import EnvironmentFailure
from etl.hadoop.umask import PROPERTY, site_umask


@pytest.mark.parametrize(
    ("text", "umask"),
    [
        ("022", 0o022),
        ("27", 0o027),
        ("0077", 0o077),
        ("0", 0),
        ("u=rwx,g=r-x,o=", 0o027),
        ("u=rwx,g=rx,o=", 0o027),
        ("u=rwx, go=", 0o077),
        ("a=rwx", 0),
        ("=rx", 0o222),
        ("u=rwx,g=rwx", 0o007),
        ("u+rwx,g+rx,o-rwx", 0o027),
    ],
)
def test_forms(text: str, umask: int) -> None:
    assert site_umask({PROPERTY: text}) == umask


def test_hadoops_own() -> None:
    assert site_umask({}) == 0o022


@pytest.mark.parametrize("text", ["", "abc", "888", "u=rwz", "u=rwx;g=rx", "00022"])
def test_what_is_none_is_told(text: str) -> None:
    with pytest.raises(EnvironmentFailure, match="is no umask; set it to one like 027"):
        site_umask({PROPERTY: text})
