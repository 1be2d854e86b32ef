"""The library that every other part of ringslice stands on, and its standalone commands.

A module belongs at this level if it serves every package: the command line, failures, values, progress, threads, child
processes. Everything else belongs to the package of its subject. No module in `etl` imports `mapreduce` or `train`, nor
TensorFlow: `etl.cli` and `etl.doctor` start what they need of them as child processes."""

__version__ = "0.1.0"
