"""The library that every other part of ringslice stands on, and the stages without their jobs.

A module belongs at this level if it serves every package: failures, values, progress, threads, child processes.
Everything else belongs to the package of its subject. No module in `etl` imports `mapreduce` or `train`, nor
TensorFlow: `etl.doctor` starts what it needs of them as child processes."""

__version__ = "0.1.0"
