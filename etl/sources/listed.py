"""To come."""

import re

LIST_NAMES = re.compile(r"(?i).(csv|jsonl|ndjson)$")


class ListSource:
    pass
