"""Results of programs that run several scenarios in one start of horovodrun: each rank prints a JSON line for each."""

import json
import re
from collections import defaultdict
from typing import Any

from tests.lib.commands import Finished

Result = dict[str, Any]

_LINE = re.compile(r"\[(\d+)\]<stdout>:(\{.*\})")


def print_result(scenario: str, **result: object) -> None:
    print(json.dumps({"scenario": scenario, **result}), flush=True)


def results_of(finished: Finished) -> dict[str, list[Result]]:
    """The results of each scenario, by rank."""
    found: dict[str, dict[int, Result]] = defaultdict(dict)
    for line in finished.stdout.splitlines():
        if matched := _LINE.fullmatch(line):
            result = json.loads(matched[2])
            found[result.pop("scenario")][int(matched[1])] = result
    return {scenario: [by_rank[rank] for rank in sorted(by_rank)] for scenario, by_rank in found.items()}
