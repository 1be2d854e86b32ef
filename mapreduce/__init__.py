"""The MapReduce jobs: one MRJob per file, each an mrjob script that also runs alone.

Only job scripts belong at this level. What every job needs is in `mapreduce.jobs`, what travels between mappers and
reducers in `mapreduce.shuffle`, and formats of files in `etl`. Nothing here imports TensorFlow or Horovod."""

import warnings

# with PYTHONWARNINGS=error, the modules that mrjob imports and Python deprecates would be failures
warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"mrjob\b")
