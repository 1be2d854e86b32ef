"""To come."""

import re

PARQUET_NAMES = re.compile(r"(?i).(parquet|pq)$")


class ParquetSource:
    pass
