"""Run by Airflow's Python: ``airflow dags test`` several times in one process, because it takes seconds to start.

argv[1] is JSON: for each run the words, and variables that are added. Before each, the line argv[2] is printed to
standard output, which also gets the log; after each its exit status.
"""

import json
import os
import sys

from airflow.cli.cli_parser import get_parser  # type: ignore[import-not-found]


def run(words: list[str]) -> int:
    arguments = get_parser().parse_args(["dags", "test", *words])
    try:
        arguments.func(arguments)
    except SystemExit as ending:
        print(ending)
        return 1
    return 0


os.dup2(1, 2)
for words, variables in json.loads(sys.argv[1]):
    print(sys.argv[2], flush=True)
    os.environ.update(variables)
    print(f"\n{run(words)}", flush=True)
