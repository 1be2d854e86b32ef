"""What a command does before it imports a package of ringslice.

This is a module of its own, beside the packages, because their names are general: somebody else's package named `etl`
may come first on the path. It imports the standard library only.
"""

import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

PACKAGES = ("etl", "mapreduce", "train")


def prepare() -> None:
    """End this process without a traceback on Ctrl-C, until it has handlers of its own; require the packages beside us.

    Exits with status 3 and one line if Python would import a package of another project under the name of ours.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    own = Path(__file__).parent.resolve()
    for name in PACKAGES:
        found = _find(name)
        if found not in (None, own / name):
            print(
                f"ringslice: error: package {name!r}: {found} comes before {own / name} on Python's path."
                " Remove its folder from PYTHONPATH, or install ringslice into a virtual environment of its own",
                file=sys.stderr,
            )
            sys.exit(3)


def _find(name: str) -> Path | None:
    """The folder or file that ``import name`` would load; None if there is none."""
    spec = find_spec(name)
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    return Path(next(iter(folders), "") if folders is not None else spec.origin or "").resolve()


def main() -> NoReturn:
    """Entry point of ``ringslice``."""
    prepare()
    from mapreduce.cli import main as run

    run()


if __name__ == "__main__":
    main()
