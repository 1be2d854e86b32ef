"""What a test needs, by what it is called: pytest-xdist's controller knows no more of it."""

import re

# the cluster by name, or by a parameter that is a client of it
_HADOOP = re.compile(r"hadoop|hdfs|\[.*native")


def needs_hadoop(nodeid: str) -> bool:
    """Whether a test needs the cluster."""
    return bool(_HADOOP.search(nodeid))
