"""To come."""

import re

ARCHIVE_NAMES = re.compile(r"(?i).(tar|tar.gz|tgz|tar.zst|tzst)$")


class ArchiveSource:
    pass
