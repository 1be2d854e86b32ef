"""The umask of a site, in each of Hadoop's forms."""

import pytest

from etl.errors import EnvironmentFailure
from etl.hadoop.umask import PROPERTY, site_umask


def test_forms() -> None:
    forms = {
        **{"022": 0o022, "27": 0o027, "0077": 0o077, "0": 0},
        **{"u=rwx,g=r-x,o=": 0o027, "u=rwx, go=": 0o077, "a=rwx": 0, "=rx": 0o222, "u=rwx,g=rwx": 0o007},
        "u+rwx,g+rx,o-rwx": 0o027,
    }
    assert {text: site_umask({PROPERTY: text}) for text in forms} == forms
    assert site_umask({}) == 0o022
    for text in ("", "abc", "888", "u=rwz", "u=rwx;g=rx", "00022"):
        with pytest.raises(EnvironmentFailure, match="is no umask; set it to one like 027"):
            site_umask({PROPERTY: text})
