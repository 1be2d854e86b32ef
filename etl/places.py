"""Where datasets live when nobody says."""

import os

DATA_PLACE = "RINGSLICE_DATA"


def default_data_place() -> str:
    """``$RINGSLICE_DATA``, else ``data`` in the current folder."""
    return os.environ.get(DATA_PLACE) or "data"
