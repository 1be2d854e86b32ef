"""What the checks of `ringslice doctor` stand on: the place, the site's configuration, and what was found before."""

import os
from dataclasses import dataclass, field

from etl.doctor.check import Check, Notice
from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import SITE_VARIABLES, site_configuration
from etl.storage.hdfs_settings import LIBHDFS, HdfsSettings
from etl.storage.place import Place, open_place


@dataclass
class Surroundings:
    """``place`` is None where the site's configuration, which says where it is, cannot be read."""

    uri: str
    queue: str | None = None
    python_bin: str | None = None
    place: Place | None = field(default=None, init=False)
    site: dict[str, str] = field(default_factory=dict, init=False)
    site_problem: str = field(default="", init=False)
    libhdfs: Check | None = field(default=None, init=False)
    place_hangs: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Raises UsageError for a place that there is no filesystem for."""
        self.settings = HdfsSettings.from_environment()
        try:
            self.site = site_configuration()
            self.place = open_place(self.uri)
        except (EnvironmentFailure, OSError) as error:
            self.site_problem = str(error)

    @property
    def has_site(self) -> bool:
        """Whether this machine is said to belong to a Hadoop site."""
        return any(os.environ.get(name) for name in SITE_VARIABLES)

    @property
    def on_hdfs(self) -> bool:
        return self.uri.lower().startswith("hdfs://")

    @property
    def wants_java(self) -> bool:
        """Whether a missing Java is a failure; HDFS alone goes without, by hdfs-native."""
        return self.has_site or (self.on_hdfs and self.settings.driver == LIBHDFS)

    def require_site_configuration(self) -> None:
        """Raise Notice where the files under HADOOP_CONF_DIR cannot be read; that is told once, as a failure."""
        if self.site_problem:
            raise Notice("not checked, for Hadoop's configuration cannot be read; mend that first")
