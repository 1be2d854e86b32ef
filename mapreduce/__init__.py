"""The MapReduce jobs: one MRJob per file, each an mrjob script that also runs alone; and the command ``ringslice``.

Only job scripts and the command belong at this level. What every job needs, and what travels between mappers
and reducers, is in `mapreduce.jobs`, formats of files in `etl`. Nothing here imports TensorFlow or Horovod."""

import sys
import warnings
from types import TracebackType

from etl.errors import explain, report

# with PYTHONWARNINGS=error, the modules that mrjob imports and Python deprecates would be failures
warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"mrjob\b")


def _report_import(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line if a task has no memory to load a library, which it does before it can report errors itself."""
    if isinstance(error, ImportError) and explain(error) is not None:
        report(error)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report_import
