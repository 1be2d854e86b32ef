"""What a test needs, by what it is called: pytest-xdist's controller knows no more of it."""

import re

# the cluster by name, or by a parameter that is a client of it; and a file most of whose tests start it
_HADOOP = re.compile(r"hadoop|hdfs|\[.*native|airflow_dags/test_image_training")


def needs_hadoop(nodeid: str) -> bool:
    """Whether a test needs the cluster."""
    return bool(_HADOOP.search(nodeid))
