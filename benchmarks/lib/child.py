"""Call one function in this process and print each value that it yields as a line of JSON.

    python -P -m lib.child MODULE:FUNCTION '[ARGUMENT, ...]'

Started by `lib.processes`. Imports the standard library only, because peers have environments of their own.
"""

import importlib
import json
import os
import sys


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    for value in function(*json.loads(sys.argv[2])):
        print(json.dumps(value), flush=True)
    os._exit(0)  # threads of a JVM, of Arrow or of a reader may not end by themselves


if __name__ == "__main__":
    main()
